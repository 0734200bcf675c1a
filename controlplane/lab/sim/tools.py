"""Tools: each takes the time that its turn says, longer where CPUs are contended for, in one of so many slots."""

from collections import deque
from collections.abc import Callable

from controlplane.core import events as ev
from controlplane.core.types import NANOSECONDS_PER_SECOND
from controlplane.lab.sim.kernel import Kernel
from controlplane.lab.sim.publisher import Publisher
from controlplane.lab.sim.session import Session
from controlplane.lab.sim.tool_host import ToolHost

Done = Callable[[Session], None]
_Asked = tuple[int, Session, str, int, Done]  # when, of whom, which tool, how long it takes alone, what follows


class ToolRunner:
    """Runs tools and tells of them. ``slots`` 0: as many at once as are asked for, else first come first served.

    ``asks``: each waits until the controller lets it start, too. ``host`` None: tools do not slow each other down.
    """

    def __init__(
        self,
        kernel: Kernel,
        tell: Callable[[ev.Event], None],
        slots: int,
        rank: int,
        host: ToolHost | None = None,
        *,
        asks: bool = False,
    ) -> None:
        self.publisher = Publisher("sim/tool/1")
        self.host = host
        self._kernel = kernel
        self._tell = tell
        self._rank = rank
        self._slots = slots
        self._asks = asks
        self._running = 0
        self._queue: deque[_Asked] = deque()
        self._asked: dict[str, _Asked] = {}  # by call: those that the controller has not let start
        self._started = 0
        self._waited_ns = 0

    def run(self, session: Session, tool: str, duration_ns: int, done: Done) -> None:
        """Run the tool that a session's turn called, then call ``done``."""
        asked = (self._kernel.now_ns, session, tool, duration_ns, done)
        asks = self._asks and session.told.run
        if asks:
            self._asked[session.call.turn_id] = asked
        if session.told.run:
            self._tell(
                ev.ToolEnqueued(
                    **self.publisher.stamp(self._kernel.now_ns),
                    program_id=session.program_id,
                    call_id=session.call.turn_id,
                    tool=tool,
                    wants_slot=asks,
                )
            )
        if not asks:
            self._begin(asked)

    def let_start(self, call_id: str) -> None:
        """The controller's answer."""
        asked = self._asked.pop(call_id, None)
        if asked is not None:
            self._begin(asked)

    @property
    def wait_mean_s(self) -> float:
        """From being asked for to the start; 0: none has started."""
        return self._waited_ns / self._started / NANOSECONDS_PER_SECOND if self._started else 0.0

    def _begin(self, asked: _Asked) -> None:
        if self._slots and self._running >= self._slots:
            self._queue.append(asked)
        else:
            self._start(*asked)

    def _start(self, asked_ns: int, session: Session, tool: str, duration_ns: int, done: Done) -> None:
        self._running += 1
        now_ns = self._kernel.now_ns
        self._started += 1
        self._waited_ns += now_ns - asked_ns
        if session.told.run:
            self._tell(
                ev.ToolStarted(
                    **self.publisher.stamp(now_ns),
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
        use_ratio, stall_ratio = self.host.sample() if self.host is not None else (0.0, 0.0)
        return ev.HostSampled(
            **self.publisher.stamp(self._kernel.now_ns),
            cpus=cpus,
            cpu_use_ratio=use_ratio,
            cpu_stall_ratio=stall_ratio,
        )

    def _end(self, session: Session, tool: str, started_ns: int, done: Done) -> None:
        self._running -= 1
        now_ns = self._kernel.now_ns
        if session.told.run:
            self._tell(
                ev.ToolEnded(
                    **self.publisher.stamp(now_ns),
                    program_id=session.program_id,
                    call_id=session.call.turn_id,
                    tool=tool,
                    duration_ns=now_ns - started_ns,
                )
            )
        if self._queue:
            self._start(*self._queue.popleft())
        done(session)
