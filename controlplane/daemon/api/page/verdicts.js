"use strict";
// What decisions cost and gained, what the preset gains, and what a shadow would have decided.
(() => {
  const KINDS = { earlier: "let in earlier", later: "let in later", slot_taken: "slots taken back", slot_kept: "slots left", retained: "contexts kept", not_retained: "contexts given up", ttl: "kept for another time", moved: "moved otherwise", placed: "placed elsewhere", unjudged: "not compared" };
  const CHANGES = { mean_jct_s: ["mean completion time", "%"], p95_ttft_s: ["95th percentile of the time to the first token", "%"], hit_rate: ["hit rate", " points"] };
  const GAINS = { completion: "mean completion", first_token_p99: "p99 of first tokens", again_tokens: "tokens computed again" };
  const ENDED = { gain: "ended for a gain: the preset stays", loss: "ended for a loss: fcfs is in force", length: "ended for its length: the preset stays" };
  const signed = (ratio) => `${ratio >= 0 ? "+" : "−"}${Math.abs(100 * ratio).toFixed(0)}`;

  window.addEventListener("told", ({ detail }) => {
    verdicts(detail.regret);
    shadow(detail.status);
    byId("gain").textContent = gain(detail.status);
  });

  function verdicts(told) {
    fold("regret", told.kinds.length > 0);
    byId("regret-few").hidden = told.kinds.length > 0;
    byId("sentences").replaceChildren(...told.sentences.map((each) => tell("li", `${each.text}.`)));
    byId("regret-note").textContent = told.note;
    byId("regret-words").textContent = told.kinds.length ? `${told.again_tokens.toLocaleString()} tokens computed again, ${told.pins_lost.toLocaleString()} pins given up by engines; gaps between turns cost ${told.regret_ratio.toFixed(2)} times what hindsight would have paid` : "";
    arrange(byId("regret-kinds"), told.kinds.map((kind) => {
      const line = tell("tr", ""), few = kind.judged < told.least_judged, each = (s) => few ? cell("", "") : cell(amount(s / kind.count), s / kind.count);
      const count = few ? `too few to judge (${kind.judged})` : kind.count.toLocaleString();
      line.append(cell(kindOf(kind.kind)), cell(count, kind.count), cell(kind.again_tokens.toLocaleString(), kind.again_tokens), each(kind.cost_s), each(kind.gain_s));
      return line;
    }));
    byId("verdicts").replaceChildren(...told.latest.slice(0, 8).map(({ verdict, happened }) => {
      const again = verdict.again_tokens ? `; ${verdict.again_tokens.toLocaleString()} tokens computed again` : "";
      return item([`${signedSeconds(verdict.gain_s - verdict.cost_s)} ${kindOf(verdict.kind)}, `, programLink(verdict.program_id)], `after ${duration(verdict.closed_ns - verdict.opened_ns) || "0s"} ${happened}${again}`);
    }));
  }

  // What the preset in force gains over the stock policies, as slices of time under each have it.
  function gain({ experiment: found, now_ns }) {
    if (!found) return "";
    const said = found.changes.map((each) => `${GAINS[each.name]} ${signed(each.value)}%${each.is_bounded ? `\u00a0[${signed(each.low)},\u00a0${signed(each.high)}]` : ""}`);
    const since = found.since_ns ? `, seen from ${duration(found.ended_ns - found.since_ns)} before that on` : "";
    const now = found.standing in ENDED ? ENDED[found.standing].replace(":", `${since}:`) : `${found.is_stock ? "fcfs" : found.preset} is in force for ${duration(found.slice_ends_ns - now_ns) || "0s"} more`;
    const short = found.censored ? `, ${percent(found.censored / found.programs)} of them cut at washout_s` : "";
    return `${found.preset} beside fcfs: ${said.join(", ") || "nothing to compare yet"} (${found.blocks} blocks, ${found.programs.toLocaleString()} programs${short}); ${now}`;
  }

  // What decides beside the controller in force, where it decides otherwise, and what that is estimated to change.
  function shadow({ shadow: other, now_ns, preset }) {
    fold("shadow", !!other);
    byId("shadow-none").hidden = !!other;
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
})();
