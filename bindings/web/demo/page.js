// The page: controls, figures and the map of what stayed. The work is worker.js's.
import { drawFacts, drawStrip } from "./map.js";
import { budgets, policies } from "./policies.js";

const $ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const address = new URLSearchParams(location.search);
const nTokens = Number(address.get("tokens") ?? 4096);
const seed = address.get("seed") ?? "1";
const sizes = budgets.filter((budget) => budget < nTokens);

const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
const results = new Map(); // by key()
const state = { text: "snapkv", budget: sizes.includes(512) ? 512 : sizes.at(-1), device: "wasm",
                ready: null, pending: null };
const key = (text) => `${text} ${text === "none" ? 0 : state.budget} ${state.device}`;

// ---- Work: what is looked at first, then the rest of the table ----

function request() {
  document.body.dataset.state = "busy";
  show();
  next();
}

function next() {
  if (state.pending !== null) return;
  const wanted = [state.text, ...policies.map(({ text }) => text)]
    .find((text) => !results.has(key(text)));
  if (wanted === undefined) {
    document.body.dataset.state = "done";
    return;
  }
  state.pending = key(wanted);
  worker.postMessage({ type: "evaluate", id: state.pending, text: wanted, budget: state.budget,
                       wantsGpu: state.device === "webgpu" });
}

worker.onmessage = ({ data }) => {
  switch (data.type) {
    case "progress":
      $("progress").value = data.done / data.nTokens;
      $("progress-text").textContent =
        `The model has read ${number.format(data.done)} of ${number.format(data.nTokens)} tokens.`;
      break;
    case "ready":
      begin(data);
      break;
    case "result":
      results.set(data.id, data);
      state.pending = null;
      show();
      next();
      break;
    case "lost": // the GPU; what was asked of it is asked of the core
      if (data.id === state.pending) state.pending = null;
      state.ready.gpu = undefined;
      state.ready.reason = data.reason;
      offerDevices();
      request();
      break;
    default:
      fail(data.message);
  }
};
worker.onerror = (event) => fail(event.message ?? "the worker does not start");

function fail(message) {
  document.body.dataset.state = "error";
  $("reading").hidden = true;
  $("problem").hidden = false;
  $("problem").textContent = `The page stopped: ${message}.`;
}

// ---- Controls ----

function begin(ready) {
  state.ready = ready;
  $("version").textContent = ready.version;
  $("progress").hidden = true;
  $("progress-text").textContent = `The model has read ${number.format(nTokens)} tokens in ` +
    `${ready.seconds.toFixed(1)} s, by WebAssembly.`;
  for (const part of ["budget-part", "policy-part", "device-part"]) $(part).disabled = false;
  offerDevices();
  request();
}

function offerDevices() {
  const { gpu, reason } = state.ready;
  state.device = gpu === undefined ? "wasm" : "webgpu";
  for (const input of document.querySelectorAll("[name=device]")) {
    input.checked = input.value === state.device;
    input.disabled = input.value === "webgpu" && gpu === undefined;
  }
  $("device-hint").textContent = gpu === undefined
    ? `WebAssembly: ${reason}.`
    : `WebGPU is ${gpu}. A policy without a kernel there runs on WebAssembly.`;
}

function makeControls() {
  for (const span of document.querySelectorAll(".n-tokens")) span.textContent = number.format(nTokens);
  document.querySelector(".last-position").textContent = number.format(nTokens - 1);
  $("budget").max = sizes.length - 1;
  $("budget").value = sizes.indexOf(state.budget);
  $("policies").append(...policies.map(({ text, name, does }) => {
    const label = document.createElement("label");
    const input = Object.assign(document.createElement("input"),
                                { type: "radio", name: "policy", value: text,
                                  checked: text === state.text });
    const words = document.createElement("div");
    words.append(Object.assign(document.createElement("b"), { textContent: name }), " ",
                 Object.assign(document.createElement("span"), { textContent: does }));
    label.append(input, words);
    return label;
  }));
  $("controls").addEventListener("input", ({ target }) => {
    if (target.name === "policy") state.text = target.value;
    else if (target.name === "device") state.device = target.value;
    else state.budget = sizes[Number(target.value)];
    request();
  });
  $("controls").addEventListener("submit", (event) => event.preventDefault());
}

function choose(text) {
  document.querySelector(`[name=policy][value="${text}"]`).checked = true;
  state.text = text;
  request();
}

// ---- Figures ----

const share = (part, whole) => `${number.format(Math.round((1000 * part) / whole) / 10)}\u00a0%`;
const milliseconds = (ms) => (ms < 10 ? ms.toFixed(1) : ms.toFixed(0));

function count(result, asked) {
  const all = state.ready.needles.map((needle, i) => [needle.asked, result.found[i]])
    .filter(([isAsked]) => isAsked === asked);
  return { n: all.filter(([, found]) => found).length, of: all.length };
}

function show() {
  const { budget } = state;
  const part = document.createElement("small");
  part.textContent = `tokens per KV head, ${share(budget, nTokens)}`;
  $("budget-text").replaceChildren(number.format(budget), part);
  const { name, does } = policies.find(({ text }) => text === state.text);
  $("policy-hint").textContent = `${name} ${does}.`;
  $("budget").setAttribute("aria-valuetext", `${budget} tokens`);
  $("table-budget").textContent = `${number.format(budget)} tokens`;
  const result = results.get(key(state.text));
  $("result").setAttribute("aria-busy", String(result === undefined));
  if (result !== undefined) showResult(result);
  if (state.ready !== null) showTable();
}

function showResult(result) {
  const { bytesBefore, bytesAfter, onGpu } = result;
  $("bytes").textContent = `${(bytesAfter / 2 ** 20).toFixed(2)} MiB`;
  $("bytes-more").textContent =
    `${number.format(bytesAfter)} of ${number.format(bytesBefore)} bytes`;
  for (const [id, asked] of [["asked", true], ["unasked", false]]) {
    const { n, of } = count(result, asked);
    $(id).textContent = `${n} of ${of}`;
    $(`${id}-more`).textContent = `recall ${(n / of).toFixed(2)}`;
  }
  $("time").textContent = `${milliseconds(result.milliseconds)} ms`;
  $("time-more").textContent = onGpu ? "on WebGPU" : "on WebAssembly";
  showMap(result);
}

let drawn = null; // what the map shows, to draw it again
function showMap(result) {
  const rows = [];
  const add = (className, text, description) => {
    const label = Object.assign(document.createElement("span"), { textContent: text });
    const canvas = Object.assign(document.createElement("canvas"), { className });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", description);
    $("map").append(label, canvas);
    return canvas;
  };
  $("map").replaceChildren();
  for (const asked of [true, false]) {
    const facts = state.ready.needles.map(({ position, asked: isAsked }, i) =>
      ({ position, isAsked, found: result.found[i] })).filter(({ isAsked }) => isAsked === asked);
    const { n, of } = count(result, asked);
    const name = asked ? "asked for" : "other facts";
    const canvas = add("facts", name, `${name}: the model finds ${n} of ${of}`);
    rows.push(() => drawFacts(canvas, facts, nTokens));
  }
  result.kept.forEach((heads, layer) => heads.forEach((positions, head) => {
    const name = `layer ${layer}, KV head ${head}`;
    const canvas = add("strip", name,
                       `${name}: ${positions.length} of ${nTokens} positions stayed`);
    canvas.title = `${number.format(positions.length)} of ${number.format(nTokens)} stayed`;
    rows.push(() => drawStrip(canvas, positions, nTokens));
  }));
  drawn = () => rows.forEach((draw) => draw());
  drawn();
}

function showTable() {
  const bar = (n, of) => {
    const cell = document.createElement("td");
    const box = Object.assign(document.createElement("div"), { className: "bar" });
    const line = document.createElement("i");
    line.style.setProperty("--share", `${(100 * n) / of}%`);
    box.append(line, `${n} of ${of}`);
    cell.append(box);
    return cell;
  };
  $("rows").replaceChildren(...policies.map(({ text, name }) => {
    const row = document.createElement("tr");
    row.dataset.policy = text;
    if (text === state.text) row.setAttribute("aria-current", "true");
    const first = document.createElement("td");
    const button = Object.assign(document.createElement("button"),
                                 { type: "button", textContent: name });
    button.addEventListener("click", () => choose(text));
    first.append(button);
    row.append(first);
    const result = results.get(key(text));
    if (result === undefined) {
      for (let i = 0; i < 4; ++i) {
        row.append(Object.assign(document.createElement("td"), { textContent: "…" }));
      }
      return row;
    }
    for (const asked of [true, false]) {
      const { n, of } = count(result, asked);
      row.append(bar(n, of));
    }
    row.append(
      Object.assign(document.createElement("td"),
                    { className: "number", textContent: milliseconds(result.milliseconds) }),
      Object.assign(document.createElement("td"),
                    { textContent: result.onGpu ? "WebGPU" : "WebAssembly" }));
    return row;
  }));
}

makeControls();
show();
new ResizeObserver(() => drawn?.()).observe($("map"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn?.());
worker.postMessage({ type: "start", nTokens, seed });
