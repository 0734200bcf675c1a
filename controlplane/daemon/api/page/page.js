"use strict";
// Draws what the daemon tells at /live. Everything is in this folder: the page works without internet.

const KEPT_MS = 5 * 60 * 1000;
const MOST_ROWS = 60;
const ROW_PX = 16;
const SILENT_S = 10;         // without a word: more than a busy machine makes of it
const TRY_AGAIN_MS = 3000;
const looks = [];            // {at, limit, active, waiting, kv, cpu, stall}
let present = { programs: [], total: 0 };   // who is there now
const spans = new Map();     // program -> [{from, to, phase, pinned}]
const byId = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const percent = (ratio) => `${Math.round(100 * ratio)}%`;

function duration(ns) {
  const s = ns / 1e9;
  if (s <= 0) return "";
  if (s < 60) return `${s.toFixed(1)}s`;
  return s < 3600 ? `${Math.floor(s / 60)}m${String(Math.floor(s % 60)).padStart(2, "0")}s` : `${Math.floor(s / 3600)}h${Math.floor(s / 60 % 60)}m`;
}

function take(data) {
  const at = Date.now();
  const { window: w, pressure: p } = data.status;
  const other = data.status.shadow, estimated = Object.fromEntries((other?.estimate.changes ?? []).map((each) => [each.name, each]));
  looks.push({ at, one: 1, shadow: other?.window.limit ?? null, jct: 1 + (estimated.mean_jct_s?.value ?? NaN), ttft: 1 + (estimated.p95_ttft_s?.value ?? NaN), limit: w.limit, active: p.programs_active, waiting: p.queue_length, kv: p.kv_use_ratio, cpu: p.cpu_use_ratio, stall: p.cpu_stall_ratio });
  while (looks.length && looks[0].at < at - KEPT_MS) looks.shift();
  for (const program of data.listing.programs) note(program, at);
  present = data.listing;
  for (const [name, list] of spans) {
    while (list.length && list[0].to < at - KEPT_MS) list.shift();
    if (!list.length) spans.delete(name);
  }
  words(data);
  fleet(data);
  regret(data.regret);
  shadow(data.status);
  tenants(data.status);
  draw();
  window.dispatchEvent(new CustomEvent("told", { detail: data }));
}

function note(program, at) {
  const list = spans.get(program.program_id) ?? [];
  spans.set(program.program_id, list);
  const last = list[list.length - 1];
  const pinned = program.retained_ns > 0;
  if (last && last.phase === program.phase && last.pinned === pinned) { last.to = at; return; }
  if (last) last.to = at;
  list.push({ from: at, to: at, phase: program.phase, pinned });
}

function words({ status, listing }) {
  const { window: w, pressure: p, config } = status;
  byId("node").textContent = status.node;
  document.title = `${p.programs_active} active, ${p.queue_length} waiting: ${status.node}`;
  const lead = status.stands_by ? "stands by: another daemon leads; " : status.fence ? `leads, by lease ${status.fence}; ` : "";
  byId("summary").textContent = `${lead}preset ${status.preset}, configuration ${config.version}; ${p.programs_active} programs active, ${p.queue_length} waiting, ${status.programs} known`;
  byId("warnings").textContent = status.findings.map((each) => `${each.name.replaceAll("_", " ")}: ${each.found}`).join("; ");
  byId("window-reason").textContent = `${w.limit || "no limit"}: ${w.reason}`;
  byId("phases").textContent = listing.phases.filter((each) => each.programs).map((each) => `${each.programs} ${each.phase} (${each.context_tokens.toLocaleString()} tokens)`).join(", ");
  byId("pressure-words").textContent = `KV ${percent(p.kv_use_ratio)} of ${p.kv_total_blocks.toLocaleString()} blocks wanted, ${p.kv_retained_blocks.toLocaleString()} retained; ${p.tools_active} tools running, ${p.tools_waiting} waiting, on ${p.cpus} CPUs ${percent(p.cpu_use_ratio)} used`;
}

const KINDS = { earlier: "let in earlier", later: "let in later", slot_taken: "slots taken back", slot_kept: "slots left", retained: "contexts kept", not_retained: "contexts given up", ttl: "kept for another time", moved: "moved otherwise", placed: "placed elsewhere", unjudged: "not compared" };
const CHANGES = { mean_jct_s: ["mean completion time", "%"], p95_ttft_s: ["95th percentile of the time to the first token", "%"], hit_rate: ["hit rate", " points"] };
const signed = (ratio) => `${ratio >= 0 ? "+" : "−"}${Math.abs(100 * ratio).toFixed(0)}`;

// What decides beside the controller in force, where it decides otherwise, and what that is estimated to change.
function shadow({ shadow: other, now_ns, preset }) {
  byId("shadow").hidden = !other;
  document.body.classList.toggle("no-shadow", !other);
  if (!other) return;
  const { counts, estimate } = other;
  const name = other.preset + (other.settings.length ? ` with ${other.settings.join(", ")}` : "");
  byId("shadow-words").textContent = `${name} beside ${preset}: ${other.standing}${other.reason ? ` (${other.reason})` : ""}; window ${other.window.limit || "without limit"}, ${other.ahead} let in that wait here; ${(100 * other.cpu_ratio).toFixed(1)}% of the daemon's CPU time`;
  const found = Object.entries(KINDS).filter(([kind]) => counts[kind]).map(([kind, words]) => `${counts[kind].toLocaleString()} ${words}${kind === "earlier" ? ` by ${other.lead_s.toFixed(1)} s` : ""}`);
  byId("shadow-counts").textContent = [`${counts.same.toLocaleString()} decisions alike in ${duration(other.compared_ns) || "0s"}`, ...found].join("; ");
  byId("shadow-latest").replaceChildren(...other.latest.slice().reverse().map((each) => item([programLink(each.program_id), `: ${each.shadow}`], `${duration(now_ns - each.at_ns) || "0s"} ago; in force: ${each.live}`)));
  const said = estimate.changes.map((each) => {
    const [words, unit] = CHANGES[each.name] ?? [each.name, "%"];
    return `${words} ${signed(each.value)}${unit}${each.is_bounded ? ` (${signed(each.low)} to ${signed(each.high)})` : ""}`;
  });
  byId("shadow-estimate").textContent = said.length
    ? `With it: ${said.join("; ")}; from ${estimate.programs} programs in ${estimate.stretch_s.toFixed(0)} s, ${duration(now_ns - estimate.made_at_ns) || "0s"} ago${estimate.reason ? `; none later: ${estimate.reason}` : ""}`
    : `No estimate yet: ${estimate.reason || "it is not asked for"}`;
}

function tell(kind, text, className = "") {
  const element = document.createElement(kind);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

// Engines: a row each with its pool, what moved between them last, and who waits for what.
function fleet({ status, listing, engines }) {
  const counts = status.engines;
  const several = counts.known > 1 || counts.draining || counts.gone || status.stands_by || status.fence;
  byId("fleet").hidden = !several;
  document.body.classList.toggle("one-engine", !several);
  if (!several) return;
  const said = ["serving", "draining", "gone", "silent"].filter((name) => name === "serving" || counts[name]).map((name) => `${counts[name]} ${name}`);
  byId("engines-words").textContent = `${counts.known} engines: ${said.join(", ")}; ${counts.moves.toLocaleString()} moves between them`;
  const there = new Map(engines.engines.map((engine) => [engine.place, []]));
  for (const program of listing.programs) there.get(program.replica)?.push(program);
  byId("engines").replaceChildren(...engines.engines.map((engine) => engineRow(engine, there.get(engine.place))));
  const left_out = engines.total - engines.engines.length;
  byId("engines-left-out").textContent = left_out > 0 ? `${left_out} more engines are not shown: those in trouble and the fullest are` : "";
  byId("moves").replaceChildren(...(engines.moves.length ? engines.moves.slice(0, 8).map((move) => item([programLink(move.program_id), `: ${move.from_place} → ${move.to_place}`], `${duration(status.now_ns - move.at_ns) || "0s"} ago; ${move.reason}`)) : [item("nobody was sent elsewhere lately", "")]));
  const waiting = listing.programs.filter((program) => program.queue_position).slice(0, 8);
  byId("queue").replaceChildren(...(waiting.length ? waiting.map((program) => item([`#${program.queue_position} `, programLink(program.program_id)], `${duration(program.hold_ns) || "0s"}: ${program.waits_for}${program.replica ? `; ran on ${program.replica}` : ""}`)) : [item("nobody waits", "")]));
}

// Tenants: a row each; what it has had of all fills the bar, and its part by weight is told below.
function tenants({ tenants: rows, tenants_jain_index: jain }) {
  byId("tenants").hidden = !rows.length;
  const weights = rows.reduce((sum, row) => sum + (row.turns || row.waiting ? row.weight : 0), 0);
  byId("tenants-words").textContent = `Jain's index ${jain.toFixed(3)}`;
  byId("tenant-rows").replaceChildren(...rows.map((row) => {
    const line = tell("tr", "", row.spent ? "attention" : "");
    line.title = row.spent;
    const bar = tell("div", "", "pool");
    const had = tell("span", "", "wanted");
    had.style.width = `${100 * row.kv_ratio}%`;
    bar.append(had);
    const fair = weights && (row.turns || row.waiting) ? row.weight / weights : 0;
    const words = `${percent(row.kv_ratio)} of all, ${percent(fair)} by weight`;
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", words);
    const cell = tell("td", "");
    cell.append(bar, tell("small", words));
    const budget = row.spent_ratio ? `${percent(row.spent_ratio)}, ${duration(row.window_ns)} to go` : "";
    const cells = [row.weight, row.share ? percent(row.share) : "", row.active, row.waiting, row.turns.toLocaleString(), budget, row.refused || ""];
    line.append(tell("td", row.tenant), cell, ...cells.map((text) => tell("td", text)));
    return line;
  }));
}

// Of text, or of texts and links.
function item(text, more) {
  const line = tell("li", "");
  line.append(...[text].flat());
  if (more) line.append(tell("small", more));
  return line;
}

function engineRow(engine, programs) {
  const trouble = engine.silent || engine.standing === "gone";
  const line = tell("tr", "", trouble ? "trouble" : engine.passive || engine.standing === "draining" ? "attention" : "");
  const name = tell("td", engine.place);
  if (engine.address) name.append(tell("small", engine.address));
  const standing = [engine.standing || "serving", engine.silent && "does not answer", engine.passive && "passive", !engine.has_plugin && "no plugin"].filter(Boolean).join(", ");
  const state = tell("td", standing);
  state.title = engine.passive;
  const crowd = tell("td", engine.programs);
  const dots = tell("span", "", "dots");
  dots.append(...programs.slice(0, 24).map((program) => { const dot = tell("span", "", program.phase); dot.title = program.program_id; return dot; }));
  crowd.append(dots);
  line.append(name, state, pool(engine), tell("td", engine.turns), crowd, tell("td", engine.waiting), tell("td", engine.heard_ns ? `${duration(engine.heard_ns) || "0s"} ago` : "never"));
  return line;
}

// What is wanted of the pool fills it from the left; where more is wanted than there is, the bar is the demand and its end is red.
function pool(engine) {
  const cell = tell("td", "");
  if (!engine.kv_total_blocks) return cell;
  const whole = Math.max(engine.kv_total_blocks, engine.kv_demand_blocks);
  const bar = tell("div", "", "pool");
  const part = (className, blocks) => { const span = tell("span", "", className); span.style.width = `${100 * blocks / whole}%`; bar.append(span); };
  part("wanted", Math.min(engine.kv_demand_blocks, engine.kv_total_blocks));
  part("over", Math.max(0, engine.kv_demand_blocks - engine.kv_total_blocks));
  part("pinned", engine.kv_retained_blocks);
  const words = `${percent(engine.kv_use_ratio)} of ${engine.kv_total_blocks.toLocaleString()} blocks, ${engine.kv_free_blocks.toLocaleString()} free`;
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", words);
  cell.append(bar);
  if (engine.host_total_blocks) {
    const host = tell("span", "", "host-bar");
    host.style.backgroundSize = `${100 * engine.host_used_blocks / engine.host_total_blocks}% 100%`;
    cell.append(host);
  }
  cell.append(tell("small", words));
  return cell;
}

// What decisions cost and gained: a row for each kind of decision, and the latest verdicts.
function regret(told) {
  byId("regret").hidden = !told.kinds.length;
  byId("regret-words").textContent = `${told.again_tokens.toLocaleString()} tokens computed again, ${told.pins_lost.toLocaleString()} pins given up by engines; gaps between turns cost ${told.regret_ratio.toFixed(2)} times what hindsight would have paid`;
  byId("regret-kinds").replaceChildren(...told.kinds.map((kind) => {
    const line = tell("tr", ""), net = kind.gain_s - kind.cost_s;
    line.append(...[kind.kind, kind.count.toLocaleString(), kind.again_tokens.toLocaleString(), `${kind.cost_s.toFixed(1)}s`, `${kind.gain_s.toFixed(1)}s`].map((text) => tell("td", text)), tell("td", signedSeconds(net), net < 0 ? "loss" : ""));
    return line;
  }));
  byId("verdicts").replaceChildren(...told.latest.slice(0, 8).map((verdict) => {
    const why = verdict.cause ? `, ${verdict.cause.replaceAll("_", " ")}` : "";
    const again = verdict.again_tokens ? `; ${verdict.again_tokens.toLocaleString()} tokens computed again` : "";
    return item([`${signedSeconds(verdict.gain_s - verdict.cost_s)} ${verdict.kind} `, programLink(verdict.program_id)], `${verdict.outcome}${why} after ${duration(verdict.closed_ns - verdict.opened_ns) || "0s"}${again}`);
  }));
}

function signedSeconds(s) {
  return `${s < 0 ? "−" : "+"}${Math.abs(s).toFixed(2)}s`;
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
  return { pen, width, height };
}

const LEFT = 34;

// What the plots span: from the first look on, half a minute at least and five at most.
function span(now) {
  return Math.min(KEPT_MS, Math.max(30_000, looks.length ? now - looks[0].at : 0));
}

function ago(ms) {
  return ms < 60_000 ? `${Math.round(ms / 1000)} s ago` : `${(ms / 60_000).toFixed(1)} min ago`;
}

function plot(id, series, least, mark) {
  const { pen, width, height } = sheet(id, 150);
  const now = Date.now();
  const known = (value) => value !== null && !Number.isNaN(value);
  const top = Math.max(least, ...looks.flatMap((look) => series.map(([name]) => look[name]).filter(known)));
  const spanned = span(now);
  const x = (at) => LEFT + (width - LEFT - 4) * (1 - (now - at) / spanned);
  const y = (value) => height - 16 - (height - 24) * (value / top);
  pen.fillStyle = pen.strokeStyle = colour("line") || "#ccc";
  pen.fillStyle = getComputedStyle(document.body).color;
  for (const value of [0, top / 2, top]) {
    pen.globalAlpha = 0.2; pen.beginPath(); pen.moveTo(LEFT, y(value)); pen.lineTo(width, y(value)); pen.strokeStyle = pen.fillStyle; pen.stroke();
    pen.globalAlpha = 0.8; pen.fillText(mark(value), 2, y(value) + 4);
  }
  pen.fillText(ago(spanned), LEFT, height - 2);
  pen.fillText("now", width - 24, height - 2);
  pen.globalAlpha = 1;
  for (const [name, shade, thickness = 2] of series) {
    pen.lineWidth = thickness;
    pen.strokeStyle = colour(shade);
    pen.beginPath();
    looks.forEach((look, index) => {
      if (!known(look[name])) return;
      const at = x(look.at), goesOn = index && known(looks[index - 1][name]);
      if (goesOn) pen.lineTo(at, y(looks[index - 1][name]));
      pen[goesOn ? "lineTo" : "moveTo"](at, y(look[name]));
    });
    pen.stroke();
  }
}

// Who is there now, and as there is room whoever was there last; in the order in which they were first seen.
function shown() {
  const chosen = new Set(present.programs.map((program) => program.program_id));
  for (const name of [...spans.keys()].reverse()) {
    if (chosen.size >= MOST_ROWS) break;
    chosen.add(name);
  }
  return [...spans.keys()].filter((name) => chosen.has(name));
}

function timeline() {
  const names = shown();
  const { pen, width } = sheet("timeline", Math.max(1, names.length) * ROW_PX + 4);
  const now = Date.now(), left = Math.min(180, width / 4);
  const spanned = span(now);
  const x = (at) => left + (width - left - 4) * Math.max(0, 1 - (now - at) / spanned);
  const ink = getComputedStyle(document.body).color;
  names.forEach((name, index) => {
    const top = index * ROW_PX;
    pen.fillStyle = ink;
    pen.fillText(name.length > 26 ? `${name.slice(0, 25)}…` : name, 2, top + 12, left - 6);
    for (const span of spans.get(name)) {
      pen.fillStyle = colour(span.phase);
      pen.fillRect(x(span.from), top + 2, Math.max(1, x(span.to) - x(span.from)), ROW_PX - 6);
      if (span.pinned) { pen.fillStyle = colour("pinned"); pen.fillRect(x(span.from), top + ROW_PX - 4, Math.max(1, x(span.to) - x(span.from)), 2); }
    }
  });
  const left_out = present.total - present.programs.length;
  byId("left-out").textContent = left_out > 0 ? `${left_out} more programs are not shown` : "";
}

function draw() {
  plot("window-plot", [["limit", "limit", 6], ["shadow", "shadow"], ["active", "reasoning"], ["waiting", "held"]], 1, (value) => Number.isInteger(value) || value >= 10 ? value.toFixed(0) : value.toFixed(1));
  plot("pressure-plot", [["kv", "limit"], ["cpu", "acting"], ["stall", "held"]], 1, percent);
  if (!byId("shadow").hidden) {
    plot("jct-plot", [["one", "limit", 6], ["jct", "shadow"]], 1.25, percent);
    plot("ttft-plot", [["one", "limit", 6], ["ttft", "shadow"]], 1.25, percent);
  }
  timeline();
}

let heardAt = Date.now(), everyS = 0;
// Not before the other scripts are there, which take() needs: what is told while they load would be an error.
window.addEventListener("DOMContentLoaded", () => {
  follow((state) => {
    heardAt = Date.now();
    everyS = state.every_s;
    take(state);
  });
});
function follow(use) {
  const source = new EventSource("/live");
  source.addEventListener("message", ({ data }) => use(JSON.parse(data)));
  source.addEventListener("error", () => {  // by itself it does not ask again after an answer such as 503
    source.close();
    byId("warnings").textContent = "the daemon does not answer; trying again";
    setTimeout(follow, TRY_AGAIN_MS, use);
  });
}
// A daemon that is frozen, or behind a network that is gone, keeps the connection open: what is shown would look live.
setInterval(() => {
  const silentS = (Date.now() - heardAt) / 1000;
  if (silentS > Math.max(SILENT_S, 5 * everyS)) {
    byId("warnings").textContent = `the daemon does not answer: nothing was heard of it for ${silentS.toFixed(0)} s, and what is shown is of then`;
  }
}, 1000);
window.addEventListener("resize", () => looks.length && draw());
