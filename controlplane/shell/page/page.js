"use strict";
// Draws what the daemon tells at /live. Everything is in this folder: the page works without internet.

const KEPT_MS = 5 * 60 * 1000;
const MOST_ROWS = 60;
const ROW_PX = 16;
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
  looks.push({ at, limit: w.limit, active: p.programs_active, waiting: p.queue_length, kv: p.kv_use_ratio, cpu: p.cpu_use_ratio, stall: p.cpu_stall_ratio });
  while (looks.length && looks[0].at < at - KEPT_MS) looks.shift();
  for (const program of data.listing.programs) note(program, at);
  present = data.listing;
  for (const [name, list] of spans) {
    while (list.length && list[0].to < at - KEPT_MS) list.shift();
    if (!list.length) spans.delete(name);
  }
  words(data);
  draw();
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
  const { window: w, pressure: p, config, orders } = status;
  byId("node").textContent = status.node;
  document.title = `${p.programs_active} active, ${p.queue_length} waiting: ${status.node}`;
  byId("summary").textContent = `preset ${status.preset}, configuration ${config.version}; ${p.programs_active} programs active, ${p.queue_length} waiting, ${status.programs} known`;
  const warnings = [];
  if (!status.bus_connected) warnings.push("the bus is away");
  if (orders.draining) warnings.push("draining: nobody is let in");
  if (orders.held.length) warnings.push(`held: ${orders.held.join(", ")}`);
  if (config.refused) warnings.push(`configuration refused: ${config.refused}`);
  if (config.until_restart.length) warnings.push(`a restart is needed for ${config.until_restart.join(", ")}`);
  byId("warnings").textContent = warnings.join("; ");
  byId("window-reason").textContent = `${w.limit || "no limit"}: ${w.reason}`;
  byId("phases").textContent = listing.phases.filter((each) => each.programs).map((each) => `${each.programs} ${each.phase} (${each.context_tokens.toLocaleString()} tokens)`).join(", ");
  byId("pressure-words").textContent = `KV ${percent(p.kv_use_ratio)} of ${p.kv_total_blocks.toLocaleString()} blocks wanted, ${p.kv_retained_blocks.toLocaleString()} retained; ${p.tools_active} tools running, ${p.tools_waiting} waiting, on ${p.cpus} CPUs ${percent(p.cpu_use_ratio)} used`;
  const body = byId("programs");
  body.replaceChildren(...listing.programs.map(row));
}

function row(program) {
  const line = document.createElement("tr");
  const place = program.queue_position ? ` #${program.queue_position}` : "";
  const cells = [program.program_id + (program.held_by_operator ? " (held)" : ""), program.status + place, program.phase, program.tool, program.turns, program.context_tokens.toLocaleString(), program.kv_tier, duration(program.idle_ns), duration(program.hold_ns), duration(program.retained_ns)];
  cells.forEach((text, index) => {
    const cell = document.createElement("td");
    cell.textContent = text;
    if (index === 2) cell.className = program.phase;
    line.append(cell);
  });
  return line;
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
  const top = Math.max(least, ...looks.flatMap((look) => series.map(([name]) => look[name])));
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
      const at = x(look.at);
      if (index) pen.lineTo(at, y(looks[index - 1][name]));
      pen[index ? "lineTo" : "moveTo"](at, y(look[name]));
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
  plot("window-plot", [["limit", "limit", 6], ["active", "reasoning"], ["waiting", "held"]], 1, (value) => Number.isInteger(value) || value >= 10 ? value.toFixed(0) : value.toFixed(1));
  plot("pressure-plot", [["kv", "limit"], ["cpu", "acting"], ["stall", "held"]], 1, percent);
  timeline();
}

const live = new EventSource("/live");
live.onmessage = (message) => take(JSON.parse(message.data));
live.onerror = () => { byId("warnings").textContent = "the daemon does not answer; trying again"; };
window.addEventListener("resize", () => looks.length && draw());
