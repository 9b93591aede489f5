
// Vectors are arrays of three numbers; matrices are 4 x 4, column by column, as WebGL has them.

const add = (a, b) => [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
const subtract = (a, b) => [a[0] - b[0], a[1] - b[1], a[2] - b[2]];
const times = (a, factor) => [a[0] * factor, a[1] * factor, a[2] * factor];
const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
const unit = (a) => times(a, 1 / (Math.hypot(...a) || 1));
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

function multiply(a, b) {
  const product = new Float32Array(16);
  for (let column = 0; column < 4; column++) {
    for (let row = 0; row < 4; row++) {
      for (let k = 0; k < 4; k++) product[4 * column + row] += a[4 * k + row] * b[4 * column + k];
    }
  }
  return product;
}

/** From the frame of an eye that looks along -z to clip space; `tangent` is of half the vertical angle. */
function perspective(tangent, aspect, near, far) {
  const depth = far - near;
  return [
    1 / (tangent * aspect), 0, 0, 0,
    0, 1 / tangent, 0, 0,
    0, 0, -(far + near) / depth, -1,
    0, 0, (-2 * far * near) / depth, 0,
  ];
}

/** From the world to the frame of an eye; `right`, `up` and `direction` are its axes. */
function eyeFromWorld(eye, right, up, direction) {
  return [
    right[0], up[0], -direction[0], 0,
    right[1], up[1], -direction[1], 0,
    right[2], up[2], -direction[2], 0,
    -dot(right, eye), -dot(up, eye), dot(direction, eye), 1,
  ];
}

/** Pixels [x, y] and depth of a point of the world in a canvas; null behind the eye. */
function project(matrix, point, width, height) {
  const [x, y, z] = point;
  const w = matrix[3] * x + matrix[7] * y + matrix[11] * z + matrix[15];
  if (w <= 0) return null;
  const clipX = matrix[0] * x + matrix[4] * y + matrix[8] * z + matrix[12];
  const clipY = matrix[1] * x + matrix[5] * y + matrix[9] * z + matrix[13];
  return [((clipX / w + 1) / 2) * width, ((1 - clipY / w) / 2) * height, w];
}
