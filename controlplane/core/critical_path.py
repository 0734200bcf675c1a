"""What a program's time was made of, where it waited for sub-agents: its critical path.

It is found from the end: a parent's last stretch began when the last sub-agent had ended that ended before it; what
that one's time was made of is found likewise; and before it began the parent ran itself again.
"""

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Run(Protocol):
    """A program's run, whoever tells of it."""

    @property
    def program_id(self) -> str: ...
    @property
    def began_ns(self) -> int: ...
    @property
    def ended_ns(self) -> int: ...


R = TypeVar("R", bound=Run)


@dataclass(slots=True)
class Node(Generic[R]):
    """One program's run and its sub-agents', in the order in which they began."""

    run: R
    children: list["Node[R]"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a critical path: the program whose own time it is."""

    program_id: str
    began_ns: int
    ended_ns: int


def critical_path(node: Node[R]) -> list[Stretch]:
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
