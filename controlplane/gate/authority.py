"""Whom the gate obeys: the daemon while heartbeats come, and itself, within bounds, when they stop."""

from enum import StrEnum
from typing import TYPE_CHECKING

from controlplane.gate.kv_hints import Bounds
from controlplane.gate.limits import GateLimits

if TYPE_CHECKING:
    from controlplane.wire.heartbeat import Heartbeat


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
        self.limit = 0  # the last one heard; 0: no limit
        self.draining = False  # while the daemon, by its last word, lets in nobody without a slot
        self.slots_for_children = False  # by its last word sub-agents ask for slots of their own
        self.end_interval_ns = 0  # by its last word, from one program's end to the next; 0: not known
        self.retain_most_ns = 0  # by its last word, for so long a client may have its context kept
        self.host_tier = False  # by its last word, contexts can be moved below the device
        self.engine_obeys = False  # by its last word, some engine keeps and frees contexts as it is told
        self.boot_id = ""
        self.last_beat_ns: int | None = None
        self._limits = limits
        self._age = (0, 0)  # of the daemon: its lease, and its last command's number
        self._lease_ns = 0

    def set_limit(self, limit: int) -> None:
        self.limit = max(0, limit)

    def is_outdated(self, beat: "Heartbeat", now_ns: int) -> bool:
        """True if a daemon older than the governing one sent the heartbeat.

        It serves by an older lease, its ``fence``, or its commands have lower numbers. Once the younger daemon's
        lease has ended, any daemon is believed.
        """
        is_other = beat.boot_id != self.boot_id and (beat.fence, beat.command_id) < self._age
        return is_other and self.mode(now_ns) is Mode.GOVERNED

    def renew(self, beat: "Heartbeat", now_ns: int) -> bool:
        """Take note of a heartbeat; true when the daemon is new, restarted or back from a silence."""
        fresh = self.mode(now_ns) is not Mode.GOVERNED or beat.boot_id != self.boot_id
        # A scaled clock must not turn a hiccup of the network into a loss: at least a second of the wall.
        lease_ns = beat.lease_ttl_ns if beat.lease_ttl_ns > 0 else self._limits.lease_ns
        # And a daemon's word is no reason to hold turns for ever once it has gone.
        self._lease_ns = min(max(lease_ns, self._limits.wall_second_ns), self._limits.most_lease_ns)
        self.boot_id, self._age = beat.boot_id, (beat.fence, beat.command_id)
        self.last_beat_ns = max(now_ns, self.last_beat_ns or now_ns)
        self.set_limit(beat.limit)
        self.draining, self.slots_for_children = beat.draining, beat.slots_for_children
        self.end_interval_ns = beat.end_interval_ns
        self.retain_most_ns, self.host_tier = beat.retain_most_ns, beat.host_tier
        self.engine_obeys = beat.engine_obeys
        return fresh

    def bounds(self, now_ns: int) -> Bounds:
        """What of clients' ``kv_hints`` is granted, by the daemon's last word."""
        refusal = "" if self.engine_obeys else "no engine here keeps or frees contexts as it is told"
        if self.mode(now_ns) is not Mode.GOVERNED:
            refusal = "no daemon decides here now"
        return Bounds(retain_most_ns=self.retain_most_ns, host_tier=self.host_tier, refusal=refusal)

    def mode(self, now_ns: int) -> Mode:
        if self.last_beat_ns is None:
            return Mode.PASSIVE
        lost_at_ns = self.last_beat_ns + self._lease_ns
        if now_ns < lost_at_ns:
            return Mode.GOVERNED
        return Mode.KEEPING if now_ns < lost_at_ns + self._limits.keep_ns else Mode.OPENING

    def local_limit(self, now_ns: int) -> int | None:
        """How many programs the gate itself may give slots; None means no bound. Only while the daemon is lost."""
        return self.limit + self._steps(now_ns) if self.limit else None

    def next_change_ns(self, now_ns: int) -> int | None:
        """When, without a heartbeat, ``mode`` or ``local_limit`` next changes."""
        if self.last_beat_ns is None:
            return None
        lost_at_ns = self.last_beat_ns + self._lease_ns
        if now_ns < lost_at_ns:
            return lost_at_ns
        open_at_ns = lost_at_ns + self._limits.keep_ns
        if now_ns < open_at_ns:
            return open_at_ns
        return open_at_ns + self._steps(now_ns) * self._limits.open_step_ns

    def _steps(self, now_ns: int) -> int:
        """Slots opened so far: the first at the end of the keeping time."""
        if self.mode(now_ns) is not Mode.OPENING or self.last_beat_ns is None:
            return 0
        open_at_ns = self.last_beat_ns + self._lease_ns + self._limits.keep_ns
        return 1 + (now_ns - open_at_ns) // self._limits.open_step_ns
