"""A program with its sub-agents as ``penstock explain`` shows it: who ran when, and what its time was made of."""

from collections.abc import Iterable, Iterator

from controlplane.core.critical_path import Node, Stretch, critical_path
from controlplane.operate.printing import duration
from controlplane.wire.decisions import Record, RunRecord

__all__ = ["Node", "Stretch", "critical_path", "lines", "tree"]


def tree(records: Iterable[Record], program_id: str) -> Node[RunRecord] | None:
    """The last run of that program that has ended, with its sub-agents'; None if it had none."""
    runs = [record for record in records if isinstance(record, RunRecord)]
    own = [run for run in runs if run.program_id == program_id]
    if not own:
        return None
    node = _node(own[-1], runs)
    return node if node.children else None


def _node(run: RunRecord, runs: list[RunRecord]) -> Node[RunRecord]:
    below = [each for each in runs if each.parent_id == run.program_id and _within(each, run)]
    return Node(run, [_node(each, runs) for each in sorted(below, key=lambda each: each.began_ns)])


def _within(child: RunRecord, parent: RunRecord) -> bool:
    """Names are used again: only what ended during a run is part of it."""
    inside = parent.began_ns <= child.began_ns and child.ended_ns <= parent.ended_ns
    return inside and child.program_id != parent.program_id


def lines(node: Node[RunRecord]) -> Iterator[str]:
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


def _branch(node: Node[RunRecord], began_ns: int, on_it: set[str], depth: int) -> Iterator[str]:
    run = node.run
    mark = "*" if run.program_id in on_it else " "
    at, took = _said(run.began_ns - began_ns), _said(run.ended_ns - run.began_ns)
    yield f"  {mark} {'  ' * depth}{run.program_id}: at {at} for {took}, {run.turns} turns"
    for child in node.children:
        yield from _branch(child, began_ns, on_it, depth + 1)


def _count(node: Node[RunRecord]) -> int:
    return 1 + sum(map(_count, node.children))


def _said(ns: int) -> str:
    return duration(ns) or "0.0s"
