"""``penstock explain``: one program's decisions in order, with outcomes and verdicts; several daemons' in one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.core.regret import Verdict
from controlplane.core.regret.descriptions import what_happened
from controlplane.operate.printing import duration
from controlplane.operate.tables import window_words
from controlplane.wire.decisions import DecisionRecord, OutcomeRecord, Record, VerdictRecord

_LEAST_NS = 50_000_000  # shorter parts of a hold would be shown as none


@dataclass(slots=True)
class Explained:
    """A decision, its outcomes, and what it cost and brought. ``source`` names the daemon whose log they are from.

    ``afterwards``: verdicts on what nobody decided, before the next decision.
    """

    decision: DecisionRecord
    outcomes: list[OutcomeRecord] = field(default_factory=list)
    verdicts: list[VerdictRecord] = field(default_factory=list)
    afterwards: list[VerdictRecord] = field(default_factory=list)
    source: str = ""

    def entries(self) -> dict[str, Any]:
        names = ("source", "decision", "outcomes", "verdicts", "afterwards")
        return {name: getattr(self, name) for name in names}


def story(records: Iterable[Record], program_id: str, source: str = "") -> list[Explained]:
    """The decisions about that program in one log, in order, each with its outcomes."""
    entries: dict[int, Explained] = {}
    latest: Explained | None = None
    for record in records:
        if record.program_id != program_id:
            continue
        if isinstance(record, DecisionRecord):
            number = record.number or -len(entries)  # of what nobody decided nothing is told later
            latest = entries[number] = Explained(record, source=source)
        elif isinstance(record, VerdictRecord):
            if record.number in entries:
                entries[record.number].verdicts.append(record)
            elif latest is not None and not record.number:
                latest.afterwards.append(record)
        elif isinstance(record, OutcomeRecord) and record.number in entries:
            entries[record.number].outcomes.append(record)
    return list(entries.values())


def stories(logs: Mapping[str, Iterable[Record]], program_id: str) -> list[Explained]:
    """The same from the logs of several daemons, by their names, in the order of their hosts' clocks."""
    entries = [each for source, records in logs.items() for each in story(records, program_id, source)]
    return sorted(entries, key=lambda each: each.decision.at) if len(logs) > 1 else entries


def names(records: Iterable[Record]) -> list[str]:
    """The programs that were decided about, the latest last."""
    seen: dict[str, None] = {}
    for record in records:
        if record.program_id:
            seen.pop(record.program_id, None)
            seen[record.program_id] = None
    return list(seen)


def lines(explained: Sequence[Explained]) -> Iterator[str]:
    """Each decision with its rule, numbers, alternatives and outcomes, in lines for a person."""
    several = len({each.source for each in explained}) > 1
    for each in explained:
        yield from _lines(each, f"{each.source}  " if several else "")


def ways(explained: Sequence[Explained]) -> Iterator[str]:
    """A line for each turn that more than one daemon let go: where it waited how long, and where it began."""
    waits: dict[str, list[Explained]] = {}
    began: dict[str, OutcomeRecord] = {}
    for each in explained:
        for turn_id in each.decision.turns:
            waits.setdefault(turn_id, []).append(each)
        began |= {outcome.turn_id: outcome for outcome in each.outcomes if outcome.turn_id}
    for turn_id, held in waits.items():
        if len({each.source for each in held}) < 2:
            continue
        stops = [f"{duration(each.decision.waited_ns) or '0.0s'} at {each.source}" for each in held]
        outcome = began.get(turn_id)
        end = f"; on {outcome.engine} {outcome.outcome}" if outcome is not None else ""
        yield f"turn {turn_id}: waited {', then '.join(stops)}{end}"


def _lines(each: Explained, source: str) -> Iterator[str]:
    decision, numbers = each.decision, each.decision.numbers
    yield f"{decision.at[11:23]}  {source}{decision.kind}{_how(decision)}: {decision.reason}"
    rule = decision.rule or "none"
    yield (
        f"    rule: {rule}; window {window_words(numbers.limit, numbers.window)}, {numbers.active} active, "
        f"{numbers.waiting} waiting, KV {numbers.kv_use_ratio:.0%}, CPU {numbers.cpu_use_ratio:.0%}, "
        f"{numbers.tools_active} tools at {numbers.tool_slowdown_ratio:.2f} times their time"
    )
    if decision.turns:
        yield f"    turns: {', '.join(decision.turns)}, {_hold(decision)}"
    if decision.context_tokens:
        tool = f", tool {decision.tool}" if decision.tool else ""
        where = f", on {decision.engine}" if decision.engine else ""
        yield f"    program: {decision.context_tokens:,} tokens of context{where}{tool}"
    if decision.alternatives:
        others = (
            f"{a.program_id} ({a.blocks:,} blocks, waited {duration(a.waited_ns)})" for a in decision.alternatives
        )
        yield f"    instead of: {', '.join(others)}"
    for outcome in each.outcomes:
        engine = f" on {outcome.engine}" if outcome.engine else ""
        yield f"    outcome after {duration(outcome.after_ns) or '0.0s'}{engine}: {outcome.outcome}"
    for judged in each.verdicts:
        yield f"    verdict{_of(judged, decision)}: {sentence(judged.verdict)}"
    for judged in each.afterwards:
        yield f"    afterwards, without a decision: {sentence(judged.verdict)}"


def _hold(decision: DecisionRecord) -> str:
    parts = [f"{duration(each.held_ns)} {each.text}" for each in decision.held if each.held_ns >= _LEAST_NS]
    why = f": {', '.join(parts)}" if parts else ""
    cause = f"; let in as {decision.cause}" if decision.cause and parts else ""
    held_ns = max(decision.waited_ns, sum(each.held_ns for each in decision.held))
    return f"waited for {duration(held_ns) or '0.0s'}{why}{cause}"


def _of(judged: VerdictRecord, decision: DecisionRecord) -> str:
    """What of the decision was judged, where that is not all of it: the hold that an admission ended."""
    return "" if judged.verdict.kind == decision.kind else f" on the {judged.verdict.kind}"


def _how(decision: DecisionRecord) -> str:
    values = decision.values
    if decision.kind == "place":
        left = f", from {values['leaves']}" if values.get("leaves") else ""
        sent = ", its KV is sent there" if values.get("moves") else ""
        return f" on {values.get('replica', '')}{left}{sent}"
    ttl_ns = values.get("ttl_ns", 0)
    until = f" for {duration(ttl_ns)}" if ttl_ns else ""
    return "".join(f" {value}" for name, value in values.items() if name != "ttl_ns") + until


def sentence(verdict: Verdict) -> str:
    """A verdict in one line, its net first: what happened, why, and both sides of the decision."""
    about = "about " if verdict.estimated else ""
    gained = _and([*_gains(verdict), f"{verdict.gain_s:.2f}s"]) if verdict.gain_s else "nothing"
    spent = _and([*_costs(verdict), f"{verdict.cost_s:.2f}s"]) if verdict.cost_s else "nothing"
    after = duration(verdict.closed_ns - verdict.opened_ns) or "0.0s"
    return f"{about}{verdict.net_s:+.2f}s: after {after} {what_happened(verdict)}; gained {gained}; cost {spent}"


def _gains(verdict: Verdict) -> list[str]:
    parts = []
    if verdict.hit_tokens:
        found = "tokens that others kept" if verdict.kind == "hold" else "tokens found"
        parts.append(f"{verdict.hit_tokens:,} {found}")
    if verdict.freed_token_s:
        parts.append(f"{verdict.freed_token_s:,.0f} token-seconds of memory")
    return parts


def _costs(verdict: Verdict) -> list[str]:
    parts = []
    if verdict.again_tokens:
        parts.append(f"{verdict.again_tokens:,} tokens computed again")
    if verdict.held_token_s:
        parts.append(f"{verdict.held_token_s:,.0f} token-seconds of memory")
    if verdict.wait_s:
        parts.append(f"{verdict.wait_s:.1f}s of waiting")
    return parts


def _and(parts: list[str]) -> str:
    """What it is in tokens, and then in seconds."""
    return parts[0] if len(parts) == 1 else f"{' and '.join(parts[:-1])} ({parts[-1]})"
