"use strict";
// The table of programs: a few of each kind as the daemon tells them all the time, or, of those with something in
// their names, one page after the other, which are asked for at /programs.
(() => {
  const PAGE_ROWS = 60;
  const body = byId("programs"), search = byId("search"), said = byId("listed");
  let page = 0, few = { programs: [], total: 0 }, told = few, asking = false, again = false;

  window.addEventListener("told", (event) => {
    few = event.detail.listing;
    turn(page);
  });

  async function ask() {
    if (asking) { again = true; return; }
    asking = true;
    const asked = [page, search.value];
    try {
      const answer = await fetch(`/programs?contains=${encodeURIComponent(search.value)}&page=${page}`, { cache: "no-store" });
      const found = await answer.json();
      if (asked[0] === page && asked[1] === search.value && answer.ok) {
        told = found;
        const last = Math.max(1, pages());
        if (page > last) { page = last; again = true; }
        show();
      }
    } catch { /* the page says that the daemon does not answer */ } finally {
      asking = false;
      if (again && page) { again = false; ask(); }
    }
  }

  function pages() { return Math.ceil(told.total / PAGE_ROWS); }

  // Page 0 is what the daemon tells by itself.
  function turn(to) {
    page = to;
    if (page) { ask(); return; }
    told = few;
    show();
  }

  function show() {
    const total = told.total.toLocaleString(), found = search.value ? `${total} have “${search.value}” in their names` : `${total} programs`;
    const left = told.total - told.programs.length;
    said.textContent = page ? `${found}; page ${page.toLocaleString()} of ${Math.max(1, pages()).toLocaleString()}`
      : left > 0 ? `${told.programs.length} of ${total} programs: some that wait, some that have a slot, and others` : found;
    byId("page-back").disabled = page < (search.value ? 2 : 1);
    byId("page-on").disabled = page ? page >= pages() : left <= 0;
    byId("pager").hidden = !page && left <= 0;
    rows(told.programs);
  }

  search.addEventListener("input", () => turn(search.value ? 1 : 0));
  byId("listing").addEventListener("submit", (event) => event.preventDefault());
  byId("page-back").addEventListener("click", () => turn(search.value ? Math.max(1, page - 1) : page - 1));
  byId("page-on").addEventListener("click", () => turn(page + 1));

  // A row is changed, not made anew: what is pointed at, or has the keyboard's focus, stays.
  function rows(programs) {
    const had = new Map([...body.children].map((line) => [line.dataset.of, line]));
    arrange(body, programs.map((program) => row(program, had.get(program.program_id))));
  }

  function row(program, had) {
    const status = PHASES[program.status] ?? program.status, lasting = (ns) => [duration(ns), ns || ""];
    const cells = [
      [program.held_by_operator ? " (on hold)" : "", program.program_id], [status + (program.queue_position ? ` #${program.queue_position}` : ""), program.queue_position ? program.queue_position : status],
      [PHASES[program.phase] ?? program.phase], [program.tool], [program.turns], [program.context_tokens.toLocaleString(), program.context_tokens], [program.kv_tier],
      lasting(program.idle_ns), lasting(program.hold_ns), lasting(program.retained_ns), [program.replica], [program.moves || ""],
    ];
    const line = had ?? tell("tr", "");
    if (!had) {
      line.dataset.of = program.program_id;
      line.append(named([programLink(program.program_id), ""], program.program_id), ...cells.slice(1).map((_, index) => tell("td", "", index > 8 ? "of-several" : "")));
    }
    cells.forEach(([text, value = text], index) => {
      const shown = index ? line.children[index] : line.firstChild.firstChild.lastChild;
      if (shown.textContent !== `${text}`) shown.textContent = text;
      line.children[index].dataset.value = value;
    });
    line.children[2].className = program.phase;
    return line;
  }
})();
