"""A program with its sub-agents as ``penstock explain`` shows it: who ran when, and what its time was made of.

The critical path is found from the end: a parent's last stretch began when the last sub-agent had ended that ended
before it; what that one's time was made of is found likewise; and before it began the parent ran itself again. Of
each stretch it is told for how long turns of its program were held at a gate, as admissions say that end holds.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from controlplane.operate.printing import duration
from controlplane.wire.decisions import Account, DecisionRecord, Record, RunRecord

_ADMIT = "admit"


@dataclass(slots=True)
class Node:
    """One program's run and its sub-agents', in the order in which they began."""

    run: RunRecord
    children: list["Node"] = field(default_factory=list)
    held: list[tuple[int, int]] = field(
        default_factory=list
    )  # from when until when turns of its own were held, in ns


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a critical path: the program whose own time it is."""

    program_id: str
    began_ns: int
    ended_ns: int
    held_ns: int = 0  # of that a turn of the program was held at a gate


def tree(records: Iterable[Record], program_id: str) -> Node | None:
    """The last run of that program that has ended, with its sub-agents'; None if it had none."""
    runs: dict[tuple[str, int], RunRecord] = {}  # who went on after an end was told of ended later
    held: dict[str, list[tuple[int, int]]] = {}
    for record in records:
        if isinstance(record, RunRecord):
            key = record.program_id, record.began_ns
            runs.pop(key, None)
            runs[key] = record
        elif isinstance(record, DecisionRecord) and record.kind == _ADMIT and record.waited_ns:
            span = record.now_ns - record.waited_ns, record.now_ns
            held.setdefault(record.program_id, []).append(span)
    own = [run for run in runs.values() if run.program_id == program_id]
    if not own:
        return None
    node = _node(own[-1], list(runs.values()), held)
    return node if node.children else None


def whose(records: Iterable[Record], program_id: str) -> str:
    """Of a sub-agent that has ended, in a line: whose it was, and where its tree is shown; empty of others."""
    runs = [each for each in records if isinstance(each, RunRecord) and each.program_id == program_id]
    if not runs or not runs[-1].parent_id:
        return ""
    run = runs[-1]
    took = _said(run.ended_ns - run.began_ns)
    return (
        f"a sub-agent of {run.parent_id}: {run.turns} turns in {took}; its tree: penstock explain {run.parent_id}"
    )


def _node(run: RunRecord, runs: list[RunRecord], held: Mapping[str, list[tuple[int, int]]]) -> Node:
    below = [each for each in runs if each.parent_id == run.program_id and _within(each, run)]
    spans = [
        (began, ended) for began, ended in held.get(run.program_id, ()) if run.began_ns <= ended <= run.ended_ns
    ]
    children = [_node(each, runs, held) for each in sorted(below, key=lambda each: each.began_ns)]
    return Node(run, children, spans)


def _within(child: RunRecord, parent: RunRecord) -> bool:
    """Names are used again: only what ended during a run is part of it."""
    inside = parent.began_ns <= child.began_ns and child.ended_ns <= parent.ended_ns
    return inside and child.program_id != parent.program_id


def critical_path(node: Node) -> list[Stretch]:
    """The stretches that the run's time is made of, the first in front."""
    found: list[Stretch] = []
    at_ns = node.run.ended_ns
    for child in sorted(node.children, key=lambda each: each.run.ended_ns, reverse=True):
        if child.run.ended_ns > at_ns:
            continue  # it ran beside one that ended later
        found.append(_stretch(node, child.run.ended_ns, at_ns))
        found += reversed(critical_path(child))
        at_ns = child.run.began_ns
    found.append(_stretch(node, node.run.began_ns, at_ns))
    return [stretch for stretch in reversed(found) if stretch.ended_ns > stretch.began_ns]


def _stretch(node: Node, began_ns: int, ended_ns: int) -> Stretch:
    """Turns of one program that are held at once count once."""
    held_ns, counted_ns = 0, began_ns
    for since_ns, until_ns in sorted(node.held):
        since_ns, until_ns = max(since_ns, counted_ns), min(until_ns, ended_ns)
        if until_ns > since_ns:
            held_ns += until_ns - since_ns
            counted_ns = until_ns
    return Stretch(node.run.program_id, began_ns, ended_ns, held_ns)


def lines(node: Node) -> Iterator[str]:
    """The tree, a line a program, and its critical path, for a person."""
    path = critical_path(node)
    on_it = {stretch.program_id for stretch in path}
    began_ns, whole_ns = node.run.began_ns, max(1, node.run.ended_ns - node.run.began_ns)
    yield f"tree: {_count(node)} programs in {_said(whole_ns)}; * is on the critical path"
    yield from _branch(node, began_ns, on_it, 0)
    if (account := node.run.account) is not None:
        yield _budget(account)
    own_ns = sum(each.ended_ns - each.began_ns for each in path if each.program_id == node.run.program_id)
    held_ns = sum(each.held_ns for each in path)
    held = f"; {held_ns / whole_ns:.0%} of it held at the gate" if held_ns else ""
    yield f"critical path: {own_ns / whole_ns:.0%} {node.run.program_id} itself, the rest its sub-agents{held}"
    for stretch in path:
        took_ns = stretch.ended_ns - stretch.began_ns
        at = _said(stretch.began_ns - began_ns)
        held = f", held at the gate for {_said(stretch.held_ns)}" if stretch.held_ns else ""
        yield f"    at {at} for {_said(took_ns)} ({took_ns / whole_ns:.0%}): {stretch.program_id}{held}"


def _budget(account: Account) -> str:
    """What the run has had with all below it, of what it was allowed."""
    turns = f"{account.turns:,}" + (f" of {account.most_turns:,}" if account.most_turns else "")
    held = f"{account.kv_token_s:,.0f}" + (f" of {account.most_kv_token_s:,.0f}" if account.most_kv_token_s else "")
    stopped = f"; stopped: {account.stopped}" if account.stopped else ""
    return f"budget: {turns} turns and {held} KV token-seconds, its sub-agents' included{stopped}"


def _branch(node: Node, began_ns: int, on_it: set[str], depth: int) -> Iterator[str]:
    run = node.run
    mark = "*" if run.program_id in on_it else " "
    at, took = _said(run.began_ns - began_ns), _said(run.ended_ns - run.began_ns)
    yield f"  {mark} {'  ' * depth}{run.program_id}: at {at} for {took}, {run.turns} turns"
    for child in node.children:
        yield from _branch(child, began_ns, on_it, depth + 1)


def _count(node: Node) -> int:
    return 1 + sum(map(_count, node.children))


def _said(ns: int) -> str:
    return duration(ns) or "0.0s"
