"""Whom the gate obeys: the daemon while heartbeats come, and itself, within bounds, when they stop."""

from enum import StrEnum
from typing import Protocol

from controlplane.gate.limits import GateLimits


class HeartbeatLike(Protocol):
    """The part of a heartbeat that the gate reads (``controlplane.wire`` has the record)."""

    @property
    def boot_id(self) -> str: ...
    @property
    def lease_ttl_ns(self) -> int: ...
    @property
    def limit(self) -> int: ...
    @property
    def draining(self) -> bool: ...
    @property
    def command_id(self) -> int: ...
    @property
    def fence(self) -> int: ...


class Mode(StrEnum):
    """How the gate lets turns in.

    Passive: no daemon was ever seen, so everything passes. Governed: the daemon decides. Keeping: it fell
    silent, and the gate admits up to the last limit. Opening: it stayed silent, and the limit grows.
    """

    PASSIVE = "passive"
    GOVERNED = "governed"
    KEEPING = "keeping"
    OPENING = "opening"


class Authority:
    """The daemon's lease, and what follows from its end. It has no clock: ``now_ns`` is an argument."""

    def __init__(self, limits: GateLimits) -> None:
        self._limits = limits
        self._limit = 0
        self._draining = False
        self._boot_id = ""
        self._command_id = 0
        self._fence = 0
        self._lease_ns = 0
        self._heard_at_ns: int | None = None

    @property
    def limit(self) -> int:
        """The last limit heard; 0 means no limit."""
        return self._limit

    @property
    def draining(self) -> bool:
        """True while the daemon, by its last word, lets in nobody without a slot."""
        return self._draining

    @property
    def boot_id(self) -> str:
        return self._boot_id

    @property
    def heard_at_ns(self) -> int | None:
        return self._heard_at_ns

    def set_limit(self, limit: int) -> None:
        self._limit = max(0, limit)

    def is_outdated(self, beat: HeartbeatLike, now_ns: int) -> bool:
        """True if a daemon older than the governing one sent the heartbeat.

        It serves by an older lease, its ``fence``, or its commands have lower numbers. Once the younger daemon's
        lease has ended, any daemon is believed.
        """
        is_other = beat.boot_id != self._boot_id and (beat.fence, beat.command_id) < (self._fence, self._command_id)
        return is_other and self.mode(now_ns) is Mode.GOVERNED

    def heard(self, beat: HeartbeatLike, now_ns: int) -> bool:
        """Take note of a heartbeat; true when the daemon is new, restarted or back from a silence."""
        fresh = self.mode(now_ns) is not Mode.GOVERNED or beat.boot_id != self._boot_id
        # A scaled clock must not turn a hiccup of the network into a loss: at least a second of the wall.
        lease_ns = beat.lease_ttl_ns if beat.lease_ttl_ns > 0 else self._limits.lease_ns
        # And a daemon's word is no reason to hold turns for ever once it has gone.
        self._lease_ns = min(max(lease_ns, self._limits.wall_second_ns), self._limits.most_lease_ns)
        self._boot_id, self._command_id, self._fence = beat.boot_id, beat.command_id, beat.fence
        self._heard_at_ns = max(now_ns, self._heard_at_ns or now_ns)
        self.set_limit(beat.limit)
        self._draining = beat.draining
        return fresh

    def mode(self, now_ns: int) -> Mode:
        if self._heard_at_ns is None:
            return Mode.PASSIVE
        lost_at_ns = self._heard_at_ns + self._lease_ns
        if now_ns < lost_at_ns:
            return Mode.GOVERNED
        return Mode.KEEPING if now_ns < lost_at_ns + self._limits.keep_ns else Mode.OPENING

    def local_limit(self, now_ns: int) -> int | None:
        """How many programs the gate itself may give slots; None means no bound. Only while the daemon is lost."""
        if self._limit == 0:
            return None
        return self._limit + self._steps(now_ns)

    def next_change_ns(self, now_ns: int) -> int | None:
        """When, without a heartbeat, ``mode`` or ``local_limit`` next changes."""
        if self._heard_at_ns is None:
            return None
        lost_at_ns = self._heard_at_ns + self._lease_ns
        if now_ns < lost_at_ns:
            return lost_at_ns
        open_at_ns = lost_at_ns + self._limits.keep_ns
        if now_ns < open_at_ns:
            return open_at_ns
        return open_at_ns + self._steps(now_ns) * self._limits.open_step_ns

    def _steps(self, now_ns: int) -> int:
        """Slots opened so far: the first at the end of the keeping time."""
        if self.mode(now_ns) is not Mode.OPENING or self._heard_at_ns is None:
            return 0
        open_at_ns = self._heard_at_ns + self._lease_ns + self._limits.keep_ns
        return 1 + (now_ns - open_at_ns) // self._limits.open_step_ns
