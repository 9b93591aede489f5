// Draws two photographs with their keypoints and matches on a canvas, and finds the match under the pointer.

const INLIER = "86, 180, 233", OUTLIER = "213, 94, 0", KEYPOINT = "240, 228, 66";
const GAP = 8; // CSS pixels between the photographs
const REACH = 9; // CSS pixels from the pointer to a line that counts as pointed at

// Where the photographs go in `width` x at most `height` CSS pixels: beside each other, or, if `stacked`,
// one above the other. Gives the canvas' size and, per photograph, its corner and CSS pixels per image pixel.
export function layout(sizes, width, height, stacked) {
  const [[w0, h0], [w1, h1]] = sizes;
  if (stacked) {
    const common = Math.min(width, (height - GAP) / (h0 / w0 + h1 / w1));
    const scale = [common / w0, common / w1];
    const below = h0 * scale[0] + GAP;
    return { width: common, height: below + h1 * scale[1], scale, corner: [[0, 0], [0, below]] };
  }
  const common = Math.min(height, (width - GAP) / (w0 / h0 + w1 / h1));
  const scale = [common / h0, common / h1];
  const beside = w0 * scale[0] + GAP;
  return { width: beside + w1 * scale[1], height: common, scale, corner: [[0, 0], [beside, 0]] };
}

// A context that draws in CSS pixels on a canvas of the plan's size, sharp on every screen.
export function prepare(canvas, plan) {
  const density = window.devicePixelRatio || 1;
  canvas.width = Math.round(plan.width * density);
  canvas.height = Math.round(plan.height * density);
  canvas.style.width = `${plan.width}px`;
  canvas.style.height = `${plan.height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(density, 0, 0, density, 0, 0);
  return context;
}

// Keypoint coordinates have the centre of the first pixel at 0; a canvas has its corner there.
export function place(plan, side, [x, y]) {
  const scale = plan.scale[side], [left, top] = plan.corner[side];
  return [left + (x + 0.5) * scale, top + (y + 0.5) * scale];
}

export function drawPhotographs(context, plan, images, pictures, opacity = 1) {
  context.globalAlpha = opacity;
  pictures.forEach((picture, side) => {
    if (!picture) return;
    const [width, height] = images[side].size, [left, top] = plan.corner[side], scale = plan.scale[side];
    context.drawImage(picture, left, top, width * scale, height * scale);
  });
  context.globalAlpha = 1;
}

export function drawKeypoints(context, plan, images, counts) {
  images.forEach((image, side) => {
    context.strokeStyle = `rgba(${KEYPOINT}, 0.75)`;
    context.lineWidth = 1;
    context.beginPath();
    for (const keypoint of image.keypoints.slice(0, counts[side])) traceKeypoint(context, plan, side, keypoint);
    context.stroke();
  });
}

// A circle as large as the keypoint, and a radius in its direction.
function traceKeypoint(context, plan, side, [x, y, size, angle], smallest = 1.5) {
  const [cx, cy] = place(plan, side, [x, y]), radius = Math.max(smallest, size / 2 * plan.scale[side]);
  const turn = angle * Math.PI / 180;
  context.moveTo(cx + radius, cy);
  context.arc(cx, cy, radius, 0, 2 * Math.PI);
  context.moveTo(cx, cy);
  context.lineTo(cx + radius * Math.cos(turn), cy + radius * Math.sin(turn));
}

export function ends(plan, images, result, index) {
  return result.matches[index].map((row, side) => place(plan, side, images[side].keypoints[row]));
}

// Every so many-th match of the kinds to `show`, as lines with dots at their ends; inliers on top.
export function drawMatches(context, plan, images, result, show, every, width) {
  for (const [wanted, inlier] of [[show.outliers, false], [show.inliers, true]]) {
    if (!wanted) continue;
    const kind = result.inliers.flatMap((flag, index) => flag === inlier ? [index] : []);
    const rows = kind.filter((_, rank) => rank % every === 0);
    const opacity = inlier ? 0.7 : 0.85;
    const colour = inlier ? INLIER : OUTLIER;
    const dot = width * (inlier ? 1.3 : 1.1);
    context.strokeStyle = `rgba(${colour}, ${opacity})`;
    context.lineWidth = inlier ? width : width * 0.75;
    context.setLineDash(inlier ? [] : [5, 4]);
    context.beginPath();
    for (const index of rows) {
      const [from, to] = ends(plan, images, result, index);
      context.moveTo(...from);
      context.lineTo(...to);
    }
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = `rgb(${colour})`;
    context.beginPath();
    for (const index of rows) {
      for (const [x, y] of ends(plan, images, result, index)) {
        context.moveTo(x + dot, y);
        context.arc(x, y, dot, 0, 2 * Math.PI);
      }
    }
    context.fill();
  }
}

export function drawHighlight(context, plan, images, result, index) {
  context.clearRect(0, 0, plan.width, plan.height);
  if (index === null) return;
  const [from, to] = ends(plan, images, result, index);
  const trace = () => {
    context.beginPath();
    context.moveTo(...from);
    context.lineTo(...to);
    context.stroke();
    context.beginPath();
    result.matches[index].forEach((row, side) => traceKeypoint(context, plan, side, images[side].keypoints[row], 6));
    context.stroke();
  };
  context.lineCap = "round";
  context.strokeStyle = "rgba(255, 255, 255, 0.95)";
  context.lineWidth = 6;
  trace();
  context.strokeStyle = result.inliers[index] ? "#0072b2" : `rgb(${OUTLIER})`;
  context.lineWidth = 3;
  trace();
}

// The shown match whose line is nearest to a point in CSS pixels, or null.
export function matchAt(plan, images, result, show, [x, y]) {
  let best = null, nearest = REACH;
  result.matches.forEach((_, index) => {
    if (!(result.inliers[index] ? show.inliers : show.outliers)) return;
    const [[ax, ay], [bx, by]] = ends(plan, images, result, index);
    const dx = bx - ax, dy = by - ay;
    const along = Math.min(1, Math.max(0, ((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy || 1)));
    const distance = Math.hypot(x - ax - along * dx, y - ay - along * dy);
    if (distance < nearest) [best, nearest] = [index, distance];
  });
  return best;
}
