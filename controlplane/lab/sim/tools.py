"""Tools: each takes the time that its turn says, longer where CPUs are contended for, in one of so many slots.

A call that sends sub-agents (fork and join) is a tool of their parent's, too: it lasts until the last of them has
ended, and takes neither a slot of the host nor a CPU.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from controlplane.core.model import events as ev
from controlplane.core.model.types import NANOSECONDS_PER_SECOND
from controlplane.lab.sim.kernel import Kernel
from controlplane.lab.sim.session import Session
from controlplane.lab.sim.tool_host import ToolHost
from controlplane.lab.sim.turn_events import Publisher
from controlplane.lab.workload.trace import gap_ns


def never_begin(session: Session) -> Iterator[Session]:
    """Sub-agents of a program that has ended before it sent them, and theirs."""
    for turn, children in session.children.items():
        if turn >= session.index and not session.is_last:
            for child in children:
                yield child
                yield from never_begin(child)


class ToolRunner:
    """Runs tools and tells of them. ``slots`` 0: as many at once as are asked for, else first come first served.

    ``asks``: each waits until the controller lets it start, too. ``host`` None: tools do not slow each other down.
    ``begin`` starts a sub-agent, ``go_on`` the next turn of a program whose tool has ended; both are the world's.
    """

    def __init__(
        self,
        kernel: Kernel,
        rank: int,
        publish: Callable[[ev.Event], None],
        begin: Callable[[Session], None],
        go_on: Callable[[Session], None],
        *,
        slots: int,
        host: ToolHost | None,
        asks: bool,
    ) -> None:
        self.publisher = Publisher("sim/tool/1")
        self.host = host
        self.when_ready: Callable[[Session, Callable[[], None]], None] | None = None  # calls it back then
        self._kernel = kernel
        self._rank = rank
        self._publish = publish
        self._begin = begin
        self._go_on = go_on
        self._slots = slots
        self._asks = asks
        self._running = 0
        self._queue: deque[tuple[Session, int]] = deque()  # with the times at which they were asked for
        self._asked: dict[str, tuple[Session, int]] = {}  # by call: those that the controller has not let start
        self._forked_ns: dict[str, int] = {}  # by parent that waits for sub-agents
        self._started = 0
        self._waited_ns = 0

    @property
    def slowdown_ratio(self) -> float:
        """The time that tools took over what they would have taken alone; 0 where that was not modelled."""
        return self.host.slowdown_ratio if self.host is not None else 0.0

    @property
    def wait_mean_s(self) -> float:
        """From being asked for to the start, on average; 0: none has started."""
        return self._waited_ns / self._started / NANOSECONDS_PER_SECOND if self._started else 0.0

    def run(self, session: Session) -> None:
        """Run the tool that the session's turn called, or send its sub-agents; then its next turn begins."""
        if session.index in session.children:
            self._fork(session)
            return
        asked = (session, self._kernel.now_ns)
        if asks := self._asks and session.reported.run:
            self._asked[session.call.turn_id] = asked
        self._tell(ev.ToolEnqueued, session, wants_slot=asks)
        if not asks:
            self._take_slot(*asked)

    def let_start(self, call_id: str) -> None:
        """The controller's answer."""
        if (asked := self._asked.pop(call_id, None)) is not None:
            self._take_slot(*asked)

    def sample(self, cpus: float) -> ev.HostSampled:
        """The host as the daemon's probe would see it."""
        use_ratio, stall_ratio = self.host.sample() if self.host is not None else (0.0, 0.0)
        return ev.HostSampled(
            **self.publisher.stamp(self._kernel.now_ns),
            cpus=cpus,
            cpu_use_ratio=use_ratio,
            cpu_stall_ratio=stall_ratio,
        )

    def _tell(self, kind: type[ev.ToolEnqueued | ev.ToolStarted | ev.ToolEnded], of: Session, **more: Any) -> None:
        """What happens to the call of its turn, where its agent reports tools."""
        if of.reported.run:
            called: dict[str, Any] = {"program_id": of.program_id, "call_id": of.call.turn_id, "tool": of.turn.tool}
            self._publish(kind(**self.publisher.stamp(self._kernel.now_ns), **called, **more))

    def _take_slot(self, session: Session, asked_ns: int) -> None:
        if self._slots and self._running >= self._slots:
            self._queue.append((session, asked_ns))
        elif self.when_ready is not None:
            self.when_ready(session, partial(self._start, session, asked_ns))
        else:
            self._start(session, asked_ns)

    def _start(self, session: Session, asked_ns: int) -> None:
        now_ns, duration_ns = self._kernel.now_ns, gap_ns(session.turn)
        self._running += 1
        self._started += 1
        self._waited_ns += now_ns - asked_ns
        self._tell(ev.ToolStarted, session)
        if self.host is None:
            self._kernel.schedule(now_ns + duration_ns, self._rank, self._end, session, now_ns)
        else:
            self.host.run(session.turn.tool, duration_ns, self._end, session, now_ns)

    def _end(self, session: Session, started_ns: int) -> None:
        self._running -= 1
        self._tell(ev.ToolEnded, session, duration_ns=self._kernel.now_ns - started_ns)
        if self._queue:
            self._take_slot(*self._queue.popleft())
        self._go_on(session)

    def _fork(self, session: Session) -> None:
        """The turn that has ended sends sub-agents. The call takes its own time in the trace at least."""
        now_ns, children = self._kernel.now_ns, session.children[session.index]
        session.waits_for = len(children) + 1
        self._forked_ns[session.program_id] = now_ns
        self._tell(ev.ToolEnqueued, session)
        self._tell(ev.ToolStarted, session)
        for child in children:
            self._kernel.schedule(now_ns, self._rank, self._begin, child)
        self._kernel.schedule(now_ns + gap_ns(session.turn), self._rank, self.join, session)

    def join(self, parent: Session) -> None:
        """Something that the parent waits for is over, its call or a sub-agent; with the last one it goes on."""
        parent.waits_for -= 1
        if not parent.waits_for:
            since_ns = self._forked_ns.pop(parent.program_id)
            self._tell(ev.ToolEnded, parent, duration_ns=self._kernel.now_ns - since_ns)
            self._go_on(parent)
