"use strict";
// What each program did over time: a strip each. What was before this page was opened the daemon tells at /strips.
(() => {
  const MOST_ROWS = 60;
  const ROW_PX = 14;
  const KEPT_MS = 900_000;
  const PATIENT_MS = 5000;     // who was told of before that and is again did the same in between
  const PAINTED = ["acting", "held", "reasoning"];   // the later one over the former
  const rows = new Map();      // program -> {began, ended, seen, stretches: [[phase, from, to]]}, in the daemon's ns
  let present = { programs: [], total: 0 }, shown = [], asking = false;

  window.addEventListener("told", ({ detail }) => {
    present = detail.listing;
    for (const program of present.programs) note(program);
    const oldest = nowNs() - 1e6 * clock.scale * KEPT_MS;
    for (const [name, row] of rows) if (row.seen < oldest) rows.delete(name);
    if (detail.first) load();
    byId("phases").textContent = detail.listing.phases.filter((each) => each.programs).map((each) => `${each.programs} ${PHASES[each.phase] ?? each.phase} (${each.context_tokens.toLocaleString()} tokens)`).join(", ");
    draw();
  });
  window.addEventListener("range", draw);
  window.addEventListener("resize", draw);

  async function load() {
    if (asking) return;
    asking = true;
    try {
      const answer = await fetch("/strips", { cache: "no-store" });
      if (!answer.ok) return;
      for (const { program_id: name, began_ns: began, ended_ns: ended, stretches } of await answer.json()) {
        const seen = Math.max(rows.get(name)?.seen ?? 0, ended, ...stretches.map(([, , to]) => to));
        rows.set(name, { began, ended, seen, stretches });
      }
      draw();
    } catch { /* the page says that the daemon does not answer */ } finally {
      asking = false;
    }
  }

  function note(program) {
    const now = clock.nowNs, name = program.program_id, patient = 1e6 * clock.scale * PATIENT_MS;
    const row = rows.get(name) ?? { began: now - program.age_ns, ended: 0, seen: now, stretches: [] };
    rows.set(name, row);
    const before = now - row.seen < patient ? row.seen : now;
    const phases = [program.phase, program.retained_ns > 0 && "pinned"].filter((phase) => phase === "pinned" || PAINTED.includes(phase));
    for (const phase of phases) {
      const last = row.stretches.findLast(([each]) => each === phase);
      if (last && last[2] >= before) last[2] = now;
      else row.stretches.push([phase, before, now]);
    }
    row.seen = now;
  }

  // Who is there now, and as far as there is room whoever was there last; in the order in which they began.
  function chosen() {
    const names = new Set(present.programs.map((program) => program.program_id));
    const others = [...rows].filter(([name]) => !names.has(name)).sort(([, one], [, other]) => other.seen - one.seen);
    for (const [name] of others.slice(0, Math.max(0, MOST_ROWS - names.size))) names.add(name);
    return [...names].filter((name) => rows.has(name)).sort((one, other) => rows.get(one).began - rows.get(other).began);
  }

  function draw() {
    if (!clock.nowNs) return;
    shown = chosen();
    const { pen, width, height, ink } = sheet("timeline", Math.max(1, shown.length) * ROW_PX + 18);
    const left = Math.min(190, width / 3), spanned = Math.min(spanMs(), KEPT_MS), now = nowNs(), long = 1e6 * clock.scale * spanned;
    const x = (ns) => left + (width - left - 4) * Math.max(0, 1 - (now - ns) / long);
    const there = new Set(present.programs.map((program) => program.program_id));
    const bar = (shade, from, to, top, high) => {
      if (to <= now - long) return;
      pen.fillStyle = shade;
      pen.fillRect(x(from), top, Math.max(1, x(to) - x(from)), high);
    };
    const shades = Object.fromEntries([...PAINTED, "idle", "pinned"].map((name) => [name, colour(name)]));
    shown.forEach((name, index) => {
      const top = index * ROW_PX, row = rows.get(name);
      pen.fillStyle = ink;
      pen.fillText(tail(pen, name, left - 8), 2, top + 10);
      pen.globalAlpha = 0.35;
      bar(shades.idle, row.began, row.ended || (there.has(name) ? now : row.seen), top + 2, ROW_PX - 5);
      pen.globalAlpha = 1;
      for (const phase of PAINTED) for (const [each, from, to] of row.stretches) if (each === phase) bar(shades[phase], from, to, top + 2, ROW_PX - 5);
      for (const [each, from, to] of row.stretches) if (each === "pinned") bar(shades.pinned, from, to, top + ROW_PX - 4, 2);
    });
    pen.fillStyle = ink;
    axis(pen, left, width, height - 4, spanned);
    const left_out = present.total - present.programs.length;
    byId("left-out").textContent = left_out > 0 ? `${left_out.toLocaleString()} more programs are not shown: find them below` : "";
  }

  // As much of the end of a name as there is room for: there it differs from others.
  function tail(pen, name, room) {
    if (pen.measureText(name).width <= room) return name;
    let from = Math.max(0, name.length - Math.floor(room / 5));
    while (from < name.length && pen.measureText(`…${name.slice(from)}`).width > room) from += 1;
    return `…${name.slice(from)}`;
  }

  const canvas = byId("timeline");
  const under = (event) => shown[Math.floor((event.clientY - canvas.getBoundingClientRect().top) / ROW_PX)] ?? "";
  canvas.addEventListener("mousemove", (event) => { canvas.title = under(event); });
  canvas.addEventListener("click", (event) => { if (under(event)) location.hash = `#program=${encodeURIComponent(under(event))}`; });
})();
