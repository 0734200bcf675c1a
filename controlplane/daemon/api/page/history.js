"use strict";
// The node's last hour: samples that the daemon keeps, told at /samples once and in each message from then on, as
// plots and figures.

const RANGES = [[300, "5 min"], [900, "15 min"], [3600, "1 h"]];
const LEAST_MS = 60_000;     // a node that has just begun is not drawn closer
let rangeS = 3600, began = 0;

// What the plots span: the range that was chosen, or as much of it as there is.
const spanMs = () => Math.min(1000 * rangeS, Math.max(LEAST_MS, began ? nowMs() - began : 0));

(() => {
  const KEPT_MS = 3_600_000;
  const MOST_SAMPLES = 1500;   // then they are asked for anew: the daemon has made one of ten of the older ones
  const HOLE_MS = 5000;        // more than that is missing between what is known and what is told
  const ENOUGH_TURNS = 10, LEAST_TURNS = 5, WIDEST = 3;
  const LEFT = 38;
  let samples = [], asking = false, told = null;

  window.addEventListener("told", ({ detail }) => {
    told = detail;
    const last = samples.at(-1)?.at_ms ?? 0, fresh = detail.samples.filter((each) => each.at_ms > last);
    samples.push(...fresh);
    if (detail.first || samples.length > MOST_SAMPLES || (fresh.length && fresh[0].at_ms - last > HOLE_MS)) load();
    show();
  });

  async function load() {
    if (asking) return;
    asking = true;
    try {
      const answer = await fetch("/samples", { cache: "no-store" });
      const kept = await answer.json();
      if (!answer.ok || !kept.length) return;
      // A daemon that has begun anew knows nothing of before, and this page does.
      const before = samples.filter((each) => each.at_ms < kept[0].at_ms), since = samples.filter((each) => each.at_ms > kept.at(-1).at_ms);
      samples = [...before, ...kept, ...since];
      show();
    } catch { /* the page says that the daemon does not answer */ } finally {
      asking = false;
    }
  }

  function show() {
    samples = samples.filter((each) => each.at_ms > nowMs() - KEPT_MS);
    began = samples[0]?.at_ms ?? 0;
    if (!told) return;
    tiles();
    draw();
  }

  // Over what a plot has room for: a second each, or ten.
  const stepMs = () => spanMs() <= 300_000 ? 1000 : 10_000;
  const windowMs = () => spanMs() <= 300_000 ? 30_000 : spanMs() <= 900_000 ? 60_000 : 180_000;

  const COUNTS = ["turns", "anonymous_turns", "prompt_tokens", "cached_tokens", "output_tokens", "refused", "span_s"];
  const STATES = ["limit", "active", "waiting", "kv_use_ratio", "cpu_use_ratio", "cpu_stall_ratio"];
  const sum = (list, name) => list.reduce((total, each) => total + each[name], 0);

  function points() {
    const step = stepMs(), from = nowMs() - spanMs() - WIDEST * windowMs(), parts = new Map();
    for (const each of samples) {
      if (each.at_ms <= from) continue;
      const end = Math.ceil(each.at_ms / step) * step;
      if (parts.has(end)) parts.get(end).push(each); else parts.set(end, [each]);
    }
    return [...parts].map(([at, list]) => ({
      at,
      ...Object.fromEntries(COUNTS.map((name) => [name, sum(list, name)])),
      ...Object.fromEntries(STATES.map((name) => [name, sum(list, name) / list.length])),
    }));
  }

  const apart = (one, next) => next.at - one.at > 3.5 * stepMs();   // nobody looked in between

  // One turn in a second is no rate: each point is of the window behind it, and of more where that has few turns.
  function averaged(list) {
    const step = stepMs(), enough = windowMs();
    return list.map((point, index) => {
      const of = { turns: 0, prompt_tokens: 0, cached_tokens: 0, output_tokens: 0, span_s: 0 };
      let first = index;
      for (let at = index; at >= 0; at -= 1) {
        const covered = point.at - list[at].at;
        if (covered >= WIDEST * enough || (covered >= enough && of.turns >= ENOUGH_TURNS)) break;
        if (at < index && apart(list[at], list[at + 1])) break;
        for (const name of Object.keys(of)) of[name] += list[at][name];
        first = at;
      }
      const known = point.at - list[first].at + step >= enough / 2 && of.span_s > 0;
      const rate = (tokens) => known ? tokens / of.span_s : null;
      return {
        at: point.at,
        hit: of.turns >= LEAST_TURNS && of.prompt_tokens ? of.cached_tokens / of.prompt_tokens : null,
        prompt: rate(of.prompt_tokens),
        computed: rate(of.prompt_tokens - of.cached_tokens),
        output: rate(of.output_tokens),
      };
    });
  }

  const whole = (ms) => ms < 120_000 ? `${Math.round(ms / 1000)} s` : ms < 3_540_000 ? `${Math.round(ms / 60_000)} min` : "hour";

  // Figures of the whole range

  const short = (value) => value.toLocaleString("en", value >= 10_000 ? { notation: "compact", maximumSignificantDigits: 3 } : { maximumFractionDigits: value < 10 ? 1 : 0 });

  function tiles() {
    const from = nowMs() - spanMs(), list = samples.filter((each) => each.at_ms > from);
    const total = Object.fromEntries(COUNTS.map((name) => [name, sum(list, name)])), lasted = total.span_s || 1;
    const reasons = told.status.refusals.filter((each) => each.turns).map((each) => `${each.turns.toLocaleString()} ${phrase(each.code)}`);
    const found = [
      ["hit rate", total.prompt_tokens ? percent(total.cached_tokens / total.prompt_tokens) : "–", `of ${short(total.prompt_tokens)} prompt tokens`],
      ["prompt", `${short(total.prompt_tokens / lasted)}`, "tokens a second"],
      ["output", `${short(total.output_tokens / lasted)}`, "tokens a second"],
      ["turns", `${short(60 * total.turns / lasted)}`, "ended a minute"],
      ["refused", total.refused.toLocaleString(), reasons.length ? `turns; since the start: ${reasons.join(", ")}` : "turns"],
    ];
    if (total.anonymous_turns) found.push(["anonymous", percent(total.anonymous_turns / total.turns), "of the turns named no program", "attention"]);
    byId("tiles").replaceChildren(...found.map(([name, value, more, className = ""]) => {
      const tile = tell("div", "", className);
      tile.append(tell("dt", name), tell("dd", value), tell("dd", more, "more"));
      return tile;
    }));
    byId("span-words").textContent = `the last ${whole(spanMs())}`;
  }

  // Plots

  const round = (value) => {
    const size = 10 ** Math.floor(Math.log10(value));
    return [1, 1.2, 1.5, 2, 3, 4, 5, 6, 8, 10].find((each) => each * size >= value * 0.999) * size;
  };

  function plot(id, list, series, { height = 130, least = 1, mark = short, level = null } = {}) {
    const { pen, width, ink } = sheet(id, height);
    const now = nowMs(), spanned = spanMs(), from = now - spanned;
    const known = list.filter((point) => point.at > from), values = known.flatMap((point) => series.map(([name]) => point[name]).filter((value) => value !== null));
    const top = round(Math.max(least, level?.value ?? 0, ...values));
    const x = (at) => LEFT + (width - LEFT - 4) * Math.min(1, Math.max(0, 1 - (now - at) / spanned));
    const y = (value) => height - 16 - (height - 24) * (value / top);
    pen.fillStyle = pen.strokeStyle = ink;
    for (const value of [0, top / 2, top]) {
      pen.globalAlpha = 0.2; pen.beginPath(); pen.moveTo(LEFT, y(value)); pen.lineTo(width, y(value)); pen.stroke();
      pen.globalAlpha = 0.8; pen.textAlign = "right"; pen.fillText(mark(value), LEFT - 4, y(value) + 4);
    }
    axis(pen, LEFT, width, height - 3);
    for (const [name, shade, thickness = 2] of series) {
      pen.lineWidth = thickness;
      pen.strokeStyle = colour(shade);
      pen.beginPath();
      let last = null;
      for (const point of known) {
        if (point[name] === null) { last = null; continue; }
        if (last && !apart(last, point)) pen.lineTo(x(point.at), y(point[name]));
        else { pen.moveTo(x(point.at - stepMs()), y(point[name])); pen.lineTo(x(point.at), y(point[name])); }
        last = point;
      }
      pen.stroke();
    }
    if (level) {
      pen.lineWidth = 2; pen.strokeStyle = colour(level.shade); pen.setLineDash([4, 4]);
      pen.beginPath(); pen.moveTo(LEFT, y(level.value)); pen.lineTo(width, y(level.value)); pen.stroke();
    }
  }

  function draw() {
    const list = points(), states = list.map((each) => ({ ...each, limit: each.limit || null })), rates = averaged(list);
    const other = told.status.shadow?.window.limit;
    plot("window-plot", states, [["limit", "limit", 5], ["active", "reasoning"]], { level: other ? { value: other, shade: "shadow" } : null });
    plot("waiting-plot", states, [["waiting", "held"]], { height: 80 });
    plot("pressure-plot", states, [["kv_use_ratio", "limit"]], { mark: percent });
    plot("cpu-plot", states, [["cpu_use_ratio", "acting"], ["cpu_stall_ratio", "held"]], { height: 80, mark: percent });
    plot("hit-plot", rates, [["hit", "hit"]], { height: 210, mark: percent });
    plot("prompt-plot", rates, [["prompt", "prompt"], ["computed", "computed"]]);
    plot("output-plot", rates, [["output", "output"]], { height: 80 });
    for (const line of document.querySelectorAll(".averaged")) {
      line.textContent = `Each point is the mean of the ${whole(windowMs())} before it, or of up to ${whole(WIDEST * windowMs())} where these have fewer than ${ENOUGH_TURNS} turns${line.dataset.least === undefined ? "" : `; of fewer than ${LEAST_TURNS} nothing is told`}`;
    }
  }

  function choose(seconds) {
    rangeS = seconds;
    for (const button of byId("ranges").querySelectorAll("button")) button.setAttribute("aria-pressed", `${button.value}` === `${seconds}`);
    show();
    window.dispatchEvent(new Event("range"));
  }

  byId("ranges").append(...RANGES.map(([seconds, text]) => {
    const button = tell("button", text);
    button.type = "button";
    button.value = seconds;
    button.addEventListener("click", () => choose(seconds));
    return button;
  }), Object.assign(tell("span", ""), { id: "span-words" }));
  choose(rangeS);
  window.addEventListener("resize", () => told && draw());
})();

// Below a plot: how far back its left end is, and a few places between.
function axis(pen, left, width, y, spanned = spanMs()) {
  const parts = width > 500 ? 4 : 2;
  pen.globalAlpha = 0.8;
  for (let part = 0; part < parts; part += 1) {
    pen.textAlign = part ? "center" : "left";
    pen.fillText(ago(spanned * (1 - part / parts)), left + (width - left - 4) * part / parts, y);
  }
  pen.textAlign = "right";
  pen.fillText("now", width - 2, y);
  pen.textAlign = "left";
  pen.globalAlpha = 1;
}
