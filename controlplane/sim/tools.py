"""Tools: each takes the time that its turn says, longer where CPUs are contended for, in one of so many slots."""

from collections import deque
from collections.abc import Callable

from controlplane.core import events as ev
from controlplane.sim.kernel import Kernel
from controlplane.sim.publisher import Publisher
from controlplane.sim.session import Session
from controlplane.sim.tool_host import ToolHost

Done = Callable[[Session], None]


class ToolRunner:
    """Runs tools and tells of them. ``slots`` 0: as many at once as are asked for, else first come first served.

    ``host`` None: tools do not slow each other down.
    """

    def __init__(
        self,
        kernel: Kernel,
        tell: Callable[[ev.Event], None],
        slots: int,
        rank: int,
        host: ToolHost | None = None,
    ) -> None:
        self.publisher = Publisher("sim/tool/1")
        self.host = host
        self._kernel = kernel
        self._tell = tell
        self._rank = rank
        self._slots = slots
        self._running = 0
        self._queue: deque[tuple[Session, str, int, Done]] = deque()

    def run(self, session: Session, tool: str, duration_ns: int, done: Done) -> None:
        """Run the tool that a session's turn called, then call ``done``."""
        publisher = self.publisher
        self._tell(
            ev.ToolEnqueued(
                publisher=publisher.name,
                sequence=publisher.next(),
                at_ns=self._kernel.now_ns,
                program_id=session.program_id,
                call_id=session.call.turn_id,
                tool=tool,
            )
        )
        if self._slots and self._running >= self._slots:
            self._queue.append((session, tool, duration_ns, done))
        else:
            self._start(session, tool, duration_ns, done)

    def _start(self, session: Session, tool: str, duration_ns: int, done: Done) -> None:
        self._running += 1
        publisher, now_ns = self.publisher, self._kernel.now_ns
        self._tell(
            ev.ToolStarted(
                publisher=publisher.name,
                sequence=publisher.next(),
                at_ns=now_ns,
                program_id=session.program_id,
                call_id=session.call.turn_id,
                tool=tool,
            )
        )
        if self.host is None:
            self._kernel.schedule(now_ns + duration_ns, self._rank, self._end, session, tool, now_ns, done)
        else:
            self.host.run(tool, duration_ns, self._end, session, tool, now_ns, done)

    def sample(self, cpus: float) -> ev.HostSampled:
        """The host as the daemon's probe would see it."""
        publisher = self.publisher
        use_ratio, stall_ratio = self.host.sample() if self.host is not None else (0.0, 0.0)
        return ev.HostSampled(
            publisher=publisher.name,
            sequence=publisher.next(),
            at_ns=self._kernel.now_ns,
            cpus=cpus,
            cpu_use_ratio=use_ratio,
            cpu_stall_ratio=stall_ratio,
        )

    def _end(self, session: Session, tool: str, started_ns: int, done: Done) -> None:
        self._running -= 1
        publisher, now_ns = self.publisher, self._kernel.now_ns
        self._tell(
            ev.ToolEnded(
                publisher=publisher.name,
                sequence=publisher.next(),
                at_ns=now_ns,
                program_id=session.program_id,
                call_id=session.call.turn_id,
                tool=tool,
                duration_ns=now_ns - started_ns,
            )
        )
        if self._queue:
            self._start(*self._queue.popleft())
        done(session)
