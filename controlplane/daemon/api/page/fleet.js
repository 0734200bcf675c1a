"use strict";
// Engines: a row each with its pool, what moved between them last, and who waits for what. Tenants: a row each.
(() => {
  window.addEventListener("told", ({ detail }) => {
    fleet(detail);
    tenants(detail.status);
  });

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
    arrange(byId("engines"), engines.engines.map((engine) => engineRow(engine, there.get(engine.place))));
    const left_out = engines.total - engines.engines.length;
    byId("engines-left-out").textContent = left_out > 0 ? `${left_out} more engines are not shown: those in trouble and the fullest are` : "";
    byId("moves").replaceChildren(...(engines.moves.length ? engines.moves.slice(0, 8).map((move) => item([programLink(move.program_id), `: ${move.from_place} → ${move.to_place}`], `${duration(status.now_ns - move.at_ns) || "0s"} ago; ${move.reason}`)) : [item("nobody was sent elsewhere lately", "")]));
    const waiting = listing.programs.filter((program) => program.queue_position).slice(0, 8);
    byId("queue").replaceChildren(...(waiting.length ? waiting.map((program) => item([`#${program.queue_position} `, programLink(program.program_id)], `${duration(program.hold_ns) || "0s"}: ${program.waits_for}${program.replica ? `; ran on ${program.replica}` : ""}`)) : [item("nobody waits", "")]));
  }

  // What a tenant has had of all fills the bar, and its part by weight is told below.
  function tenants({ tenants: rows, tenants_jain_index: jain }) {
    byId("tenants").hidden = !rows.length;
    const weights = rows.reduce((sum, row) => sum + (row.turns || row.waiting ? row.weight : 0), 0);
    byId("tenants-words").textContent = `Jain's index ${jain.toFixed(3)}`;
    arrange(byId("tenant-rows"), rows.map((row) => {
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
      const part = cell("", row.kv_ratio);
      part.append(bar, tell("small", words));
      const budget = row.spent_ratio ? `${percent(row.spent_ratio)}, ${duration(row.window_ns)} to go` : "";
      line.append(named(row.tenant, row.tenant), part, cell(row.weight), cell(row.share ? percent(row.share) : "", row.share || ""), cell(row.active), cell(row.waiting), cell(row.turns.toLocaleString(), row.turns), cell(budget, row.spent_ratio || ""), cell(row.refused || ""));
      return line;
    }));
  }

  function engineRow(engine, programs) {
    const trouble = engine.silent || engine.standing === "gone";
    const line = tell("tr", "", trouble ? "trouble" : engine.passive || engine.standing === "draining" ? "attention" : "");
    const name = named([engine.place, ...(engine.address ? [tell("small", engine.address)] : [])], engine.place);
    const standing = [engine.standing || "serving", engine.silent && "does not answer", engine.passive && "passive", !engine.has_plugin && "no plugin"].filter(Boolean).join(", ");
    const state = cell(standing);
    state.title = engine.passive;
    const crowd = cell(engine.programs, engine.programs);
    const dots = tell("span", "", "dots");
    dots.append(...programs.slice(0, 24).map((program) => { const dot = tell("span", "", program.phase); dot.title = program.program_id; return dot; }));
    crowd.append(dots);
    line.append(name, state, pool(engine), cell(engine.turns), crowd, cell(engine.waiting), cell(engine.heard_ns ? `${duration(engine.heard_ns) || "0s"} ago` : "never", engine.heard_ns || ""));
    return line;
  }

  // What is wanted of the pool fills it from the left; where more is wanted than there is, the bar is the demand and its end is red.
  function pool(engine) {
    const made = cell("", engine.kv_use_ratio);
    if (!engine.kv_total_blocks) return made;
    const whole = Math.max(engine.kv_total_blocks, engine.kv_demand_blocks);
    const bar = tell("div", "", "pool");
    const part = (className, blocks) => { const span = tell("span", "", className); span.style.width = `${100 * blocks / whole}%`; bar.append(span); };
    part("wanted", Math.min(engine.kv_demand_blocks, engine.kv_total_blocks));
    part("over", Math.max(0, engine.kv_demand_blocks - engine.kv_total_blocks));
    part("pinned", engine.kv_retained_blocks);
    const words = `${percent(engine.kv_use_ratio)} of ${engine.kv_total_blocks.toLocaleString()} blocks, ${engine.kv_free_blocks.toLocaleString()} free`;
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", words);
    made.append(bar);
    if (engine.host_total_blocks) {
      const host = tell("span", "", "host-bar");
      host.style.backgroundSize = `${100 * engine.host_used_blocks / engine.host_total_blocks}% 100%`;
      made.append(host);
    }
    made.append(tell("small", words));
    return made;
  }
})();
