"""A program with its sub-agents as ``penstock explain`` shows it: who ran when, and what its time was made of."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeGuard

from controlplane.daemon.observe.critical_path import Node, PathSegment, critical_path
from controlplane.operate.printing import duration
from controlplane.wire.decisions import Account, DecisionRecord, Record, RunRecord

_ADMIT = "admit"
_MOST_INDENTED = 40  # levels: deeper ones stand below each other


__all__ = ["Node", "PathSegment", "critical_path", "keep", "lines", "tree", "whose"]


def keep(records: Iterable[Record], retained: list[Record]) -> Iterator[Record]:
    """The same records, of which those that trees are made of are put into ``retained``: a log may be long."""
    for record in records:
        if isinstance(record, RunRecord) or _held(record):
            retained.append(record)
        yield record


def _held(record: Record) -> TypeGuard[DecisionRecord]:
    return isinstance(record, DecisionRecord) and record.kind == _ADMIT and record.waited_ns > 0


def tree(records: Iterable[Record], program_id: str) -> Node[RunRecord] | None:
    """The last run of that program that has ended, with its sub-agents'; None if it had none."""
    runs: dict[tuple[str, int], RunRecord] = {}  # who went on after an end was told of ended later
    held: dict[str, list[tuple[int, int]]] = {}
    for record in records:
        if isinstance(record, RunRecord):
            key = record.program_id, record.began_ns
            runs.pop(key, None)
            runs[key] = record
        elif _held(record):
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
    took = _length(run.ended_ns - run.began_ns)
    return (
        f"a sub-agent of {run.parent_id}: {run.turns} turns in {took}; its tree: penstock explain {run.parent_id}"
    )


def _node(run: RunRecord, runs: list[RunRecord], held: Mapping[str, list[tuple[int, int]]]) -> Node[RunRecord]:
    children: dict[str, list[RunRecord]] = {}
    for each in sorted(runs, key=lambda each: each.began_ns):
        children.setdefault(each.parent_id, []).append(each)
    top = Node(run, held=_spans(run, held))
    todo, seen = [top], {id(run)}
    while todo:
        parent = todo.pop()
        for each in children.get(parent.run.program_id, ()):
            if id(each) not in seen and _within(each, parent.run):
                seen.add(id(each))
                parent.children.append(Node(each, held=_spans(each, held)))
        todo += parent.children
    return top


def _spans(run: RunRecord, held: Mapping[str, list[tuple[int, int]]]) -> list[tuple[int, int]]:
    return [
        (began, ended) for began, ended in held.get(run.program_id, ()) if run.began_ns <= ended <= run.ended_ns
    ]


def _within(child: RunRecord, parent: RunRecord) -> bool:
    """Names are used again: only what ended during a run is part of it."""
    inside = parent.began_ns <= child.began_ns and child.ended_ns <= parent.ended_ns
    return inside and child.program_id != parent.program_id


def lines(node: Node[RunRecord]) -> Iterator[str]:
    """The tree, a line a program, and its critical path, for a person."""
    path = critical_path(node)
    on_it = {segment.program_id for segment in path}
    began_ns, whole_ns = node.run.began_ns, max(1, node.run.ended_ns - node.run.began_ns)
    branches = list(_branches(node, on_it))
    yield f"tree: {len(branches)} programs in {_length(whole_ns)}; * is on the critical path"
    yield from branches
    if (account := node.run.account) is not None:
        yield _budget(account)
    own_ns = sum(each.ended_ns - each.began_ns for each in path if each.program_id == node.run.program_id)
    held_ns = sum(each.held_ns for each in path)
    held = f"; {held_ns / whole_ns:.0%} of it waited at the gate" if held_ns else ""
    yield f"critical path: {own_ns / whole_ns:.0%} {node.run.program_id} itself, the rest its sub-agents{held}"
    for segment in path:
        took_ns = segment.ended_ns - segment.began_ns
        at = _length(segment.began_ns - began_ns)
        held = f", waited at the gate for {_length(segment.held_ns)}" if segment.held_ns else ""
        yield f"    at {at} for {_length(took_ns)} ({took_ns / whole_ns:.0%}): {segment.program_id}{held}"


def _budget(account: Account) -> str:
    """What the run has had with all below it, of what it was allowed."""
    turns = f"{account.turns:,}" + (f" of {account.most_turns:,}" if account.most_turns else "")
    held = f"{account.kv_token_s:,.0f}" + (f" of {account.most_kv_token_s:,.0f}" if account.most_kv_token_s else "")
    stopped = f"; stopped: {account.stopped}" if account.stopped else ""
    return f"budget: {turns} turns and {held} KV token-seconds, its sub-agents' included{stopped}"


def _branches(top: Node[RunRecord], on_it: set[str]) -> Iterator[str]:
    todo = [(top, 0)]
    while todo:
        node, depth = todo.pop()
        run = node.run
        mark = "*" if run.program_id in on_it else " "
        at, took = _length(run.began_ns - top.run.began_ns), _length(run.ended_ns - run.began_ns)
        indent = "  " * min(depth, _MOST_INDENTED)
        yield f"  {mark} {indent}{run.program_id}: at {at} for {took}, {run.turns} turns"
        todo += [(child, depth + 1) for child in reversed(node.children)]


def _length(ns: int) -> str:
    return duration(ns) or "0.0s"
