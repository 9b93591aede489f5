// The page: photographs in, matches on the screen; every control asks the server for matches anew.

import { drawHighlight, drawKeypoints, drawMatches, drawPhotographs, layout, matchAt, prepare } from "./stage.js";

const $ = (id) => document.getElementById(id);
const METHODS = ["sift", "raw", "augmented"];
const STACK_BELOW = 560; // CSS pixels of width under which the photographs stand one above the other
const LINES = 160, CARD_LINES = 90; // drawn at most of a result; more would hide the photographs
const PAUSE = 40; // milliseconds that a control has to rest before its value is used
const STAGES = {
  read: "read", detect: "detect keypoints", describe: "describe keypoints", regional: "regional network",
  sift: "SIFT descriptors", augment: "add context", match: "match", verify: "verify geometry",
};

const state = {
  images: [null, null], // as the server describes them
  pictures: [null, null], // what is drawn
  heat: [null, null],
  results: null, // of the three methods
  match: null, // index of the match that is looked at
  plan: null,
  turn: [0, 0], // counts what was put into each slot, so that a late answer does not replace a newer one
  wantedBudget: 2048,
  patchNote: "turned and scaled with the keypoint",
};

const modelReady = ask("/api/model");

// ---- talking to the server

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer: is contextdesc demo still running?");
  }
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

function picture(path) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => reject(new Error("a picture did not load: reload the page"));
    image.src = path;
  });
}

// ---- photographs

async function addFiles(files, slot) {
  const taken = [...files].slice(0, 2);
  const first = taken.length === 2 ? 0 : slot;
  await Promise.all(taken.map((file, index) => addFile(file, first + index)));
}

async function addFile(file, slot) {
  const turn = takeSlot(slot, `reading ${file.name} …`);
  try {
    const { max_bytes: limit } = await modelReady;
    const most = `${Math.round(limit / 1e6)} MB`;
    if (file.size > limit) throw new Error(`${file.name}: files of more than ${most} are not taken`);
    const options = { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } };
    await setImage(slot, turn, await ask(`/api/images?name=${encodeURIComponent(file.name)}`, options));
  } catch (error) {
    fail(slot, turn, error);
  }
}

async function addSamples() {
  const turns = [0, 1].map((slot) => takeSlot(slot, "the sample pair …"));
  try {
    const images = await ask("/api/samples", { method: "POST" });
    await Promise.all(images.map((image, slot) => setImage(slot, turns[slot], image)));
  } catch (error) {
    turns.forEach((turn, slot) => fail(slot, turn, error));
  }
}

function takeSlot(slot, message) {
  state.turn[slot] += 1;
  setBusy(slot, true, message);
  return state.turn[slot];
}

async function setImage(slot, turn, image) {
  const path = `/api/images/${image.id}/picture`, loaded = await picture(path);
  if (turn !== state.turn[slot]) return;
  state.pictures[slot] = loaded;
  state.images[slot] = image;
  state.heat[slot] = null;
  state.results = state.match = null;
  const element = slotElement(slot), thumb = element.querySelector("img");
  thumb.src = path;
  thumb.hidden = false;
  element.classList.add("filled");
  setBusy(slot, false);
  await settle();
}

function fail(slot, turn, error) {
  if (turn !== state.turn[slot]) return;
  slotElement(slot).querySelector(".error").textContent = error.message;
  setBusy(slot, false);
  settle();
}

// When both slots have come to rest, match what is in them.
async function settle() {
  if (state.results || !state.images.every(Boolean) || document.querySelector(".slot.busy")) return;
  fitBudget();
  $("show-heat").disabled = !state.images.every((image) => image.has_matchability);
  await rematch();
  await showHeat();
}

function setBusy(slot, busy, message = "") {
  const element = slotElement(slot), image = state.images[slot];
  element.classList.toggle("busy", busy);
  if (busy) element.querySelector(".error").textContent = "";
  if (image) {
    element.querySelector(".name").textContent = image.name;
    element.querySelector(".name").title = image.name;
  }
  const invitation = "drop it here, or choose a file";
  const idle = image ? `${image.size.join(" × ")}, ${image.keypoints.length} keypoints` : invitation;
  element.querySelector(".detail").textContent = busy ? message : idle;
  const anyBusy = document.querySelector(".slot.busy") !== null;
  $("stage").classList.toggle("busy", anyBusy);
  $("samples").disabled = anyBusy;
  if (anyBusy && !state.results) $("counts").textContent = "Finding and describing keypoints …";
}

const slotElement = (slot) => document.querySelector(`[data-slot="${slot}"]`);

// ---- matching

let asked = null, timer = 0;

function fitBudget() {
  const budget = $("budget"), most = Math.max(...state.images.map((image) => image.keypoints.length));
  budget.max = Math.max(128, Math.ceil(most / 64) * 64);
  budget.value = Math.min(state.wantedBudget, budget.max);
  showValues();
}

const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`).value;
const shownResult = () => state.results?.[METHODS.indexOf(chosen("method"))];
const shows = () => ({ inliers: $("show-inliers").checked, outliers: $("show-outliers").checked });

function query(extra) {
  const [first, second] = state.images.map((image) => image.id);
  return new URLSearchParams({ first, second, budget: $("budget").value, ratio: $("ratio").value, ...extra });
}

function rematchSoon() {
  showValues();
  clearTimeout(timer);
  timer = setTimeout(rematch, PAUSE);
}

async function rematch() {
  if (!state.images.every(Boolean)) return;
  asked?.abort();
  const mine = asked = new AbortController();
  document.body.classList.add("waiting");
  try {
    const answer = await ask(`/api/match?${query({ context: chosen("context") })}`, { signal: mine.signal });
    state.results = answer.results;
    $("snippet").textContent = answer.snippet;
    $("problem").textContent = "";
    showResults();
  } catch (error) {
    if (error.name !== "AbortError") $("problem").textContent = error.message;
  } finally {
    if (mine === asked) document.body.classList.remove("waiting");
  }
}

// ---- showing

function showValues() {
  $("budget-value").textContent = $("budget").value;
  $("ratio-value").textContent = Number($("ratio").value).toFixed(2);
}

function showResults() {
  for (const element of document.querySelectorAll("[data-needs-result]")) element.hidden = false;
  const context = chosen("context");
  const names = { none: "no context chosen", both: "visual and geometric context" };
  $("augmented-what").textContent = names[context] ?? `${context} context`;
  $("stage").classList.remove("empty");
  showShown();
  showCards();
  showTimes();
}

// What depends on which of the three results is shown.
function showShown() {
  const result = shownResult();
  if (!result) return;
  const matches = result.matches.length, probability = $("probability");
  $("verdict").dataset.verdict = result.verdict;
  $("verdict").textContent = result.verdict[0].toUpperCase() + result.verdict.slice(1);
  probability.hidden = result.probability === null;
  if (result.probability !== null) probability.textContent = `probability ${result.probability.toFixed(3)}`;
  const agree = " matches agree with one camera geometry";
  $("counts").replaceChildren(bold(result.inlier_count), " of ", bold(matches), agree);
  const empty = state.images.filter((_, side) => result.keypoints[side] === 0).map((image) => image.name);
  if (empty.length) $("counts").textContent = `No keypoints in ${empty.join(" and ")}: nothing to match there.`;

  const method = { sift: "sift", raw: "none", augmented: chosen("context") }[chosen("method")];
  for (const link of document.querySelectorAll("a[download]")) {
    link.href = `/api/files/${link.download}?${query({ method })}`;
  }
  $("match").max = Math.max(1, matches);
  $("match").disabled = matches === 0;
  redraw();
  lookAt(matches ? Math.min(state.match ?? bestMatch(result), matches - 1) : null);
}

// The inlier of largest keypoints: there is most to see.
function bestMatch(result) {
  const size = (row, side) => state.images[side].keypoints[row][2];
  const value = (index) => (result.inliers[index] ? 1e6 : 0) + Math.min(...result.matches[index].map(size));
  return result.matches.reduce((best, _, index) => value(index) > value(best) ? index : best, 0);
}

function bold(text) {
  const element = document.createElement("b");
  element.textContent = text;
  return element;
}

function redraw() {
  const result = shownResult();
  if (!result) return;
  const width = $("stage").clientWidth, stacked = width < STACK_BELOW;
  const height = Math.max(320, window.innerHeight * (stacked ? 1.1 : 0.7));
  const plan = state.plan = layout(state.images.map((image) => image.size), width, height, stacked);
  const context = prepare($("picture"), plan);
  const heat = $("show-heat").checked && state.heat.every(Boolean);
  drawPhotographs(context, plan, state.images, state.pictures);
  if (heat) drawPhotographs(context, plan, state.images, state.heat, 0.62);
  if ($("show-keypoints").checked) drawKeypoints(context, plan, state.images, result.keypoints);
  const every = Math.max(1, Math.ceil(result.matches.length / LINES));
  drawMatches(context, plan, state.images, result, shows(), every, 1.4);
  $("drawn").textContent = every > 1 ? `one match in ${every} is drawn` : "";
  const label = `Both photographs with ${result.inlier_count} inliers of ${result.matches.length} matches`;
  $("picture").setAttribute("aria-label", label);
  prepare($("highlight"), plan);
  $("highlight").style.left = `${$("picture").offsetLeft}px`;
  highlight();
}

function highlight() {
  drawHighlight($("highlight").getContext("2d"), state.plan, state.images, shownResult(), state.match);
}

function showCards() {
  const most = Math.max(1, ...state.results.map((result) => result.inlier_count));
  const every = Math.ceil(most / CARD_LINES); // the same for all three, so that their density compares
  document.querySelectorAll(".card").forEach((card, index) => {
    const result = state.results[index], matches = result.matches.length;
    const canvas = card.querySelector("canvas"), width = card.clientWidth - 20;
    const plan = layout(state.images.map((image) => image.size), width, 220, false);
    const context = prepare(canvas, plan);
    context.filter = "grayscale(1) brightness(0.8)";
    drawPhotographs(context, plan, state.images, state.pictures);
    context.filter = "none";
    drawMatches(context, plan, state.images, result, { inliers: true, outliers: false }, every, 0.9);
    const share = matches ? `, ${Math.round(100 * result.inlier_ratio)} %` : "";
    card.querySelector(".numbers").replaceChildren(bold(result.inlier_count), ` inliers of ${matches} matches${share}`);
    card.querySelector(".bar i").style.width = `${100 * result.inlier_count / most}%`;
  });
}

function showTimes() {
  const once = {}, each = {};
  for (const image of state.images) add(once, image.seconds);
  for (const result of state.results) add(each, result.seconds);
  const longest = Math.max(...Object.values(once), ...Object.values(each));
  showStages($("once"), "once, for both photographs", once, longest);
  showStages($("each-time"), "whenever a control moves, for all three descriptors", each, longest);
}

function add(total, seconds) {
  for (const [stage, value] of Object.entries(seconds)) total[stage] = (total[stage] ?? 0) + value;
}

const duration = (seconds) => seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;

function showStages(body, title, seconds, longest) {
  const group = document.createElement("tr"), head = document.createElement("th");
  head.colSpan = 2;
  head.scope = "rowgroup";
  head.className = "group";
  head.textContent = `${title}: ${duration(Object.values(seconds).reduce((sum, value) => sum + value, 0))}`;
  group.append(head);
  const rows = Object.entries(seconds).map(([stage, value]) => {
    const row = document.createElement("tr"), name = document.createElement("th"), cell = document.createElement("td");
    const meter = document.createElement("div"), bar = document.createElement("i");
    name.scope = "row";
    name.textContent = STAGES[stage];
    meter.className = "meter";
    bar.style.width = `${70 * value / longest}%`;
    meter.append(bar, duration(value));
    cell.append(meter);
    row.append(name, cell);
    return row;
  });
  body.replaceChildren(group, ...rows);
}

// ---- one match

function lookAt(index) {
  const result = shownResult(), slider = $("match");
  if (!result) return;
  state.match = index;
  [0, 1].forEach((side) => { $(`patch-${side}`).hidden = index === null; });
  if (index === null) {
    $("match-note").textContent = "No match to look at.";
    $("match-kind").textContent = "";
  } else {
    const kind = result.inliers[index] ? "inlier" : "outlier", similarity = result.similarity[index].toFixed(2);
    result.matches[index].forEach((row, side) => {
      const path = `/api/images/${state.images[side].id}/patches/${row}`;
      if ($(`patch-${side}`).getAttribute("src") !== path) $(`patch-${side}`).src = path;
    });
    const title = `${index + 1} of ${result.matches.length}`;
    slider.value = index + 1;
    slider.setAttribute("aria-valuetext", `match ${title}, ${kind}, similarity ${similarity}`);
    const swatch = document.createElement("i");
    swatch.className = `line ${kind}`;
    $("match-kind").replaceChildren(swatch, kind);
    $("match-note").textContent = `Match ${title}, similarity ${similarity}: 32 × 32 pixels, ${state.patchNote}.`;
  }
  highlight();
}

function pointAt(event) {
  const result = shownResult();
  if (!result) return;
  const box = $("picture").getBoundingClientRect();
  const point = [event.clientX - box.left, event.clientY - box.top];
  const found = matchAt(state.plan, state.images, result, shows(), point);
  if (found !== null && found !== state.match) lookAt(found);
}

// ---- matchability

async function showHeat() {
  const images = [...state.images], box = $("show-heat");
  if (box.disabled || !box.checked || state.heat.every(Boolean) || !images.every(Boolean)) return redraw();
  $("stage").classList.add("busy");
  try {
    const heat = await Promise.all(images.map((image) => picture(`/api/images/${image.id}/matchability`)));
    if (images.every((image, side) => image === state.images[side])) state.heat = heat;
    redraw();
  } catch {
    $("problem").textContent = "the matchability of these photographs is not to be had; the terminal may tell why";
  } finally {
    $("stage").classList.remove("busy");
  }
}

// ---- wiring

function setDefaults(model) {
  state.wantedBudget = 2048;
  $("budget").value = Math.min(state.wantedBudget, $("budget").max);
  $("ratio").value = model.ratio;
  document.querySelector(`input[name="context"][value="${model.contexts.at(-1)}"]`).checked = true;
  rematchSoon();
}

async function copySnippet() {
  if (!navigator.clipboard) return getSelection().selectAllChildren($("snippet")); // not under a plain http name
  await navigator.clipboard.writeText($("snippet").textContent);
  $("copy").textContent = "Copied";
  setTimeout(() => { $("copy").textContent = "Copy"; }, 1500);
}

function wire() {
  document.querySelectorAll(".slot").forEach((element, slot) => {
    const input = element.querySelector("input");
    input.addEventListener("change", async () => {
      await addFiles(input.files, slot);
      input.value = "";
    });
  });
  $("samples").addEventListener("click", addSamples);
  $("budget").addEventListener("input", () => { state.wantedBudget = Number($("budget").value); rematchSoon(); });
  $("ratio").addEventListener("input", rematchSoon);
  document.querySelector("#context").addEventListener("change", rematchSoon);
  document.querySelector(".cards").addEventListener("change", () => { state.match = null; showShown(); });
  for (const id of ["show-inliers", "show-outliers", "show-keypoints"]) $(id).addEventListener("change", redraw);
  $("show-heat").addEventListener("change", showHeat);
  $("match").addEventListener("input", () => lookAt(Number($("match").value) - 1));
  $("picture").addEventListener("pointermove", pointAt);
  $("picture").addEventListener("pointerdown", pointAt);
  $("reset").addEventListener("click", async () => setDefaults(await modelReady));
  $("copy").addEventListener("click", copySnippet);

  let inside = 0;
  window.addEventListener("dragenter", (event) => { event.preventDefault(); inside += 1; $("drop").hidden = false; });
  window.addEventListener("dragleave", () => { inside -= 1; $("drop").hidden = inside <= 0; });
  window.addEventListener("dragover", (event) => event.preventDefault());
  window.addEventListener("drop", (event) => {
    event.preventDefault();
    inside = 0;
    $("drop").hidden = true;
    const over = event.target.closest?.("[data-slot]");
    addFiles(event.dataTransfer.files, over ? Number(over.dataset.slot) : slotFor(event.clientX));
  });
  new ResizeObserver(() => { if (state.results) { redraw(); showCards(); } }).observe($("stage"));
}

// A photograph dropped beside the slots: into the empty one, else into the nearer half.
function slotFor(x) {
  const empty = state.images.indexOf(null);
  return empty >= 0 ? empty : x < window.innerWidth / 2 ? 0 : 1;
}

async function start() {
  wire();
  let model;
  try {
    model = await modelReady;
  } catch (error) {
    $("model").textContent = "no model";
    $("problem").textContent = error.message;
    return;
  }
  $("model").textContent = `model ${model.name}, ${model.version}`;
  for (const radio of document.querySelectorAll('input[name="context"]')) {
    radio.closest("label").hidden = !model.contexts.includes(radio.value);
  }
  if (model.base === "local") state.patchNote = "as the network sees them";
  setDefaults(model);
  $("samples").hidden = !model.samples;
  $("no-samples").hidden = model.samples;
  if (model.samples && state.turn.every((turn) => turn === 0)) await addSamples();
}

start();
