"""How the ranks of one engine decide alike: rank 0's word, which all of them hear in the same step.

What is a function of the scheduler's own state each rank decides for itself: all run the same code in the same
order. All else is rank 0's to say: the daemon's commands, its policies and how long they hold, and the time. Its
word travels to every rank in SGLang's own broadcast of requests, and with it a digest of what rank 0 has decided
so far and of what it holds. Where a rank's own differs, none of them steers any more.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

from controlplane import clocks
from controlplane.core.model.commands import Command
from controlplane.core.model.types import seconds
from engine_hooks.engine.steering import Lease
from engine_hooks.guard import log
from engine_hooks.sglang.peers import Peers

_AT_LEAST_EVERY_NS = seconds(1)  # samples of the pool need no more
_LOOK_AGAIN_NS = seconds(0.1)
_PATIENCE_NS = seconds(60)  # for ranks that have not started yet
_MOST_WAITING = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMessage:
    """What rank 0 says at the beginning of a step.

    ``digest``: of its state before the step. ``ends``: why nobody steers from this step on; empty if they do.
    """

    now_ns: int
    digest: int
    policies: str = ""
    commands: tuple[Command, ...] = ()
    ends: str = ""


class Lockstep:
    """One rank's part in it. Until all ranks take part nobody steers, and nobody does after the end.

    :param state: what must be equal on all ranks whenever a word is said: read in the scheduler's thread.
    """

    def __init__(self, peers: Peers, state: Callable[[], tuple[object, ...]]) -> None:
        self.passive_because = ""
        self.lease = Lease()
        self.inbox: deque[Command] = deque(maxlen=_MOST_WAITING)  # rank 0's, filled in the emitter's thread
        self._peers = peers
        self._state = state
        self._chain = 0
        self._now_ns = 0
        self._policies = ""
        self._compared = 0
        self._digest = 0
        self._together = False
        self._began_ns = self._looked_ns = clocks.awake_ns()

    def join(self, as_what: str) -> None:
        """This rank can hear words from now on; ``as_what``: what the ranks must have in common."""
        self._peers.join(as_what)

    @property
    def leads(self) -> bool:
        return self._peers.leads

    @property
    def policies(self) -> str:
        return self._policies

    def now_ns(self) -> int:
        """The time of the last word, alike on all ranks; the machine's own once nothing is decided by it."""
        return time.monotonic_ns() if self.passive_because else self._now_ns

    def note(self, *facts: object) -> None:
        self._chain = crc32(repr(facts).encode(), self._chain)

    def account(self) -> dict[str, object]:
        waits = "" if self._together else "not every rank takes part yet"
        return {
            "size": self._peers.size,
            "compared": self._compared,
            "digest": f"{self._digest:08x}",
            "passive_because": self.passive_because or waits,
        }

    # Rank 0

    def next_message(self, *, has_news: bool, steers: bool, until_ns: int | None) -> StepMessage | None:
        """The word for this step; None if none is due, and on every other rank.

        :param has_news: requests came, so that something is broadcast anyway.
        :param steers: this step's batch may be other than the engine's own.
        :param until_ns: when the next pin ends.
        """
        if self.passive_because or not self.leads:
            return None
        now_ns = time.monotonic_ns()
        if not self._together and not self._gathered(clocks.awake_ns()):
            return None
        policies = self.lease.text()
        is_over = until_ns is not None and until_ns <= now_ns
        is_old = now_ns - self._now_ns >= _AT_LEAST_EVERY_NS
        if not (has_news or steers or is_over or is_old or self.inbox or policies != self._policies):
            return None
        digest, commands = self._own(), self.waiting()
        return StepMessage(now_ns=now_ns, digest=digest, policies=policies, commands=commands)

    def fail(self, error: Exception) -> StepMessage | None:
        """Rank 0 has no word for the others, whose time stands still without: the last one, that all is over."""
        if self.passive_because:
            return None
        log.error("penstock: no word for the other ranks", exc_info=error)
        why = f"rank 0 failed: {type(error).__name__}"
        if self._together:
            return StepMessage(now_ns=time.monotonic_ns(), digest=0, ends=why)
        self._end(why)
        return None

    def waiting(self) -> tuple[Command, ...]:
        """The commands that no word has carried yet; they are taken out."""
        return tuple(self.inbox.popleft() for _ in range(len(self.inbox)))

    def _gathered(self, now_ns: int) -> bool:
        """Whether every rank takes part. A word to one that does not would end its scheduler."""
        if now_ns - self._looked_ns < _LOOK_AGAIN_NS:
            return False
        self._looked_ns = now_ns
        if self._peers.absent():
            if now_ns - self._began_ns > _PATIENCE_NS:
                self._end("not every rank has the plugin at work")
            return False
        if unlike := self._peers.unlike():
            self._end(f"rank {unlike[0]} has other settings than rank 0, or another version")
            return False
        log.info("penstock: %d ranks decide alike", self._peers.size)
        return True

    # Every rank

    def receive(self, message: StepMessage) -> tuple[Command, ...]:
        """Rank 0's word for this step: the commands of it, to be obeyed, or refused from the end on.

        All ranks compare at once.
        """
        self._together = True
        self._now_ns = message.now_ns
        if message.ends:
            self._end(message.ends)
            return message.commands
        first = self._peers.lowest_of(self._differs(message))
        self._compared += 1
        self._policies = message.policies
        if first is not None:
            self._end(f"rank {first} decided otherwise than rank 0")
        return message.commands

    def _differs(self, message: StepMessage) -> bool:
        if self.leads:
            return False
        try:
            return self._own() != message.digest
        except Exception:
            log.exception("penstock: this rank cannot tell what it holds")
            return True

    def _own(self) -> int:
        self._digest = crc32(repr(self._state()).encode(), self._chain)
        return self._digest

    def _end(self, why: str) -> None:
        self.passive_because = why
        self._policies = ""
        log.error("penstock: nothing is steered from word %d on: %s", self._compared, why)
