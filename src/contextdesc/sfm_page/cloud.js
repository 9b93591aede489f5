
// Drawing: points, camera frusta and the chosen photograph in its frustum, with WebGL 2.

// Blue to orange over grey: told apart by every kind of colour vision, on light and on dark ground.
const RAMP = [[31, 87, 196], [94, 146, 214], [160, 163, 166], [226, 152, 66], [207, 88, 0]];
const EDGES = [[0, 1], [0, 2], [0, 3], [0, 4], [1, 2], [2, 3], [3, 4], [4, 1]]; // of centre and four corners

const POINT_VERTEX = `#version 300 es
in vec3 position;
in vec3 colour;
in float error;
in float track;
in float marked;
uniform mat4 matrix;
uniform vec3 ramp[${RAMP.length}];
uniform vec2 range;      // of the values that the ramp spans
uniform vec3 ground;
uniform int mode;        // 0 photograph, 1 error, 2 track
uniform float size;      // pixels at the distance of the target
uniform float distance;
uniform float shortest;
uniform float largest;
uniform bool dim;
out vec3 shade;
out float pixels;
void main() {
  gl_Position = matrix * vec4(position, 1.0);
  gl_PointSize = size * clamp(distance / gl_Position.w, 0.6, 2.5);
  shade = colour;
  if (mode > 0) {
    float value = mode == 1 ? error : track;
    float step = clamp((value - range.x) / (range.y - range.x), 0.0, 1.0) * ${RAMP.length - 1}.0;
    int below = min(int(step), ${RAMP.length - 2});
    shade = mix(ramp[below], ramp[below + 1], step - float(below));
  }
  if (dim && marked < 0.5) {
    shade = mix(shade, ground, 0.8);
    gl_PointSize *= 0.8;
    gl_Position.z = 0.9999 * gl_Position.w; // behind all others
  }
  pixels = gl_PointSize;
  if (track < shortest || error > largest) gl_Position = vec4(2.0, 2.0, 2.0, 1.0);
}`;

const POINT_FRAGMENT = `#version 300 es
precision mediump float;
in vec3 shade;
out vec4 pixel;
in float pixels;
void main() {
  float inside = (0.5 - length(gl_PointCoord - 0.5)) * pixels + 0.5;
  if (inside <= 0.0) discard;
  pixel = vec4(shade, min(inside, 1.0)); // alpha becomes coverage: a smooth edge
}`;

// A segment is a quad of constant width on the screen; what is behind the eye is cut off first.
const LINE_VERTEX = `#version 300 es
in vec2 corner;          // along (0 or 1) and across (-1 or 1)
in vec3 start;
in vec3 end;
uniform mat4 matrix;
uniform vec2 canvas;
uniform float width;
const float NEAR = 1e-4;
void main() {
  vec4 a = matrix * vec4(start, 1.0);
  vec4 b = matrix * vec4(end, 1.0);
  if (a.w < NEAR && b.w < NEAR) {
    gl_Position = vec4(2.0, 2.0, 2.0, 1.0);
    return;
  }
  if (a.w < NEAR) a = mix(a, b, (NEAR - a.w) / (b.w - a.w));
  if (b.w < NEAR) b = mix(b, a, (NEAR - b.w) / (a.w - b.w));
  vec2 along = (b.xy / b.w - a.xy / a.w) * canvas;
  vec2 across = length(along) > 0.0 ? normalize(vec2(-along.y, along.x)) : vec2(0.0);
  gl_Position = corner.x < 0.5 ? a : b;
  gl_Position.xy += across * corner.y * width / canvas * gl_Position.w;
}`;

const LINE_FRAGMENT = `#version 300 es
precision mediump float;
uniform vec4 colour;
out vec4 pixel;
void main() { pixel = colour; }`;

const PICTURE_VERTEX = `#version 300 es
in vec3 position;
in vec2 place;
uniform mat4 matrix;
out vec2 where;
void main() {
  where = place;
  gl_Position = matrix * vec4(position, 1.0);
}`;

const PICTURE_FRAGMENT = `#version 300 es
precision mediump float;
in vec2 where;
uniform sampler2D picture;
out vec4 pixel;
void main() { pixel = vec4(texture(picture, where).rgb, 1.0); }`;

class Cloud {
  /**
   * points: {xyz, rgb, error, track} as typed arrays; cameras: rows of five vectors, the centre and from
   * there the four image corners at depth 1. Throws where there is no WebGL 2.
   */
  constructor(canvas, points, cameras) {
    this.gl = canvas.getContext("webgl2", { antialias: true, alpha: false });
    if (!this.gl) throw new Error("no WebGL 2");
    this.canvas = canvas;
    this.points = points;
    this.cameras = cameras;
    this.chosen = null;
    this.marked = new Uint8Array(points.track.length);
    this.prepare();
  }

  /** Everything that lives in the graphics card; again after it lost its memory. */
  prepare() {
    const { gl, points } = this;
    this.pointProgram = this.program(POINT_VERTEX, POINT_FRAGMENT);
    this.lineProgram = this.program(LINE_VERTEX, LINE_FRAGMENT);
    this.pictureProgram = this.program(PICTURE_VERTEX, PICTURE_FRAGMENT);

    this.pointArray = this.array();
    this.attribute(this.pointProgram, "position", points.xyz, 3, gl.FLOAT);
    this.attribute(this.pointProgram, "colour", points.rgb, 3, gl.UNSIGNED_BYTE, true);
    this.attribute(this.pointProgram, "error", points.error, 1, gl.FLOAT);
    this.attribute(this.pointProgram, "track", points.track, 1, gl.UNSIGNED_SHORT);
    this.markedBuffer = this.attribute(this.pointProgram, "marked", this.marked, 1, gl.UNSIGNED_BYTE);

    this.lineArray = this.array();
    this.attribute(this.lineProgram, "corner", new Float32Array([0, -1, 1, -1, 0, 1, 1, 1]), 2, gl.FLOAT);
    this.segments = gl.createBuffer();
    gl.bindBuffer(gl.ARRAY_BUFFER, this.segments);
    for (const [name, offset] of [["start", 0], ["end", 12]]) {
      const location = gl.getAttribLocation(this.lineProgram.handle, name);
      gl.enableVertexAttribArray(location);
      gl.vertexAttribPointer(location, 3, gl.FLOAT, false, 24, offset);
      gl.vertexAttribDivisor(location, 1);
    }

    this.pictureArray = this.array();
    this.pictureCorners = this.attribute(this.pictureProgram, "position", new Float32Array(12), 3, gl.FLOAT);
    this.attribute(this.pictureProgram, "place", new Float32Array([0, 0, 1, 0, 0, 1, 1, 1]), 2, gl.FLOAT);
    this.texture = gl.createTexture();
    gl.enable(gl.DEPTH_TEST);
    this.frustum = null;
  }

  program(vertex, fragment) {
    const { gl } = this;
    const handle = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(handle, shader);
    }
    gl.linkProgram(handle);
    if (!gl.getProgramParameter(handle, gl.LINK_STATUS) && !gl.isContextLost()) {
      throw new Error(`shader: ${gl.getProgramInfoLog(handle)}`);
    }
    const setters = {
      [gl.FLOAT_MAT4]: (location, value) => gl.uniformMatrix4fv(location, false, value),
      [gl.FLOAT_VEC4]: (location, value) => gl.uniform4fv(location, value),
      [gl.FLOAT_VEC3]: (location, value) => gl.uniform3fv(location, value),
      [gl.FLOAT_VEC2]: (location, value) => gl.uniform2fv(location, value),
      [gl.FLOAT]: (location, value) => gl.uniform1f(location, value),
      [gl.INT]: (location, value) => gl.uniform1i(location, value),
      [gl.BOOL]: (location, value) => gl.uniform1i(location, value),
      [gl.SAMPLER_2D]: (location) => gl.uniform1i(location, 0),
    };
    const uniforms = [];
    for (let i = 0; i < gl.getProgramParameter(handle, gl.ACTIVE_UNIFORMS); i++) {
      const { name, type } = gl.getActiveUniform(handle, i);
      uniforms.push({ name: name.replace("[0]", ""), location: gl.getUniformLocation(handle, name), set: setters[type] });
    }
    return { handle, uniforms };
  }

  array() {
    const array = this.gl.createVertexArray();
    this.gl.bindVertexArray(array);
    return array;
  }

  attribute(program, name, values, count, type, normalised = false) {
    const { gl } = this;
    const buffer = gl.createBuffer();
    const location = gl.getAttribLocation(program.handle, name);
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    gl.bufferData(gl.ARRAY_BUFFER, values, gl.STATIC_DRAW);
    gl.enableVertexAttribArray(location);
    gl.vertexAttribPointer(location, count, type, normalised, 0, 0);
    return buffer;
  }

  /** Use a program with these values of its uniforms, by name. */
  use(program, values) {
    this.gl.useProgram(program.handle);
    for (const { name, location, set } of program.uniforms) set(location, values[name]);
  }

  /** The centre and the four corners of a camera's frustum in the world. */
  outline(index) {
    const [centre, ...corners] = this.cameras[index];
    return [centre, ...corners.map((corner) => add(centre, times(corner, this.frustum)))];
  }

  setFrustum(depth) {
    if (depth === this.frustum) return;
    this.frustum = depth;
    const { gl } = this;
    const values = new Float32Array(this.cameras.length * EDGES.length * 6);
    this.cameras.forEach((_, index) => {
      const corners = this.outline(index);
      EDGES.forEach(([a, b], edge) => values.set([...corners[a], ...corners[b]], (index * EDGES.length + edge) * 6));
    });
    gl.bindBuffer(gl.ARRAY_BUFFER, this.segments);
    gl.bufferData(gl.ARRAY_BUFFER, values, gl.STATIC_DRAW);
    this.placePicture();
  }

  /** Choose a camera (or null), the rows of the points that it sees, and its photograph (or null). */
  choose(index, rows, picture) {
    const { gl } = this;
    this.chosen = index;
    this.picture = picture;
    this.marked.fill(0);
    for (const row of rows) if (row < this.marked.length) this.marked[row] = 1;
    gl.bindBuffer(gl.ARRAY_BUFFER, this.markedBuffer);
    gl.bufferData(gl.ARRAY_BUFFER, this.marked, gl.STATIC_DRAW);
    if (picture) {
      gl.bindTexture(gl.TEXTURE_2D, this.texture);
      gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, picture);
      gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.LINEAR_MIPMAP_LINEAR);
      gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_WRAP_S, gl.CLAMP_TO_EDGE);
      gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_WRAP_T, gl.CLAMP_TO_EDGE);
      gl.generateMipmap(gl.TEXTURE_2D);
    }
    this.placePicture();
  }

  placePicture() {
    if (this.chosen === null || this.frustum === null) return;
    const [, topLeft, topRight, bottomRight, bottomLeft] = this.outline(this.chosen);
    const { gl } = this;
    gl.bindBuffer(gl.ARRAY_BUFFER, this.pictureCorners);
    gl.bufferData(
      gl.ARRAY_BUFFER, new Float32Array([...topLeft, ...topRight, ...bottomLeft, ...bottomRight]), gl.STATIC_DRAW,
    );
  }

  /** look: {matrix, distance}; display: see page.js; colours: {ground, camera, marked} with parts of 1. */
  draw(look, display, colours, hovered) {
    const { gl, canvas } = this;
    const ratio = window.devicePixelRatio || 1;
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clearColor(...colours.ground, 1);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);

    this.use(this.pointProgram, {
      matrix: look.matrix, ramp: RAMP.flat().map((value) => value / 255), range: display.range,
      ground: colours.ground, mode: display.mode, size: display.size * ratio, distance: look.distance,
      shortest: display.shortest, largest: display.largest, dim: display.dim && this.chosen !== null,
    });
    gl.bindVertexArray(this.pointArray);
    gl.enable(gl.SAMPLE_ALPHA_TO_COVERAGE);
    gl.drawArrays(gl.POINTS, 0, this.points.track.length);
    gl.disable(gl.SAMPLE_ALPHA_TO_COVERAGE);

    if (display.frustum > 0) {
      this.setFrustum(display.frustum);
      this.lines(look, colours.camera, 1.3 * ratio, 0, this.cameras.length);
      if (this.chosen !== null && this.picture) {
        this.use(this.pictureProgram, { matrix: look.matrix });
        gl.bindVertexArray(this.pictureArray);
        gl.bindTexture(gl.TEXTURE_2D, this.texture);
        gl.drawArrays(gl.TRIANGLE_STRIP, 0, 4);
      }
      gl.depthFunc(gl.LEQUAL);
      for (const index of [hovered, this.chosen]) {
        if (index !== null) this.lines(look, colours.marked, 3 * ratio, index, 1);
      }
      gl.depthFunc(gl.LESS);
    }
  }

  /** Frusta of `count` cameras from the one at `first` on. */
  lines(look, colour, width, first, count) {
    const { gl, canvas } = this;
    this.use(this.lineProgram, {
      matrix: look.matrix, canvas: [canvas.width, canvas.height], width, colour: [...colour, 1],
    });
    gl.bindVertexArray(this.lineArray);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.segments);
    for (const [name, offset] of [["start", 0], ["end", 12]]) {
      const location = gl.getAttribLocation(this.lineProgram.handle, name);
      gl.vertexAttribPointer(location, 3, gl.FLOAT, false, 24, first * EDGES.length * 24 + offset);
    }
    gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, count * EDGES.length);
  }

  /** The camera whose frustum is at a place of the canvas (CSS pixels), the nearest one; null for none. */
  cameraAt(look, x, y) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    let best = null;
    let nearest = Infinity;
    if (!this.frustum) return best;
    this.cameras.forEach((_, index) => {
      const seen = this.outline(index).map((point) => project(look.matrix, point, width, height));
      if (seen.includes(null)) return;
      const near = Math.hypot(seen[0][0] - x, seen[0][1] - y) < 10;
      if (seen[0][2] < nearest && (near || isInside(seen.slice(1), x, y) || this.inSides(seen, x, y))) {
        best = index;
        nearest = seen[0][2];
      }
    });
    return best;
  }

  inSides([centre, ...corners], x, y) {
    return corners.some((corner, i) => isInside([centre, corner, corners[(i + 1) % 4]], x, y));
  }

  /** The point nearest to a place of the canvas, within 12 pixels; null for none. */
  pointAt(look, display, x, y) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const { xyz, error, track } = this.points;
    let best = null;
    let nearest = 12;
    for (let i = 0; i < track.length; i++) {
      if (track[i] < display.shortest || error[i] > display.largest) continue;
      const point = [xyz[3 * i], xyz[3 * i + 1], xyz[3 * i + 2]];
      const seen = project(look.matrix, point, width, height);
      const away = seen ? Math.hypot(seen[0] - x, seen[1] - y) : Infinity;
      if (away < nearest) {
        nearest = away;
        best = point;
      }
    }
    return best;
  }
}

/** Whether a place is inside a convex outline on the screen. */
function isInside(outline, x, y) {
  const sides = outline.map((a, i) => {
    const b = outline[(i + 1) % outline.length];
    return Math.sign((b[0] - a[0]) * (y - a[1]) - (b[1] - a[1]) * (x - a[0]));
  });
  return sides.every((side) => side >= 0) || sides.every((side) => side <= 0);
}
