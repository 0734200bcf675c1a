"""Clients that do not wait for ever: a turn that is refused, or held for too long, is sent again, or given up.

As the gate has it, whoever has begun may wait on; as ``penstock replay`` has it, a client does what Retry-After
says, and gives a turn up after a quarter of an hour of refusals.
"""

from collections.abc import Callable

from controlplane.core.model.types import seconds
from controlplane.lab.sim.kernel import Handle, Kernel
from controlplane.lab.sim.session import Session
from controlplane.lab.workload.patience import GIVE_UP_S, LONGEST_WAIT_S

_EXPIRED_NS = seconds(5)  # what a gate tells whom it has held for too long

Step = Callable[[Session], None]


class Deadlines:
    """``timeout_ns``: for how long a gate holds a program that has not begun; 0: for ever, and nobody is refused.

    ``leave`` takes a turn out of the gate, ``enter`` brings it there again, ``give_up`` ends its program.
    """

    def __init__(
        self,
        kernel: Kernel,
        rank: int,
        timeout_ns: int,
        leave: Step,
        enter: Step,
        give_up: Callable[[Session, str], None],
    ) -> None:
        self._kernel, self._rank, self._timeout_ns = kernel, rank, timeout_ns
        self._leave, self._enter, self._give_up = leave, enter, give_up
        self._ends: dict[str, Handle] = {}  # by program

    def held(self, session: Session) -> int:
        """The gate holds its turn; for how long it does from now on, 0: as long as it takes."""
        if not self._timeout_ns or session.index:
            return 0
        now_ns, name = self._kernel.now_ns, session.program_id
        if name not in self._ends:
            self._ends[name] = self._kernel.schedule(now_ns + self._timeout_ns, self._rank, self._expired, session)
        until_ns: int = self._ends[name][0]
        return max(1, until_ns - now_ns)

    def held_no_more(self, session: Session) -> None:
        if (handle := self._ends.pop(session.program_id, None)) is not None:
            Kernel.cancel(handle)

    def refused(self, session: Session, ttl_ns: int, why: str) -> None:
        """Its turn is refused for so long."""
        if not session.held:
            return
        session.refusals += 1
        self._leave(session)
        wait_ns = min(ttl_ns, seconds(LONGEST_WAIT_S))
        now_ns = self._kernel.now_ns
        if now_ns + wait_ns - session.queued_ns > seconds(GIVE_UP_S):
            self._give_up(session, f"gave up: {why}")
        else:
            self._kernel.schedule(now_ns + wait_ns, self._rank, self._enter, session)

    def _expired(self, session: Session) -> None:
        self.refused(session, _EXPIRED_NS, f"no slot came free in {self._timeout_ns / seconds(1):.0f} s")
