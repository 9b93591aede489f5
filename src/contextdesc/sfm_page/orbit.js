
// Moving: an eye that turns around a target with the scene's up kept upright; mouse, touch and keys.

const TANGENT = Math.tan((45 / 2) * (Math.PI / 180)); // of half the vertical angle of view
const STEEPEST = (89 * Math.PI) / 180;
const MARGIN = 1.06;
const CALM = window.matchMedia("(prefers-reduced-motion: reduce)");

class Orbit {
  /** view: {direction, up, half} as the page's data have it; changed: called when the view has moved. */
  constructor(canvas, view, changed) {
    this.canvas = canvas;
    this.view = view;
    this.changed = changed;
    this.up = unit(view.up);
    const level = unit(subtract(view.direction, times(this.up, dot(view.direction, this.up))));
    this.axes = [level, cross(this.up, level)]; // of angle 0 and of a right angle
    this.atHome = true; // nobody has moved yet, so the view may fit itself to the window
    Object.assign(this, this.home());
    this.listen();
  }

  aspect() {
    return this.canvas.clientWidth / Math.max(1, this.canvas.clientHeight);
  }

  /** The first view: everything in sight, whatever the shape of the window. */
  home() {
    const [right, up, along] = this.view.half;
    const fit = Math.max(up / TANGENT, right / (TANGENT * this.aspect()));
    return { target: [0, 0, 0], distance: Math.max(0.1, (fit + along) * MARGIN), ...this.angles(this.view.direction) };
  }

  angles(direction) {
    const turn = Math.atan2(dot(direction, this.axes[1]), dot(direction, this.axes[0]));
    return { turn, pitch: clamp(Math.asin(clamp(dot(direction, this.up), -1, 1)), -STEEPEST, STEEPEST) };
  }

  frame() {
    const level = add(times(this.axes[0], Math.cos(this.turn)), times(this.axes[1], Math.sin(this.turn)));
    const direction = add(times(level, Math.cos(this.pitch)), times(this.up, Math.sin(this.pitch)));
    const right = unit(cross(direction, this.up));
    return { direction, right, up: cross(right, direction) };
  }

  /** What drawing needs: world to clip space, and the distance of the target. */
  look() {
    const { direction, right, up } = this.frame();
    const eye = subtract(this.target, times(direction, this.distance));
    const projection = perspective(TANGENT, this.aspect(), this.distance / 200, this.distance + 200);
    return { matrix: multiply(projection, eyeFromWorld(eye, right, up, direction)), distance: this.distance };
  }

  turnBy(x, y) {
    this.turn -= x;
    this.pitch = clamp(this.pitch - y, -STEEPEST, STEEPEST);
    this.moved();
  }

  /** Move by pixels of the canvas, at the depth of the target. */
  moveBy(x, y) {
    const { right, up } = this.frame();
    const unitsPerPixel = (2 * TANGENT * this.distance) / Math.max(1, this.canvas.clientHeight);
    this.target = add(this.target, add(times(right, -x * unitsPerPixel), times(up, y * unitsPerPixel)));
    this.moved();
  }

  /** Change the distance by a factor and keep what is at a place of the canvas there. */
  zoomBy(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const distance = clamp(this.distance * factor, 0.005, 50);
    const rest = 1 - distance / this.distance;
    this.moveBy(-(x - this.canvas.clientWidth / 2) * rest, -(y - this.canvas.clientHeight / 2) * rest);
    this.distance = distance;
    this.moved();
  }

  moved() {
    this.atHome = false;
    cancelAnimationFrame(this.flight);
    this.changed();
  }

  /** Go to another view, gently: any of target, distance, turn, pitch. */
  fly(goal) {
    this.atHome = false;
    cancelAnimationFrame(this.flight);
    const start = { target: this.target, distance: this.distance, turn: this.turn, pitch: this.pitch };
    const end = { ...start, ...goal };
    end.turn = start.turn + Math.atan2(Math.sin(end.turn - start.turn), Math.cos(end.turn - start.turn));
    const begun = performance.now();
    const step = (now) => {
      const share = CALM.matches ? 1 : clamp((now - begun) / 450, 0, 1);
      const eased = share * share * (3 - 2 * share);
      this.target = add(start.target, times(subtract(end.target, start.target), eased));
      this.distance = start.distance * (end.distance / start.distance) ** eased;
      this.turn = start.turn + (end.turn - start.turn) * eased;
      this.pitch = start.pitch + (end.pitch - start.pitch) * eased;
      this.changed();
      if (share < 1) this.flight = requestAnimationFrame(step);
    };
    this.flight = requestAnimationFrame(step);
  }

  reset() {
    this.fly(this.home());
  }

  /** Stand at a camera: its centre, and the corners of its image from there. */
  lookThrough([centre, ...corners]) {
    const direction = unit(corners.reduce(add));
    this.fly({ target: add(centre, times(direction, 0.5)), distance: 0.5, ...this.angles(direction) });
  }

  listen() {
    const { canvas } = this;
    const held = new Map(); // pointers that are down, by id
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      canvas.classList.add("turning");
      held.set(event.pointerId, event);
    });
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, (event) => {
        held.delete(event.pointerId);
        if (!held.size) canvas.classList.remove("turning");
      });
    }
    canvas.addEventListener("pointermove", (event) => {
      const before = held.get(event.pointerId);
      if (!before) return;
      const [x, y] = [event.clientX - before.clientX, event.clientY - before.clientY];
      const other = [...held.values()].find((pointer) => pointer.pointerId !== event.pointerId);
      held.set(event.pointerId, event);
      if (other) {
        const apart = (pointer) => Math.hypot(pointer.clientX - other.clientX, pointer.clientY - other.clientY);
        this.moveBy(x / 2, y / 2);
        this.zoomBy(apart(before) / Math.max(1, apart(event)));
      } else if (event.shiftKey || event.buttons & 6) {
        this.moveBy(x, y);
      } else {
        this.turnBy(x / 200, y / 200);
      }
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const pixels = event.deltaY * [1, 16, 400][event.deltaMode];
      this.zoomBy(Math.exp(clamp(pixels, -200, 200) * 0.0015), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const arrow = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      if (arrow && event.shiftKey) this.moveBy(-24 * arrow[0], -24 * arrow[1]);
      else if (arrow) this.turnBy(0.08 * arrow[0], 0.08 * arrow[1]);
      else if (event.key === "+" || event.key === "=") this.zoomBy(1 / 1.15);
      else if (event.key === "-" || event.key === "_") this.zoomBy(1.15);
      else if (event.key === "Home") this.reset();
      else return;
      event.preventDefault();
    });
  }
}
