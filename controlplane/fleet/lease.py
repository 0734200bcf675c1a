"""Who leads, of a fleet's daemons: a lease in a replicated bucket, taken and renewed by compare-and-set.

Only a write that was acknowledged decides, since reads may be stale. The lease's revision is the fencing token: it
grows with every renewal and with every leader. No clocks are compared: a lease is over when its revision has not
changed for its whole length by the clock of whoever waits for it, and its holder stops a second before it could be
over for anybody (docs/adr/0050). Its own it counts by all time that went by, others' by that in which it looked.
"""

import math
from collections.abc import Callable

from anyio import fail_after, sleep

from controlplane import clocks
from controlplane.core.model.errors import require
from controlplane.daemon.process.logs import logger
from controlplane.fleet.buckets import Entry, LeaderKey, WriteConflict

RENEW_S = 1.0
_LOOK_S = 0.25  # between two looks at somebody else's lease
_CALL_S = 0.8  # most that one call may take: the next renewal is due soon after
_STAND_BACK_S = 3.0
_FREE = b""


class Lease:
    """Contends for a lease of ``ttl_s`` while ``run`` runs; ``Leads`` for a daemon.

    ``name`` is this contender's, the same after a restart: it takes its own lease back at once, and must be sure
    that no other process uses that name. ``rank``: how many others are preferred to it, which all may read.
    ``elapsed_s`` is the clock of its own lease, ``awake_s`` that of others'.
    """

    has_others = True

    def __init__(
        self,
        bucket: LeaderKey,
        name: str,
        *,
        ttl_s: float,
        rank: int = 0,
        elapsed_s: Callable[[], float] = clocks.elapsed_s,
        awake_s: Callable[[], float] = clocks.awake_s,
    ) -> None:
        require("lease_ttl_s", ttl_s, low=2 * RENEW_S, high=3600)
        self.ttl_s = ttl_s
        self.on_change: list[Callable[[], None]] = []
        self.rank = rank
        self.leader_rank: int | None = None  # of whoever had the lease when it was last seen; None: nobody
        self._bucket, self._name = bucket, f"{rank} {name}".encode()
        self._elapsed_s, self._awake_s = elapsed_s, awake_s
        self._held: int | None = None  # the revision of our own last write
        self._renewed_s = -math.inf
        self._fence = 0  # the revision by which we began to lead
        self._seen: int | None = None  # somebody else's revision, and since when
        self._seen_s = -math.inf
        self._stands_back_until_s = -math.inf
        self._failure = ""  # why the last step had no answer, until one has
        self._log = logger("lease")

    @property
    def leading(self) -> bool:
        """Whether nobody else can have the lease now. Who wakes after a freeze is not taken in by what it knew."""
        return self._held is not None and self._elapsed_s() < self._ends_s

    @property
    def fence(self) -> int:
        """The revision by which this contender leads, or led last; 0: it never did."""
        return self._fence

    @property
    def _ends_s(self) -> float:
        return self._renewed_s + self.ttl_s - RENEW_S

    def fenced_out(self) -> None:
        """Somebody else leads, whatever we believed."""
        self._step_down("somebody else commands")

    async def hand_over(self) -> None:
        """Let another one have the lease, which is taken again only if nobody does."""
        self._stands_back_until_s = self._elapsed_s() + _STAND_BACK_S
        await self.free()

    async def run(self) -> None:
        """Contend until cancelled."""
        while True:
            began_s = self._elapsed_s()
            await self.step()
            due_s = began_s + (RENEW_S if self._held is not None else _LOOK_S) - self._elapsed_s()
            await sleep(max(0.01, due_s))

    async def step(self) -> None:
        """Renew the lease, or look whether it can be had."""
        began_s = self._elapsed_s()
        self._end_if_over()
        try:
            await (self._look(began_s) if self._held is None else self._renew(began_s))
        except WriteConflict:
            self._step_down("somebody else has written it")
        except Exception as error:  # of the store or the network; a write may have been kept all the same
            why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            if not self._failure:
                self._log.warning("not renewed" if self._held is not None else "not read", why=why)
            self._failure = why
        else:
            self._failure = ""
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._held is not None and not self.leading:
            cause = self._failure or "this process did not run"
            self._step_down(f"not renewed for {self.ttl_s - RENEW_S:g} s: {cause}")

    async def free(self) -> None:
        """Let others have it at once."""
        held = self._held
        self._step_down("given up")
        if held is not None:
            try:
                await self._write(_FREE, held)
            except Exception as error:  # then it ends by itself
                self._log.warning("lease not freed", error=str(error) or type(error).__name__)

    async def _read(self) -> Entry | None:
        with fail_after(_CALL_S):
            return await self._bucket.read()

    async def _write(self, holder: bytes, last: int) -> int:
        with fail_after(_CALL_S):  # each call by itself: of a slow store two take longer
            return await self._bucket.write(holder, last)

    async def _renew(self, began_s: float) -> None:
        assert self._held is not None
        try:
            self._held = await self._write(self._name, self._held)
        except WriteConflict:  # by ourselves, maybe: a write that nobody answered may have been kept
            entry = await self._read()
            if entry is None or entry.holder != self._name:
                raise
            self._held = await self._write(self._name, entry.revision)
        self._renewed_s = began_s

    async def _look(self, began_s: float) -> None:
        looked_s, entry = self._awake_s(), await self._read()
        self.leader_rank = _rank_of(entry)
        if began_s < self._stands_back_until_s:
            return
        if entry is None:
            await self._take(0, began_s, "nobody had it")
            return
        if entry.revision != self._seen:
            self._seen, self._seen_s = entry.revision, looked_s
        if entry.holder == _FREE:
            await self._take(entry.revision, began_s, "it was free")
        elif entry.holder == self._name:
            await self._take(entry.revision, began_s, "it was ours")
        elif looked_s - self._seen_s >= self.ttl_s:
            await self._take(entry.revision, began_s, f"not renewed for {self.ttl_s:g} s")

    async def _take(self, last: int, began_s: float, why: str) -> None:
        self._held = await self._write(self._name, last)
        self._fence, self._renewed_s, self.leader_rank = self._held, began_s, self.rank
        self._log.info("taken", fence=self._fence, why=why)
        self._notify()

    def _step_down(self, why: str) -> None:
        self._seen = None
        if self._held is None:
            return
        self._held = self.leader_rank = None  # who has it now is yet to be read; ours would be taken for that one's
        self._log.warning("lost", fence=self._fence, why=why)
        self._notify()

    def _notify(self) -> None:
        for listener in self.on_change:
            listener()


def _rank_of(entry: Entry | None) -> int | None:
    rank, space, _ = (entry.holder if entry is not None else _FREE).partition(b" ")
    return int(rank) if space and rank.isdigit() else None
