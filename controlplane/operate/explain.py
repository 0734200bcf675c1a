"""``penstock explain``: one program's decisions, in order, with their outcomes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from controlplane.operate.tables import duration
from controlplane.wire.decisions import DecisionRecord, OutcomeRecord, Record


@dataclass(slots=True)
class Explained:
    """A decision and its outcomes."""

    decision: DecisionRecord
    outcomes: list[OutcomeRecord] = field(default_factory=list)


def story(records: Iterable[Record], program_id: str) -> list[Explained]:
    """The decisions about that program, in order, each with its outcomes."""
    told: dict[int, Explained] = {}
    for record in records:
        if record.program_id != program_id:
            continue
        if isinstance(record, DecisionRecord):
            told[record.number] = Explained(record)
        elif record.number in told:
            told[record.number].outcomes.append(record)
    return list(told.values())


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
    for each in explained:
        yield from _lines(each)


def _lines(each: Explained) -> Iterator[str]:
    decision, numbers = each.decision, each.decision.numbers
    ttl_ns = decision.values.get("ttl_ns", 0)
    how = "".join(f" {value}" for name, value in decision.values.items() if name != "ttl_ns")
    until = f" for {duration(ttl_ns)}" if ttl_ns else ""
    yield f"{decision.at[11:23]}  {decision.kind}{how}{until}: {decision.reason}"
    limit = numbers.limit or "no limit"
    yield (
        f"    rule: {decision.rule}; window {limit} ({numbers.window:.1f} before caps), {numbers.active} active, "
        f"{numbers.waiting} waiting, KV {numbers.kv_use_ratio:.0%}, CPU {numbers.cpu_use_ratio:.0%}, "
        f"{numbers.tools_active} tools at {numbers.tool_slowdown_ratio:.2f} times their time"
    )
    if decision.context_tokens:
        tool = f", tool {decision.tool}" if decision.tool else ""
        yield f"    program: {decision.context_tokens:,} tokens of context{tool}"
    if decision.alternatives:
        others = (
            f"{a.program_id} ({a.blocks:,} blocks, waited {duration(a.waited_ns)})" for a in decision.alternatives
        )
        yield f"    instead of: {', '.join(others)}"
    for outcome in each.outcomes:
        yield f"    outcome after {duration(outcome.after_ns) or '0.0s'}: {outcome.outcome}"
