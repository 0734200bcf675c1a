"""Programs that send sub-agents and wait for all of them (fork and join).

The call that sends them is a tool of the parent's: it is reported where the parent reports tools, lasts until the
last of the sub-agents has ended, and takes neither a slot of the host nor a CPU.
"""

from collections.abc import Callable, Iterator
from typing import Any

from controlplane.core import events as ev
from controlplane.lab.sim.kernel import Kernel
from controlplane.lab.sim.publisher import Publisher
from controlplane.lab.sim.session import Session
from controlplane.lab.workload.trace import gap_ns


def never_begin(session: Session) -> Iterator[Session]:
    """Sub-agents of a program that has ended before it sent them, and theirs."""
    for turn, children in session.children.items():
        if turn >= session.index and not session.is_last:
            for child in children:
                yield child
                yield from never_begin(child)


class Forks:
    """``begin`` starts a sub-agent, ``go_on`` a parent's next turn; both are the world's."""

    def __init__(
        self,
        kernel: Kernel,
        rank: int,
        publisher: Publisher,
        tell: Callable[[ev.Event], None],
        begin: Callable[[Session], None],
        go_on: Callable[[Session], None],
    ) -> None:
        self._kernel = kernel
        self._rank = rank
        self._publisher = publisher
        self._tell = tell
        self._begin = begin
        self._go_on = go_on
        self._since_ns: dict[str, int] = {}  # by parent that waits

    def fork(self, session: Session) -> None:
        """The turn that has ended sends sub-agents. The call takes its own time in the trace at least."""
        now_ns, turn, children = self._kernel.now_ns, session.turn, session.children[session.index]
        session.waits_for = len(children) + 1
        self._since_ns[session.program_id] = now_ns
        if session.told.run:
            of: dict[str, Any] = {
                "program_id": session.program_id,
                "call_id": session.call.turn_id,
                "tool": turn.tool,
            }
            self._tell(ev.ToolEnqueued(**self._publisher.stamp(now_ns), **of))
            self._tell(ev.ToolStarted(**self._publisher.stamp(now_ns), **of))
        for child in children:
            self._kernel.schedule(now_ns, self._rank, self._begin, child)
        self._kernel.schedule(now_ns + gap_ns(turn), self._rank, self.join, session)

    def join(self, parent: Session) -> None:
        """Something that the parent waits for is over, its call or a sub-agent; with the last one it goes on."""
        parent.waits_for -= 1
        if parent.waits_for:
            return
        now_ns, since_ns = self._kernel.now_ns, self._since_ns.pop(parent.program_id)
        if parent.told.run:
            self._tell(
                ev.ToolEnded(
                    **self._publisher.stamp(now_ns),
                    program_id=parent.program_id,
                    call_id=parent.call.turn_id,
                    tool=parent.turn.tool,
                    duration_ns=now_ns - since_ns,
                )
            )
        self._go_on(parent)
