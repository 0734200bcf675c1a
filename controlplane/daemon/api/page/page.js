"use strict";
// What all parts of the page share, and what the daemon tells at /live: each part hears it as the event "told".
// Everything is in this folder: the page works without internet.

const SILENT_S = 10;         // without a word: more than a busy machine makes of it
const TRY_AGAIN_MS = 3000;
const PHASES = { held: "waiting" };   // what the API calls otherwise than the page
const DECISIONS = { retain: "pin", hold: "wait at the gate", admit: "let in", nobody: "undecided", place: "move" };
const kindOf = (kind) => DECISIONS[kind] ?? phrase(kind);
const byId = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const percent = (ratio) => `${Math.round(100 * ratio)}%`;
const phrase = (name) => name.replaceAll("_", " ");

// The latest word of the daemon: the wall clock of its machine, and its own, which may run faster.
const clock = { atMs: Date.now(), heardMs: Date.now(), nowNs: 0, scale: 1 };
const nowMs = () => clock.atMs + Date.now() - clock.heardMs;
const nowNs = () => clock.nowNs + clock.scale * 1e6 * (Date.now() - clock.heardMs);

function duration(ns) {
  const s = ns / 1e9;
  if (s <= 0) return "";
  if (s < 60) return `${s.toFixed(1)}s`;
  return s < 3600 ? `${Math.floor(s / 60)}m${String(Math.floor(s % 60)).padStart(2, "0")}s` : `${Math.floor(s / 3600)}h${Math.floor(s / 60 % 60)}m`;
}

// Seconds in the unit that fits, as `penstock regret` writes them.
function amount(s) {
  for (const [unitS, unit] of [[3600, "h"], [60, "min"]]) {
    if (Math.abs(s) >= unitS) return `${(s / unitS).toLocaleString("en", { maximumFractionDigits: Math.abs(s) < 10 * unitS ? 1 : 0 })} ${unit}`;
  }
  return `${s.toFixed(Math.abs(s) >= 0.05 ? 1 : 2)} s`;
}

const signedSeconds = (s) => `${s < 0 ? "−" : "+"}${amount(Math.abs(s))}`;

function tell(kind, text, className = "") {
  const element = document.createElement(kind);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

// Of text, or of texts and links.
function item(text, more) {
  const line = tell("li", "");
  line.append(...[text].flat());
  if (more) line.append(tell("small", more));
  return line;
}

// Leads to the program's time line.
function programLink(id) {
  const made = tell("a", id);
  made.href = `#program=${encodeURIComponent(id)}`;
  made.dataset.program = id;
  return made;
}

// A part that folds away opens by itself when there is something in it for the first time.
function fold(id, filled) {
  const part = byId(id), before = part.dataset.filled;
  part.dataset.filled = filled;
  if (before !== `${filled}`) part.open = filled;
}

function sheet(id, height) {
  const canvas = byId(id);
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "11px system-ui, sans-serif";
  return { pen, width, height, ink: getComputedStyle(document.body).color };
}

function ago(ms) {
  return ms < 90_000 ? `${Math.round(ms / 1000)} s ago` : `${(ms / 60_000).toLocaleString("en", { maximumFractionDigits: 1 })} min ago`;
}

function words({ status, time_scale: scale }) {
  const { window: w, pressure: p, config } = status;
  byId("node").textContent = status.node;
  document.title = `${p.programs_active} active, ${p.queue_length} waiting: ${status.node}`;
  const lead = status.stands_by ? "stands by: another daemon leads; " : status.fence ? `leads, by lease ${status.fence}; ` : "";
  const fast = scale === 1 ? "" : `; its clock runs ${scale} times as fast, which counts but for the plots' axes`;
  byId("summary").textContent = `${lead}preset ${status.preset}, configuration ${config.version}; ${p.programs_active} programs active, ${p.queue_length} waiting, ${status.programs} known${fast}`;
  byId("warnings").textContent = status.findings.map((each) => `${phrase(each.name)}: ${each.found}`).join("; ");
  byId("window-reason").textContent = `${w.limit || "no limit"}: ${w.reason}`;
  byId("pressure-words").textContent = `KV ${percent(p.kv_use_ratio)} of ${p.kv_total_blocks.toLocaleString()} blocks wanted, ${p.kv_retained_blocks.toLocaleString()} pinned; ${p.tools_active} tools running, ${p.tools_waiting} waiting, on ${p.cpus} CPUs ${percent(p.cpu_use_ratio)} used`;
}

let heardAt = Date.now(), everyS = 0;
// Not before the other scripts are there, which hear it: what is told while they load would be lost.
window.addEventListener("DOMContentLoaded", follow);
function follow() {
  let first = true;
  const source = new EventSource("/live");
  source.addEventListener("message", ({ data }) => {
    const detail = JSON.parse(data);
    heardAt = Date.now();
    everyS = detail.every_s;
    Object.assign(clock, { atMs: detail.at_ms, heardMs: heardAt, nowNs: detail.status.now_ns, scale: detail.time_scale });
    words(detail);
    window.dispatchEvent(new CustomEvent("told", { detail: { ...detail, first } }));
    first = false;
  });
  source.addEventListener("error", () => {  // by itself it does not ask again after an answer such as 503
    source.close();
    byId("warnings").textContent = "the daemon does not answer; trying again";
    setTimeout(follow, TRY_AGAIN_MS);
  });
}
// A daemon that is frozen, or behind a network that is gone, keeps the connection open: what is shown would look live.
setInterval(() => {
  const silentS = (Date.now() - heardAt) / 1000;
  if (silentS > Math.max(SILENT_S, 5 * everyS)) {
    byId("warnings").textContent = `the daemon does not answer: nothing was heard of it for ${silentS.toFixed(0)} s, and what is shown is of then`;
  }
}, 1000);
