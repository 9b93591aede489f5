
// The page: data, controls, and what is chosen.

const element = (id) => document.getElementById(id);

function bytes(base64) {
  const text = atob(base64);
  const values = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) values[i] = text.charCodeAt(i);
  return values.buffer;
}

const data = JSON.parse(element("data").textContent);
const points = {
  xyz: new Float32Array(bytes(data.xyz)),
  rgb: new Uint8Array(bytes(data.rgb)),
  error: new Float32Array(bytes(data.error)),
  track: new Uint16Array(bytes(data.track)),
};
const images = data.images;
for (const image of images) {
  image.keypoints = new Uint16Array(bytes(image.keypoints));
  image.points = new Uint32Array(bytes(image.points));
}
const placed = images.flatMap((image, index) => (image.pose ? [index] : [])); // camera to image
const cameras = placed.map((index) => [images[index].pose.centre, ...images[index].pose.corners]);

// What the cloud shows; `range` is what the colour ramp spans, `frustum` a depth.
const display = { mode: 0, range: [0, 1], size: 3, frustum: data.view.frustum, shortest: 2, largest: Infinity, dim: true };
const chosen = { image: null, picture: null };

// ---- the cloud ----

function startCloud() {
  const canvas = element("cloud");
  canvas.hidden = false;
  try {
    const cloud = new Cloud(canvas, points, cameras);
    const view = { cloud, canvas, hovered: null, waiting: false };
    view.orbit = new Orbit(canvas, data.view, () => redraw(view));
    return view;
  } catch (error) {
    console.warn(error.message);
    canvas.hidden = true;
    element("no-webgl").hidden = false;
    return null;
  }
}

function redraw(view) {
  if (!view || view.waiting) return;
  view.waiting = true;
  requestAnimationFrame(() => {
    view.waiting = false;
    const style = getComputedStyle(view.canvas);
    const [ground, camera, marked] = [style.backgroundColor, style.color, style.caretColor].map(partsOfColour);
    view.cloud.draw(view.orbit.look(), display, { ground, camera, marked }, view.hovered);
  });
}

/** The three parts, 0 to 1, of a colour as styles have it: rgb(255, 255, 255). */
const partsOfColour = (text) => text.match(/[\d.]+/g).slice(0, 3).map((value) => value / 255);

function watchCanvas(view) {
  const { canvas, cloud, orbit } = view;
  new ResizeObserver(() => {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(canvas.clientWidth * ratio));
    canvas.height = Math.max(1, Math.round(canvas.clientHeight * ratio));
    if (orbit.atHome) Object.assign(orbit, orbit.home());
    redraw(view);
  }).observe(canvas);

  let pressed = null;
  canvas.addEventListener("pointerdown", (event) => (pressed = event));
  canvas.addEventListener("pointerup", (event) => {
    const still = pressed && Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY) < 5;
    const camera = still && event.button === 0 ? cloud.cameraAt(orbit.look(), event.offsetX, event.offsetY) : null;
    if (camera !== null) choose(placed[camera]);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons || event.pointerType === "touch") return;
    hover(view, cloud.cameraAt(orbit.look(), event.offsetX, event.offsetY));
  });
  canvas.addEventListener("pointerleave", () => hover(view, null));
  canvas.addEventListener("dblclick", (event) => {
    const point = cloud.pointAt(orbit.look(), display, event.offsetX, event.offsetY);
    if (point) orbit.fly({ target: point });
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.key !== "PageUp" && event.key !== "PageDown") return;
    event.preventDefault();
    chooseNext(event.key === "PageUp" ? -1 : 1);
  });
  canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
  canvas.addEventListener("webglcontextrestored", () => {
    cloud.prepare();
    showInCloud();
  });
}

function hover(view, camera) {
  const label = element("label");
  if (camera !== null) {
    const { canvas, cloud, orbit } = view;
    const corners = cloud.outline(camera).map((p) => project(orbit.look().matrix, p, canvas.clientWidth, canvas.clientHeight));
    label.textContent = images[placed[camera]].name;
    label.style.left = `${clamp(corners[0][0], 60, canvas.clientWidth - 60)}px`;
    label.style.top = `${Math.max(40, Math.min(...corners.map((corner) => corner[1])))}px`;
  }
  label.hidden = camera === null;
  view.canvas.classList.toggle("over", camera !== null);
  if (camera !== view.hovered) {
    view.hovered = camera;
    redraw(view);
  }
}

// ---- controls of the display ----

/** The value below which a share of some numbers is; of very many, an even sample is asked. */
function quantile(values, share) {
  const step = Math.max(1, Math.floor(values.length / 50000));
  const sample = values.filter((_, i) => i % step === 0).sort();
  return sample.length ? sample[Math.min(sample.length - 1, Math.floor(share * sample.length))] : 0;
}

function startDisplay() {
  const errorTop = Math.max(0.1, Math.ceil(quantile(points.error, 0.95) * 10) / 10);
  const trackTop = Math.max(3, quantile(points.track, 0.95));
  const ranges = { rgb: [0, 1], error: [0, errorTop], track: [2, trackTop] };
  const labels = { error: ["0 px", `${errorTop} px`], track: ["2 images", `${trackTop}`] };
  element("size").value = [5, 4, 3, 2][[5e3, 5e4, 2e5].filter((many) => points.track.length > many).length];
  element("shortest").max = Math.max(3, Math.min(20, quantile(points.track, 0.98)));
  element("largest").max = Math.max(0.2, Math.ceil(quantile(points.error, 0.999) * 10) / 10);
  element("largest").value = element("largest").max;
  element("ramp-bar").style.background = `linear-gradient(90deg, ${RAMP.map((stop) => `rgb(${stop})`)})`;

  const update = () => {
    const mode = document.querySelector("input[name=colour]:checked").value;
    display.mode = ["rgb", "error", "track"].indexOf(mode);
    display.range = ranges[mode];
    element("ramp").hidden = mode === "rgb";
    [element("ramp-low").textContent, element("ramp-high").textContent] = labels[mode] || ["", ""];
    display.size = Number(element("size").value);
    display.frustum = data.view.frustum * element("frustum").value;
    display.shortest = Number(element("shortest").value);
    const any = element("largest").value === element("largest").max;
    display.largest = any ? Infinity : Number(element("largest").value);
    setOutput("size", `${display.size} px`);
    setOutput("frustum", display.frustum ? `× ${element("frustum").value}` : "hidden");
    setOutput("shortest", display.shortest);
    setOutput("largest", any ? "any" : `${display.largest} px`);
    element("shown").textContent = shownText();
    redraw(view);
  };
  element("display").addEventListener("input", update);
  element("display").hidden = element("tools").hidden = false;
  element("display").open = window.innerWidth > 860;
  update();
}

function setOutput(id, text) {
  document.querySelector(`output[for=${id}]`).textContent = text;
}

function shownText() {
  let shown = 0;
  for (let i = 0; i < points.track.length; i++) {
    if (points.track[i] >= display.shortest && points.error[i] <= display.largest) shown++;
  }
  const thinned = points.track.length < data.points;
  const all = thinned ? `${count(points.track.length)} points (an even sample of ${count(data.points)})` : `${count(data.points)} points`;
  return shown === points.track.length ? all : `${count(shown)} of ${all}`;
}

// ---- the chosen image ----

async function choose(index) {
  chosen.image = images[index];
  chosen.picture = null;
  for (const row of element("images").tBodies[0].rows) {
    const is = Number(row.dataset.row) === index;
    row.classList.toggle("chosen", is);
    if (is) row.querySelector("button").setAttribute("aria-current", "true");
    else row.querySelector("button").removeAttribute("aria-current");
  }
  const picture = await loadPicture(images[index]);
  if (chosen.image !== images[index]) return; // another one was chosen meanwhile
  chosen.picture = picture;
  showChosen();
  showInCloud();
  document.querySelector("tr.chosen").scrollIntoView({ block: "nearest" });
}

function chooseNext(step) {
  const rows = [...element("images").tBodies[0].rows];
  const now = rows.findIndex((row) => row.classList.contains("chosen"));
  const next = now < 0 ? 0 : (now + step + rows.length) % rows.length;
  choose(Number(rows[next].dataset.row));
}

function showChosen() {
  const { image, picture } = chosen;
  element("choose").hidden = true;
  element("chosen").hidden = false;
  element("chosen-name").textContent = element("large-name").textContent = image.name;
  element("no-picture").hidden = picture !== null;
  element("enlarge").hidden = picture === null && !image.size[0];
  element("with-count").textContent = `${count(image.seen)} with a 3D point`;
  element("without-count").textContent = `${count(image.total - image.seen)} without`;
  const drawn = image.keypoints.length / 2;
  element("thinned").hidden = drawn === image.total;
  element("thinned").textContent = `${count(drawn)} of them are drawn.`;
  element("facts").replaceChildren(...factsOf(image).map(([name, value]) => {
    const [group, term, fact] = ["div", "dt", "dd"].map((tag) => document.createElement(tag));
    term.textContent = name;
    fact.textContent = value;
    group.append(term, fact);
    return group;
  }));
  element("actions").hidden = !view || !image.pose;
  paint();
}

function paint() {
  if (!chosen.image || element("enlarge").hidden) return;
  const kinds = { with: element("with").checked, without: element("without").checked };
  const narrow = window.innerWidth <= 860;
  const height = window.innerHeight * (narrow ? 0.7 : 0.38);
  drawPhotograph(element("picture"), chosen.image, chosen.picture, kinds, element("chosen").clientWidth, height);
  if (element("large").open) {
    const box = [Math.min(1070, window.innerWidth * 0.96 - 30), window.innerHeight * 0.96 - 90];
    drawPhotograph(element("large-picture"), chosen.image, chosen.picture, kinds, ...box);
  }
}

function showInCloud() {
  if (!view) return;
  const { image, picture } = chosen;
  display.dim = element("dim").checked;
  const camera = image && image.pose ? placed.indexOf(images.indexOf(image)) : null;
  view.cloud.choose(camera, camera === null ? [] : image.points, picture);
  redraw(view);
}

function startChoosing() {
  const body = element("images").tBodies[0];
  body.addEventListener("click", (event) => choose(Number(event.target.closest("tr").dataset.row)));
  element("previous").addEventListener("click", () => chooseNext(-1));
  element("next").addEventListener("click", () => chooseNext(1));
  for (const id of ["with", "without"]) element(id).addEventListener("change", paint);
  element("dim").addEventListener("change", showInCloud);
  element("look").addEventListener("click", () => view.orbit.lookThrough(cameras[view.cloud.chosen]));
  element("enlarge").addEventListener("click", () => {
    element("large").showModal();
    paint();
  });
  element("close").addEventListener("click", () => element("large").close());
  window.addEventListener("resize", paint);
}

// ---- light and dark ----

function startTheme() {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const update = () => {
    element("theme").textContent = isDark() ? "Light mode" : "Dark mode";
    redraw(view);
  };
  element("theme").hidden = false;
  element("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    update();
  });
  system.addEventListener("change", update);
  update();
}

const view = startCloud();
makeSortable(element("images"));
startChoosing();
startTheme();
if (view) {
  element("reset").addEventListener("click", () => view.orbit.reset());
  watchCanvas(view);
  startDisplay();
}
