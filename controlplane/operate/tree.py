"""A program with its sub-agents as ``penstock explain`` shows it: who ran when, and what its time was made of.

The critical path is found from the end: a parent's last stretch began when the last sub-agent had ended that ended
before it; what that one's time was made of is found likewise; and before it began the parent ran itself again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from controlplane.operate.printing import duration
from controlplane.wire.decisions import Record, RunRecord


@dataclass(slots=True)
class Node:
    """One program's run and its sub-agents', in the order in which they began."""

    run: RunRecord
    children: list["Node"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a critical path: the program whose own time it is."""

    program_id: str
    began_ns: int
    ended_ns: int


def keep_runs(records: Iterable[Record], runs: list[RunRecord]) -> Iterator[Record]:
    """The same records, of which those that trees are made of are put into ``runs``: a log may be long."""
    for record in records:
        if isinstance(record, RunRecord):
            runs.append(record)
        yield record


def tree(records: Iterable[Record], program_id: str) -> Node | None:
    """The last run of that program that has ended, with its sub-agents'; None if it had none."""
    runs = [record for record in records if isinstance(record, RunRecord)]
    own = [run for run in runs if run.program_id == program_id]
    if not own:
        return None
    node = _node(own[-1], runs)
    return node if node.children else None


def _node(run: RunRecord, runs: list[RunRecord]) -> Node:
    below = [each for each in runs if each.parent_id == run.program_id and _within(each, run)]
    return Node(run, [_node(each, runs) for each in sorted(below, key=lambda each: each.began_ns)])


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
        found.append(Stretch(node.run.program_id, child.run.ended_ns, at_ns))
        found += reversed(critical_path(child))
        at_ns = child.run.began_ns
    found.append(Stretch(node.run.program_id, node.run.began_ns, at_ns))
    return [stretch for stretch in reversed(found) if stretch.ended_ns > stretch.began_ns]


def lines(node: Node) -> Iterator[str]:
    """The tree, a line a program, and its critical path, for a person."""
    path = critical_path(node)
    on_it = {stretch.program_id for stretch in path}
    began_ns, whole_ns = node.run.began_ns, max(1, node.run.ended_ns - node.run.began_ns)
    yield f"tree: {_count(node)} programs in {_said(whole_ns)}; * is on the critical path"
    yield from _branch(node, began_ns, on_it, 0)
    own_ns = sum(each.ended_ns - each.began_ns for each in path if each.program_id == node.run.program_id)
    yield f"critical path: {own_ns / whole_ns:.0%} {node.run.program_id} itself, the rest its sub-agents"
    for stretch in path:
        took_ns = stretch.ended_ns - stretch.began_ns
        at = _said(stretch.began_ns - began_ns)
        yield f"    at {at} for {_said(took_ns)} ({took_ns / whole_ns:.0%}): {stretch.program_id}"


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
