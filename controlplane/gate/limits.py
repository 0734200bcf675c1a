"""What the gate may be told: its bounds and its times."""

from dataclasses import dataclass

from controlplane.core.errors import require
from controlplane.core.types import MOST_LEASE_S, NANOSECONDS_PER_SECOND, seconds

_INFINITE = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """Bounds of one gate, checked when made.

    Times are nanoseconds of the clock that the gate is given. ``time_scale`` says how much faster than the
    wall that clock runs: timers sleep that much less, and ``Retry-After`` is told in seconds of the wall.

    Raises ``ConfigError`` for a value out of its range.
    """

    max_held: int = 4096  # turns held before a program that is new here gets a 429
    max_held_bytes: int = 1 << 30  # request bodies kept in memory while held; the same rule
    hard_factor: int = 4  # at this multiple of either bound known programs get a 503 too
    max_programs: int = 100_000  # programs remembered; the longest idle is forgotten first
    max_body_bytes: int = 64 << 20  # a larger request body gets a 413
    max_body_values: int = 2_000_000  # one of over 1 MiB with more in it, too; an object or a list counts as 20
    max_arriving_bytes: int = 256 << 20  # of bodies that are not complete yet; beyond that the largest gets a 503
    body_ns: int = seconds(300)  # a body that takes longer to arrive gets a 408
    hold_ns: int = seconds(600)  # a turn held this long gets a 503; as patient as clients of OpenAI are
    reask_ns: int = seconds(2)  # a held turn is asked for again this often, at most once a second of the wall
    retry_after_ns: int = seconds(5)
    grant_ttl_ns: int = seconds(1800)  # lease of a grant whose Admit names none; use renews it
    lease_ns: int = seconds(5)  # silence that means a lost daemon, where its heartbeats do not say
    keep_ns: int = seconds(30)  # after the loss the last limit stays this long
    open_step_ns: int = seconds(1)  # then one more slot opens in each such step
    time_scale: float = 1.0

    def __post_init__(self) -> None:
        held = ("max_held", "max_held_bytes", "hard_factor", "max_programs")
        bodies = ("max_body_bytes", "max_body_values", "max_arriving_bytes")
        times = ("body_ns", "hold_ns", "reask_ns", "retry_after_ns", "grant_ttl_ns", "lease_ns", "open_step_ns")
        for name in held + bodies + times:
            require(name, getattr(self, name), low=1, high=_INFINITE, ends="[)")
        require("keep_ns", self.keep_ns, low=0, high=_INFINITE, ends="[)")
        require("time_scale", self.time_scale, low=0, high=_INFINITE, ends="()")

    @property
    def most_lease_ns(self) -> int:
        """The longest lease that a heartbeat may claim: what a daemon may be configured to."""
        return MOST_LEASE_S * self.wall_second_ns

    @property
    def wall_second_ns(self) -> int:
        """One second of the wall, in the gate's clock."""
        return round(NANOSECONDS_PER_SECOND * self.time_scale)
