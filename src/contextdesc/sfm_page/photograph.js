
// The chosen photograph with its keypoints: filled dots have a 3D point, open rings have none.

const WITH = "#56b4e9";
const WITHOUT = "#d55e00";

/** The photograph of an image as an element, once it is decoded; null if none is embedded. */
function loadPicture(image) {
  if (!image.picture) return Promise.resolve(null);
  const element = new Image();
  element.src = `data:image/jpeg;base64,${image.picture}`;
  return element.decode().then(() => element, () => null);
}

/** Draw a photograph and its keypoints as large as fits into a box of CSS pixels. */
function drawPhotograph(canvas, image, picture, kinds, boxWidth, boxHeight) {
  const [width, height] = picture ? [picture.naturalWidth, picture.naturalHeight] : image.size;
  const fit = Math.min(boxWidth / width, boxHeight / height);
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * fit * ratio));
  canvas.height = Math.max(1, Math.round(height * fit * ratio));
  canvas.style.width = `${canvas.width / ratio}px`;
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  if (picture) {
    context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  } else {
    context.fillStyle = "#2a3038";
    context.fillRect(0, 0, canvas.width, canvas.height);
  }
  const radius = ratio * clamp(canvas.width / ratio / 260, 1.4, 3.2);
  const seen = image.points.length;
  const each = (from, to, paint) => {
    for (let i = from; i < to; i++) {
      const x = (image.keypoints[2 * i] / 0xffff) * canvas.width;
      const y = (image.keypoints[2 * i + 1] / 0xffff) * canvas.height;
      context.beginPath();
      context.arc(x, y, radius, 0, 2 * Math.PI);
      paint();
    }
  };
  if (kinds.without) {
    context.lineWidth = 0.9 * ratio;
    context.strokeStyle = WITHOUT;
    each(seen, image.keypoints.length / 2, () => context.stroke());
  }
  if (kinds.with) {
    context.lineWidth = 1.2 * ratio;
    context.strokeStyle = "rgb(8 24 38 / 75%)";
    context.fillStyle = WITH;
    each(0, seen, () => {
      context.stroke();
      context.fill();
    });
  }
  canvas.setAttribute(
    "aria-label",
    `${image.name}: ${count(image.seen)} keypoints with a 3D point, ${count(image.total - image.seen)} without`,
  );
}

/** Names and values of what is known about an image. */
function factsOf(image) {
  const facts = [["size", image.size[0] ? `${image.size[0]} × ${image.size[1]}` : "unknown"]];
  if (!image.pose) return [["registered", image.reason ? `no: ${image.reason}` : "no"], ...facts];
  if (image.error !== null) facts.push(["mean error", `${image.error.toFixed(2)} px`]);
  if (image.track !== null) facts.push(["mean track", `${image.track.toFixed(2)} images`]);
  if (image.pose.focal !== null) facts.push(["focal length", `${count(Math.round(image.pose.focal))} px`]);
  facts.push(["camera", image.pose.model.toLowerCase().replaceAll("_", " ")]);
  return facts;
}

const count = (number) => number.toLocaleString("en");
