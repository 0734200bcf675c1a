"use strict";
// A stretch of time is chosen in the plots and replayed with something changed: the daemon does that, and tells at /live.
// Only a page that was opened with the daemon's key may ask for it: `penstock page` prints such an address.

const KEY = "penstock-key";
const DRAGGED_PX = 5;        // less is a click, which takes the choice back
const PLOTS = ["window-plot", "pressure-plot", "jct-plot", "ttft-plot"];
const FIGURES = { mean_jct_s: "mean completion time", p95_ttft_s: "first token, 95th percentile", hit_rate: "cache hit rate", makespan_s: "first arrival to last end" };
const SHARES = ["hit_rate"];
const UNDER_WAY = ["waits", "runs"];
const FAR_OFF = 1 / 3;       // a replay that misses by more is not to be believed
const form = byId("what-if-form");
let stretch = null;          // {from, to} by the browser's clock, in milliseconds
let clock = null;            // the daemon's beside the browser's: {at, ns, scale}
let told = null;             // what the daemon said last
let refused = "";            // why the last question was not taken
let shownAnswer = null;      // for which question the tables were made, so that a selected text stays selected

// The key comes behind the address' #, which no server sees, and is taken out of it at once.
function keep() {
  const parts = new URLSearchParams(location.hash.slice(1));
  if (!parts.has("key")) return;
  sessionStorage.setItem(KEY, parts.get("key"));
  parts.delete("key");
  const rest = parts.toString();
  history.replaceState(null, "", location.pathname + (rest ? `#${rest}` : ""));
  refused = "";
}

const toNs = (ms) => Math.round(clock.ns - (clock.at - ms) * 1e6 * clock.scale);
const toMs = (ns) => clock.at - (clock.ns - ns) / 1e6 / clock.scale;

// As an input of the kind datetime-local has it.
function local(ms) {
  return new Date(ms - new Date(ms).getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

// Choosing

function choose(from, to) {
  stretch = { from: Math.min(from, to), to: Math.max(from, to) };
  form.elements.from.value = local(stretch.from);
  form.elements.to.value = local(stretch.to);
  mark();
}

function forget() {
  stretch = null;
  form.elements.from.value = form.elements.to.value = "";
  mark();
}

// The chosen stretch over each plot, which move on below it.
function mark() {
  const now = Date.now(), spanned = span(now);
  for (const id of PLOTS) {
    const canvas = byId(id), band = canvas.parentElement.querySelector(".chosen");
    const room = canvas.clientWidth - LEFT - 4;
    const x = (at) => LEFT + room * Math.min(1, Math.max(0, 1 - (now - at) / spanned));
    band.hidden = !stretch || stretch.to < now - spanned;
    if (band.hidden) continue;
    band.style.left = `${canvas.offsetLeft + x(stretch.from)}px`;
    band.style.width = `${Math.max(1, x(stretch.to) - x(stretch.from))}px`;
    band.style.top = `${canvas.offsetTop}px`;
    band.style.height = `${canvas.clientHeight - 16}px`;
  }
}

for (const id of PLOTS) {
  const canvas = byId(id);
  canvas.parentElement.classList.add("plotted");
  canvas.parentElement.append(tell("div", "", "chosen"));
  const at = (event) => {
    const now = Date.now(), x = event.clientX - canvas.getBoundingClientRect().left;
    return now - span(now) * (1 - Math.min(1, Math.max(0, (x - LEFT) / (canvas.clientWidth - LEFT - 4))));
  };
  let begun = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    begun = { x: event.clientX, at: at(event) };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (begun && Math.abs(event.clientX - begun.x) >= DRAGGED_PX) choose(begun.at, at(event));
  });
  canvas.addEventListener("pointerup", (event) => {
    if (begun && Math.abs(event.clientX - begun.x) < DRAGGED_PX) forget();
    begun = null;
  });
  canvas.addEventListener("pointercancel", () => { begun = null; });
}

for (const name of ["from", "to"]) form.elements[name].addEventListener("change", () => {
  const [from, to] = ["from", "to"].map((each) => new Date(form.elements[each].value).getTime());
  stretch = from < to ? { from, to } : null;
  mark();
});

byId("what-if-all").addEventListener("click", () => { if (clock && told.began_ns) choose(toMs(told.began_ns), Date.now()); });

// Asking

async function order(method, question) {
  try {
    const reply = await fetch("/what-if", {
      method,
      headers: { Authorization: `Bearer ${sessionStorage.getItem(KEY)}`, "Content-Type": "application/json" },
      body: question && JSON.stringify(question),
    });
    refused = reply.ok ? "" : (await reply.text()).trim();
    if (reply.status === 401) sessionStorage.removeItem(KEY);
  } catch {
    refused = "the daemon does not answer: nothing was asked";
  }
  show();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!stretch) { refused = "the stretch ends before it begins: choose another one"; show(); return; }
  const given = (name) => form.elements[name].value.trim();
  const settings = given("settings") ? given("settings").split(/[\s,;]+(?=[\w.]+=)/) : [];
  const [preset, pool_tokens, engines, agents] = ["preset", "pool_tokens", "engines", "agents"].map(given);
  order("POST", { since_ns: toNs(stretch.from), until_ns: toNs(stretch.to), preset, settings, pool_tokens, engines, agents });
});
byId("what-if-cancel").addEventListener("click", () => order("DELETE"));

// Telling

const WAYS = {
  waits: () => "waits until the shadow's estimate is made",
  runs: () => "is being replayed",
  failed: () => `was not answered: ${told.reason}`,
  cancelled: () => "was cancelled",
  done: () => "",
};

function show() {
  const may = sessionStorage.getItem(KEY) !== null, busy = UNDER_WAY.includes(told.standing);
  byId("what-if-how").textContent = told.how_to || (may ? "" : "To ask, open the page at the address that `penstock page` prints on the daemon's host: only who may command the daemon may have it replay something.");
  byId("what-if-fields").disabled = !may || Boolean(told.how_to);
  byId("what-if-ask").hidden = busy;
  byId("what-if-cancel").hidden = !busy;
  const presets = form.elements.preset;
  if (presets.options.length === 1) presets.append(...told.presets.map((name) => new Option(name, name)));
  const way = told.standing && told.standing !== "done" ? `${title(told.question)} ${WAYS[told.standing]()}` : "";
  const waited = busy ? `, since ${duration(1e6 * (Date.now() - toMs(told.asked_at_ns))) || "0s"}` : "";
  byId("what-if-standing").textContent = refused || way + waited;
  answer();
}

function title(question) {
  const machine = [["pool", question.pool_tokens], ["engines", question.engines], ["agents", question.agents]];
  const parts = [question.preset, ...question.settings, ...machine.filter(([, value]) => value).map(([name, value]) => `${name} ${value}`)];
  return parts.filter(Boolean).join(", ") || "nothing else";
}

const isShare = (name) => SHARES.includes(name);
const figure = (name, value) => value == null ? "–" : isShare(name) ? `${(100 * value).toFixed(1)}%` : `${value.toFixed(2)} s`;
const by = (name, value) => value == null ? "–" : `${value >= 0 ? "+" : "−"}${Math.abs(100 * value).toFixed(1)}${isShare(name) ? " points" : "%"}`;

function between(name, found) {
  if (found.low == null || found.high == null) return by(name, found.value);
  return `${by(name, found.value)} (${by(name, found.low).replace(" points", "")} to ${by(name, found.high).replace(" points", "")})`;
}

// First how far the replay of what was decided is off, then the difference.
function answer() {
  const found = told.answer;
  byId("what-if-answer").hidden = !found;
  if (!found || shownAnswer === told.asked_at_ns) return;
  shownAnswer = told.asked_at_ns;
  const asked = told.question, whole = found.stretch.programs;
  const nothing = !(asked.preset || asked.settings.length || asked.pool_tokens || asked.engines || asked.agents);
  const when = [asked.since_ns, asked.until_ns].map((ns) => new Date(toMs(ns)).toLocaleTimeString()).join(" to ");
  byId("what-if-heads").textContent = `${when}: ${whole} programs seen from their first turn to their last, ${found.stretch.turns} turns; step times are off by ${(100 * found.calibration.prefill_error).toFixed(1)}% (prefill) and ${(100 * found.calibration.decode_error).toFixed(1)}% (decode)`;
  byId("what-if-replay").textContent = `The replay of what was decided (${found.actual.preset})`;
  byId("what-if-errors").replaceChildren(...Object.keys(found.replay_error).map((name) => {
    const error = found.replay_error[name], line = tell("tr", "");
    line.append(tell("td", FIGURES[name] ?? name), tell("td", figure(name, found.actual[name])), tell("td", figure(name, found.replayed[name])), tell("td", by(name, error), Math.abs(error ?? 0) > FAR_OFF ? "loss" : ""));
    return line;
  }));
  byId("what-if-difference").hidden = nothing;
  byId("what-if-question").textContent = `What if: ${title(asked)}`;
  byId("what-if-changes").replaceChildren(...Object.entries(found.change).map(([name, change]) => {
    const line = tell("tr", ""), isSure = change.low > 0 || (change.high != null && change.high < 0);
    line.append(tell("td", FIGURES[name] ?? name), tell("td", figure(name, found.alternative[name])), tell("td", between(name, change), isSure ? "sure" : "unsure"), tell("td", figure(name, found.predicted[name])));
    return line;
  }));
  const far = Object.entries(found.replay_error).filter(([, error]) => Math.abs(error ?? 0) > FAR_OFF).map(([name]) => FIGURES[name] ?? name);
  const warnings = far.length ? [`the replay is off by more than a third in ${far.join(", ")}: do not believe the difference there`] : [];
  byId("what-if-notes").replaceChildren(...[...warnings, ...found.notes].map((note) => tell("li", note)));
  byId("what-if-try").hidden = !told.shadow.length;
  byId("what-if-shadow").textContent = told.shadow.join("\n");
}

keep();
window.addEventListener("hashchange", () => { keep(); if (told) show(); });
window.addEventListener("resize", mark);
window.addEventListener("told", ({ detail: { status, what_if } }) => {
  clock = { at: Date.now(), ns: status.now_ns, scale: what_if.time_scale };
  told = what_if;
  show();
  mark();
});
