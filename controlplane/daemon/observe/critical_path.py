"""What a program's time was made of, where it waited for sub-agents: its critical path.

It is found from the end: a parent's last stretch began when the last sub-agent had ended that ended before it; what
that one's time was made of is found likewise; and before it began the parent ran itself again. Of each stretch it
is told for how long turns of its program were held at a gate, as far as its node knows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class ProgramRun(Protocol):
    """A program's run, whoever tells of it."""

    @property
    def program_id(self) -> str: ...
    @property
    def began_ns(self) -> int: ...
    @property
    def ended_ns(self) -> int: ...


R = TypeVar("R", bound=ProgramRun)


@dataclass(slots=True)
class Node(Generic[R]):
    """One program's run and its sub-agents', in the order in which they began."""

    run: R
    children: list["Node[R]"] = field(default_factory=list)
    held: list[tuple[int, int]] = field(default_factory=list)  # from when until when turns of its own were, in ns


@dataclass(frozen=True, slots=True)
class PathSegment:
    """A part of a critical path: the program whose own time it is."""

    program_id: str
    began_ns: int
    ended_ns: int
    held_ns: int = 0  # of that a turn of the program was held at a gate


def critical_path(node: Node[R]) -> list[PathSegment]:
    """The stretches that the run's time is made of, the first in front. Of any depth."""
    found: list[PathSegment] = []
    todo = [(node, _latest_first(node), node.run.ended_ns)]
    while todo:
        parent, children, at_ns = todo.pop()
        # Whoever ended later than ``at_ns`` ran beside one that is on the path.
        child = next((each for each in children if each.run.ended_ns <= at_ns), None)
        if child is None:
            found.append(_segment(parent, parent.run.began_ns, at_ns))
            continue
        found.append(_segment(parent, child.run.ended_ns, at_ns))
        todo.append((parent, children, child.run.began_ns))
        todo.append((child, _latest_first(child), child.run.ended_ns))
    return [segment for segment in reversed(found) if segment.ended_ns > segment.began_ns]


def _latest_first(node: Node[R]) -> Iterator[Node[R]]:
    return iter(sorted(node.children, key=lambda each: each.run.ended_ns, reverse=True))


def _segment(node: Node[R], began_ns: int, ended_ns: int) -> PathSegment:
    """Turns of one program that are held at once count once."""
    held_ns, counted_ns = 0, began_ns
    for since_ns, until_ns in sorted(node.held):
        since_ns, until_ns = max(since_ns, counted_ns), min(until_ns, ended_ns)
        if until_ns > since_ns:
            held_ns += until_ns - since_ns
            counted_ns = until_ns
    return PathSegment(node.run.program_id, began_ns, ended_ns, held_ns)
