"use strict";
// One program, opened by the address #program=NAME: what it did on a time line, what was decided about it and what
// that cost, and its tree. The daemon tells it at /program; in between, time goes on as the page hears it.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const LEFT_PX = 76, RIGHT_PX = 12, LANE_PX = 16, BAR_PX = 11, MOST_LANES = 4;
  const FETCH_MS = 1000;
  const box = byId("program");
  let name = "", told = null, tag = "", askedAt = 0, asking = false, view = null, failed = "", listed = [];

  // Where we are

  function follow() {
    const wanted = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B")).get("program") ?? "";
    if (wanted === name) return;
    [name, told, tag, view, failed, askedAt] = [wanted, null, "", null, "", 0];
    box.hidden = !name;
    if (!name) { box.replaceChildren(); return; }
    box.replaceChildren(heading(), tell("p", "asking the daemon"));
    box.scrollIntoView();
    ask();
  }

  async function ask() {
    if (!name || asking) return;
    const asked = name;
    let changed = false;
    asking = true;
    askedAt = Date.now();
    try {
      const answer = await fetch(`/program?id=${encodeURIComponent(asked)}`, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
      const found = answer.status === 304 ? told : await answer.json();
      if (asked !== name) return;
      tag = answer.headers.get("ETag") ?? "";
      failed = found.error ?? "";
      told = failed ? null : found;
      changed = answer.status !== 304;
    } catch { /* the page says that the daemon does not answer */ } finally {
      asking = false;
      if (asked !== name) ask();
    }
    if (changed) show();
  }

  window.addEventListener("hashchange", follow);
  window.addEventListener("told", ({ detail }) => {
    listed = detail.listing.programs;
    if (!reached) { reached = true; arrive(); }
    if (!name || document.hidden) return;
    if (Date.now() - askedAt >= FETCH_MS) ask();
    if (told && !told.ended_ns && !box.contains(dragged)) draw();
  });
  window.addEventListener("resize", () => told && draw());
  // The page makes its rows anew each second: a click whose beginning and end meet different rows is none.
  document.addEventListener("mousedown", (event) => {
    const link = event.target.closest?.("a[data-program]");
    if (link && event.button === 0 && !(event.ctrlKey || event.metaKey || event.shiftKey)) location.hash = link.getAttribute("href");
  });

  // An alert leads to a part of the page, which may be hidden until the daemon has told what is in it.
  let reached = false;

  function arrive() {
    const part = !name && location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
    part?.closest("details")?.setAttribute("open", "");
    part?.scrollIntoView();
  }

  // Words

  const endNs = () => told.ended_ns || Math.max(told.seen_ns, clock.nowNs && nowNs());
  const since = (ns) => duration(ns - told.began_ns) || "0.0s";
  const span = (from, to) => duration(to - from) || "0.0s";
  const net = (verdict) => verdict.gain_s - verdict.cost_s;
  const verdicts = () => told.decisions.flatMap((each) => each.verdicts);

  function heading() {
    const head = tell("h2", "");
    const close = tell("a", "close", "close");
    close.href = "#";
    head.append("Program ", tell("b", name), close);
    head.id = "program-title";
    return head;
  }

  function summary() {
    const line = tell("p", "");
    const age = span(told.began_ns, endNs());
    const seen = told.ended_ns ? `ended after ${age}` : `${age} so far, heard of ${span(told.seen_ns, nowNs())} ago`;
    line.append(`${told.turn_count.toLocaleString()} turns, ${seen}`);
    if (told.parent_id) line.append("; sub-agent of ", programLink(told.parent_id));
    const waits = listed.find((each) => each.program_id === name)?.waits_for;
    if (waits && !told.ended_ns) line.append(`; waits: ${waits}`);
    return line;
  }

  function account() {
    const all = verdicts(), sum = (field) => all.reduce((total, each) => total + each[field], 0);
    if (!all.length) return "No verdict yet: what a decision cost is known once its program comes back, or ends";
    const again = sum("again_tokens"), held = sum("held_token_s"), waited = sum("wait_s");
    const parts = [`${again.toLocaleString()} tokens computed again`, `${amount(waited)} of waiting`, `${Math.round(held).toLocaleString()} token-seconds of memory`];
    return `Its ${all.length} verdicts: gained ${amount(sum("gain_s"))}, cost ${amount(sum("cost_s"))}; ${parts.join(", ")}`;
  }

  // The time line

  function shape(kind, attributes, title) {
    const made = document.createElementNS(SVG, kind);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (title) made.appendChild(document.createElementNS(SVG, "title")).textContent = title;
    return made;
  }

  // What overlaps gets a line of its own, as far as there are any.
  function lanes(each, from, to) {
    const free = [];
    return each.map((one) => {
      const found = free.findIndex((until) => until <= from(one));
      const lane = found < 0 ? Math.min(free.length, MOST_LANES - 1) : found;
      free[lane] = Math.max(free[lane] ?? 0, to(one));
      return lane;
    });
  }

  function stages(turn, now) {
    const end = turn.ended_ns || now, went = turn.submitted_ns || turn.first_token_ns || end;
    const first = turn.first_token_ns || end, ran = Math.min(first, went + turn.launch_delay_ns);
    const cached = turn.prompt_tokens ? `, ${turn.cached_tokens.toLocaleString()} of ${turn.prompt_tokens.toLocaleString()} prompt tokens found` : "";
    return [
      ["held", turn.queued_ns || went, went, "waits at the gate"],
      ["launch", turn.submitted_ns || ran, ran, "waits in the engine"],
      ["prefill", ran, first, `prefill${cached}`],
      ["reasoning", first, end, `replies, ${turn.output_tokens.toLocaleString()} tokens${turn.end ? `; ${turn.end}` : ""}`],
    ].filter(([, from, to]) => from && to > from);
  }

  function bounds() {
    const oldest = [...told.turns, ...told.tools].reduce((least, each) => Math.min(least, each.queued_ns || each.asked_ns || each.submitted_ns || each.started_ns || least), Infinity);
    const from = told.left_out && oldest < Infinity ? oldest : told.began_ns;
    return { from, to: Math.max(endNs(), from + 1e9) };
  }

  function step(ns, most) {
    const steps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400].map((s) => s * 1e9);
    return steps.find((each) => ns / each <= most) ?? 86400e9 * Math.ceil(ns / 86400e9 / most);
  }

  function draw() {
    const old = box.querySelector("svg");
    if (!old || !told) return;
    const now = nowNs(), { from, to } = view ?? bounds();
    const width = Math.max(320, box.clientWidth - 26), inner = width - LEFT_PX - RIGHT_PX;
    const x = (ns) => LEFT_PX + inner * (ns - from) / (to - from);
    const visible = (begin, end) => end >= from && begin <= to;
    const turnEnd = (turn) => turn.ended_ns || Math.max(now, told.seen_ns);
    const turnFrom = (turn) => turn.queued_ns || turn.submitted_ns || turn.first_token_ns || turn.ended_ns;
    const turnLanes = lanes(told.turns, turnFrom, turnEnd), toolLanes = lanes(told.tools, (tool) => tool.asked_ns || tool.started_ns, turnEnd);
    const height = (lanesOf) => (lanesOf.length ? Math.max(...lanesOf) + 1 : 1) * LANE_PX;
    const tops = { turns: 4 }; tops.tools = tops.turns + height(turnLanes) + 4; tops.pins = tops.tools + height(toolLanes) + 4; tops.marks = tops.pins + LANE_PX + 4;
    const axis = tops.marks + LANE_PX + 4, whole = axis + 18;
    const parts = [];
    for (const [key, text] of [["turns", "turns"], ["tools", "tools"], ["pins", "pinned"], ["marks", "decisions"]]) {
      const label = shape("text", { x: 0, y: tops[key] + 10, class: "lane" }); label.textContent = text; parts.push(label);
    }
    const tick = step(to - from, Math.max(2, inner / 90));
    for (let at = Math.ceil((from - told.began_ns) / tick) * tick; told.began_ns + at <= to; at += tick) {
      const line = x(told.began_ns + at), label = shape("text", { x: line, y: axis + 13, "text-anchor": "middle", class: "tick" });
      label.textContent = at ? duration(at).replace(/\.0s$/, "s") : "0s";
      parts.push(shape("line", { x1: line, x2: line, y1: 2, y2: axis, class: "grid" }), label);
    }
    const bar = (className, begin, end, top, title, bits = BAR_PX) => {
      if (!visible(begin, end)) return;
      const a = Math.max(LEFT_PX, x(begin)), b = Math.min(width - RIGHT_PX, x(end));
      parts.push(shape("rect", { x: a.toFixed(1), y: top, width: Math.max(1.5, b - a).toFixed(1), height: bits, class: className }, title));
    };
    told.turns.forEach((turn, index) => {
      const number = told.turn_count - told.turns.length + index + 1, top = tops.turns + LANE_PX * turnLanes[index];
      for (const [className, begin, end, text] of stages(turn, turnEnd(turn))) bar(className, begin, end, top, `turn ${number}, at ${since(begin)} for ${span(begin, end)}: ${text}${turn.engine ? `; on ${turn.engine}` : ""}`);
    });
    told.tools.forEach((tool, index) => {
      const top = tops.tools + LANE_PX * toolLanes[index], end = turnEnd(tool);
      if (tool.asked_ns && (tool.started_ns || end) > tool.asked_ns) bar("held", tool.asked_ns, tool.started_ns || end, top, `${tool.tool} waits until the host has room, for ${span(tool.asked_ns, tool.started_ns || end)}`);
      if (tool.started_ns) bar(tool.ok ? "acting" : "acting failed", tool.started_ns, end, top, `${tool.tool}, at ${since(tool.started_ns)} for ${span(tool.started_ns, end)}${tool.ok ? "" : ": it failed"}`);
    });
    told.decisions.forEach((each, index) => {
      if (each.until_ns) bar("pinned", each.at_ns, Math.min(each.until_ns, told.ended_ns || Infinity), tops.pins, `pinned at ${since(each.at_ns)} for ${span(each.at_ns, each.until_ns)}: ${each.reason}`);
      if (!visible(each.at_ns, each.at_ns)) return;
      const sum = each.verdicts.reduce((total, verdict) => total + net(verdict), 0);
      const words = each.verdicts.map((verdict) => `${signedSeconds(net(verdict))}: ${verdict.happened}`).join("; ") || "no verdict yet";
      const mark = shape("circle", { cx: x(each.at_ns).toFixed(1), cy: tops.marks + 6, r: 4.5, class: each.verdicts.length ? sum < -0.005 ? "loss" : sum > 0.005 ? "gain" : "even" : "open" }, `${kindOf(each.kind)} at ${since(each.at_ns)}${each.reason ? `: ${each.reason}` : ""} (${words})`);
      mark.addEventListener("click", () => point(index));
      parts.push(mark);
    });
    if (!told.ended_ns && visible(now, now)) parts.push(shape("line", { x1: x(now), x2: x(now), y1: 0, y2: axis, class: "now" }));
    old.setAttribute("viewBox", `0 0 ${width} ${whole}`);
    old.setAttribute("width", width);
    old.setAttribute("height", whole);
    old.dataset.from = from; old.dataset.to = to; old.dataset.width = width;
    old.replaceChildren(...parts);
  }

  function point(index) {
    const row = box.querySelector(`tr[data-decision="${index}"]`);
    for (const each of box.querySelectorAll("tr.pointed")) each.classList.remove("pointed");
    row?.classList.add("pointed");
    row?.scrollIntoView({ block: "nearest" });
  }

  // A part of it: dragged over, or by the buttons

  let dragged = null;

  function at(svg, event) {
    const { left, width } = svg.getBoundingClientRect(), { from, to } = svg.dataset, whole = Number(svg.dataset.width);
    const place = ((event.clientX - left) * whole / width - LEFT_PX) / (whole - LEFT_PX - RIGHT_PX);
    return Number(from) + Math.min(1, Math.max(0, place)) * (to - from);
  }

  function board() {
    const svg = shape("svg", { role: "img", "aria-label": "What the program did and what was decided about it, over time", class: "line" });
    let began = 0;
    svg.addEventListener("pointerdown", (event) => { if (event.button === 0 && event.target.tagName !== "circle") { began = at(svg, event); dragged = svg; svg.setPointerCapture(event.pointerId); } });
    svg.addEventListener("pointermove", (event) => {
      if (!dragged) return;
      const [a, b] = [began, at(svg, event)].sort((one, other) => one - other), { from, to, width } = svg.dataset;
      const x = (ns) => LEFT_PX + (width - LEFT_PX - RIGHT_PX) * (ns - from) / (to - from);
      svg.querySelector(".chosen")?.remove();
      svg.appendChild(shape("rect", { x: x(a), y: 0, width: x(b) - x(a), height: svg.getAttribute("height"), class: "chosen" }));
    });
    svg.addEventListener("pointerup", (event) => {
      if (!dragged) return;
      const [a, b] = [began, at(svg, event)].sort((one, other) => one - other);
      dragged = null;
      if (b - a > (svg.dataset.to - svg.dataset.from) / 100) view = { from: a, to: b };
      draw();
    });
    svg.addEventListener("dblclick", () => { view = null; draw(); });
    return svg;
  }

  function buttons() {
    const line = tell("p", "", "buttons");
    const put = (text, change) => {
      const button = tell("button", text);
      button.type = "button";
      button.addEventListener("click", () => { const { from, to } = view ?? bounds(); view = change(from, to, to - from); draw(); });
      line.append(button);
    };
    put("all", () => null);
    put("closer", (from, to, long) => ({ from: from + long / 4, to: to - long / 4 }));
    put("wider", (from, to, long) => ({ from: from - long / 2, to: to + long / 2 }));
    put("earlier", (from, to, long) => ({ from: from - long / 2, to: to - long / 2 }));
    put("later", (from, to, long) => ({ from: from + long / 2, to: to + long / 2 }));
    put("last minute", () => ({ from: endNs() - 60e9, to: endNs() }));
    line.append(tell("small", "or drag over a part of it; a double click shows all"));
    return line;
  }

  function legend() {
    const line = tell("p", "", "legend");
    for (const [className, text] of [["held", "waits at the gate"], ["launch", "waits in the engine"], ["prefill", "prefill"], ["reasoning", "replies"], ["acting", "tool"], ["pinned-bar", "pinned"], ["gain", "decision that gained"], ["loss", "that lost"], ["open", "not judged yet"]]) line.append(tell("i", "", className), text);
    return line;
  }

  // Tables

  function table(id, head, rows) {
    const made = tell("table", ""), top = tell("tr", ""), body = tell("tbody", "");
    made.id = id;
    top.append(...head.map((text) => tell("th", text)));
    made.appendChild(tell("thead", "")).append(top);
    body.append(...rows);
    made.append(body);
    return made;
  }

  // Of texts, of cells, and of texts with what they are sorted by.
  function cells(texts) {
    const line = tell("tr", "");
    line.append(...texts.map((text) => text instanceof Node ? text : cell(...[text].flat())));
    return line;
  }

  const count = (value) => [value.toLocaleString(), value];
  const lasted = (from, to) => [span(from, to), to - from];

  function decisionRows() {
    return told.decisions.flatMap((each, index) => {
      const said = each.verdicts.length ? each.verdicts : [null];
      return said.map((verdict, place) => {
        const why = tell("td", place ? "" : each.reason + (each.rejected ? ` (rejected: ${each.rejected})` : ""), "words");
        const kind = place ? "" : kindOf(each.kind) + (each.until_ns ? ` for ${span(each.at_ns, each.until_ns)}` : "");
        const on = verdict && verdict.kind !== each.kind ? `${kindOf(verdict.kind)}: ` : "";
        const happened = tell("td", verdict ? `${on}${verdict.happened}${verdict.estimated ? " (estimated)" : ""}` : "", "words");
        const row = cells([[place ? "" : since(each.at_ns), each.at_ns], [kind, each.kind], why, happened,
          verdict?.again_tokens ? count(verdict.again_tokens) : "", verdict ? tokenSeconds(verdict) : "", ...verdict ? [[amount(verdict.cost_s), verdict.cost_s], [amount(verdict.gain_s), verdict.gain_s]] : ["", ""],
          verdict ? cell(signedSeconds(net(verdict)), net(verdict), net(verdict) < -0.005 ? "loss" : "") : ""]);
        if (!place) row.dataset.decision = index;
        return row;
      });
    }).reverse();
  }

  function tokenSeconds(verdict) {
    const held = Math.round(verdict.held_token_s), freed = Math.round(verdict.freed_token_s);
    return held ? `${held.toLocaleString()} kept` : freed ? `${freed.toLocaleString()} freed` : "";
  }

  function turnRows() {
    return told.turns.map((turn, index) => {
      const at = turn.queued_ns || turn.submitted_ns || turn.ended_ns, left = turn.submitted_ns || turn.ended_ns || nowNs();
      return cells([told.turn_count - told.turns.length + index + 1, [since(at), at],
        turn.queued_ns ? lasted(turn.queued_ns, left) : "", turn.launch_delay_ns ? [duration(turn.launch_delay_ns), turn.launch_delay_ns] : "",
        turn.first_token_ns && turn.submitted_ns ? lasted(turn.submitted_ns, turn.first_token_ns) : "", turn.ended_ns ? lasted(turn.submitted_ns || turn.queued_ns || turn.ended_ns, turn.ended_ns) : "",
        count(turn.prompt_tokens), count(turn.cached_tokens), count(turn.output_tokens), turn.engine, turn.end]);
    }).reverse();
  }

  function toolRows() {
    return told.tools.map((tool) => {
      const at = tool.asked_ns || tool.started_ns;
      return cells([tool.tool, [since(at), at], tool.asked_ns && tool.started_ns ? lasted(tool.asked_ns, tool.started_ns) : "", tool.started_ns ? lasted(tool.started_ns, tool.ended_ns || nowNs()) : "", tool.ok ? tool.ended_ns ? "" : "runs" : "failed"]);
    }).reverse();
  }

  function folded(title, made, open = false) {
    const details = document.createElement("details"), scroll = tell("div", "", "scroll");
    details.open = open;
    details.dataset.title = title.replace(/ \(.*/, "");
    scroll.append(made);
    details.append(tell("summary", title), scroll);
    return details;
  }

  // The tree: a row each with its time as a part of the whole tree's

  function tree() {
    const ended = (each) => each.ended_ns || nowNs(), from = Math.min(...told.tree.map((each) => each.began_ns)), to = Math.max(...told.tree.map(ended), from + 1);
    const path = new Map(), whole = told.tree.reduce((sum, each) => sum + each.own_path_ns, 0);
    for (const part of told.path) path.set(part.program_id, [...path.get(part.program_id) ?? [], part]);
    const rows = told.tree.map((each) => {
      const who = tell("td", ""), bar = tell("td", "", "tree-bar");
      who.style.paddingLeft = `${each.depth * 1.2}rem`;
      who.append(each.program_id === name ? tell("b", each.program_id) : programLink(each.program_id));
      const svg = shape("svg", { viewBox: "0 0 1000 12", preserveAspectRatio: "none", role: "img", "aria-label": `at ${duration(each.began_ns - from) || "0s"} for ${span(each.began_ns, ended(each))}` });
      const part = (className, begin, end, y, height) => svg.append(shape("rect", { x: 1000 * (begin - from) / (to - from), width: Math.max(2, 1000 * (end - begin) / (to - from)), y, height, class: className }));
      part(each.ended_ns ? "ran" : "ran runs", each.began_ns, ended(each), 3, 6);
      for (const stretch of path.get(each.program_id) ?? []) part("critical", stretch.began_ns, stretch.ended_ns, 1, 10);
      bar.append(svg);
      return cells([who, bar, span(each.began_ns, ended(each)) + (each.ended_ns ? "" : " so far"), each.own_path_ns ? `${duration(each.own_path_ns)} (${percent(each.own_path_ns / whole)})` : "", each.turns]);
    });
    const made = tell("div", "");
    const scroll = tell("div", "", "scroll-x");
    scroll.append(table("tree", ["program", "when", "for", "on the critical path", "turns"], rows));
    made.append(tell("h3", "Tree"), scroll);
    if (told.tree_left_out) made.append(tell("p", `${told.tree_left_out} more programs of this tree are not shown`));
    return made;
  }

  function show() {
    if (!name) return;
    if (!told) { box.replaceChildren(heading(), tell("p", failed)); return; }
    const unfolded = new Set([...box.querySelectorAll("details[open]")].map((each) => each.dataset.title));
    const first = !box.querySelector("svg.line"), scrolled = box.querySelector(".scroll")?.scrollTop ?? 0;
    const kept = box.querySelector("svg.line") ?? board(), controls = box.querySelector(".buttons") ?? buttons();
    const folds = [
      folded(`Decisions (${told.decisions.length})`, table("decision-table", ["at", "decision", "why", "what came of it", "computed again", "token-seconds", "cost", "gain", "net"], decisionRows()), first || unfolded.has("Decisions")),
      folded(`Turns (${told.turns.length})`, table("turn-table", ["turn", "at", "at the gate", "in its queue", "to first token", "in the engine", "prompt", "found", "output", "engine", "end"], turnRows()), unfolded.has("Turns")),
      folded(`Tools (${told.tools.length})`, table("tool-table", ["tool", "at", "waited", "for", "end"], toolRows()), unfolded.has("Tools")),
    ];
    const rest = tell("p", "", "rest");
    if (told.left_out) rest.append(`${told.left_out.toLocaleString()} earlier turns, tool calls and decisions made room for others. `);
    const command = tell("code", `penstock explain ${/^[\w.\/:-]+$/.test(name) ? name : `'${name.replaceAll("'", `'\\''`)}'`}`);
    rest.append("The rule and the numbers behind each decision: ", command);
    box.replaceChildren(heading(), summary(), tell("p", account(), "account"), legend(), kept, controls, ...(told.tree.length ? [tree()] : []), ...folds, rest);
    for (const made of folds) sortable(made.querySelector("table"));
    box.querySelector(".scroll").scrollTop = scrolled;
    draw();
  }

  follow();
})();
