"use strict";
// Automatic advice: what it does now, what it has changed, and why.
(() => {
  const FIGURES = { mean_jct_s: "mean completion time", p95_ttft_s: "95th percentile of the time to the first token", hit_rate: "hit rate" };

  window.addEventListener("told", (event) => {
    const { advise: told, now_ns: now } = event.detail.status;
    byId("advice").hidden = !told;
    if (!told) return;
    const counts = `${told.tried} step${told.tried === 1 ? "" : "s"} made, ${told.kept} kept, ${told.undone} taken back`;
    byId("advice-words").textContent = `For ${FIGURES[told.goal] ?? told.goal}: ${standing(told, now)}${told.reason && told.phase !== "off" ? ` (${told.reason})` : ""}; ${counts}`;
    byId("advice-in-force").textContent = told.in_force.length ? `In force until the daemon ends, over what its file says: ${told.in_force.join(", ")}` : "";
    byId("advice-latest").replaceChildren(...told.latest.slice().reverse().map((each) => item(
      `${each.key} ${each.before} → ${each.after}: ${each.outcome}`, `${duration(now - each.at_ns) || "0s"} ago; ${each.reason}`,
    )));
  });

  function standing(told, now) {
    const heard = `${duration(told.heard_ns) || "0s"} of ${duration(told.wanted_ns)} heard`;
    switch (told.phase) {
      case "rests": return `rests for ${duration(Math.max(1, told.until_ns - now))}`;
      case "listens": return `listens, ${heard}`;
      case "asks": return "asks what a step would bring";
      case "tries": return `tries ${told.trying}, ${heard}`;
      case "judges": return `judges ${told.trying}`;
      default: return told.phase;
    }
  }
})();
