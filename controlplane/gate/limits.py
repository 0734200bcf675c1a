"""The gate's limits: its bounds and its times."""

from dataclasses import dataclass

from controlplane.core.model.errors import require
from controlplane.core.model.types import MOST_LEASE_S, NANOSECONDS_PER_SECOND, seconds

_INFINITE = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """The bounds of one gate, checked at construction.

    Times are nanoseconds of the clock that the gate is given. ``time_scale`` says how much faster than the wall
    clock that clock runs: timers sleep that much less, and ``Retry-After`` is in seconds of the wall clock.

    Raises ``ConfigError`` for a value out of its range.
    """

    max_held: int = 4096  # turns held before a new program gets a 429
    max_held_bytes: int = 1 << 30  # bytes of held request bodies before a new program gets a 429
    hard_factor: int = 4  # at this multiple of either bound known programs get a 503, too
    max_programs: int = 100_000  # programs remembered; the gate forgets the longest idle first
    max_body_bytes: int = 64 << 20  # a larger request body gets a 413
    max_body_values: int = 2_000_000  # so does one over 1 MiB with more values; an object or a list counts as 20
    max_arriving_bytes: int = 256 << 20  # bytes of incomplete bodies; beyond that the largest body gets a 503
    body_ns: int = seconds(300)  # a body that takes longer to arrive gets a 408
    hold_ns: int = seconds(600)  # a turn held this long gets a 503; OpenAI's clients are as patient
    # Until then its client still sees the real status of a refusal or of the engine, for which its SDK tries again;
    # nginx, AWS's balancers and most proxies end what has been silent for 60 s.
    early_headers_ns: int = seconds(30)  # a stream held this long gets its headers and comments; 0: none does
    reask_ns: int = seconds(2)  # how often the gate asks again for a held turn; at most once per wall second
    retry_after_ns: int = seconds(5)  # how long a refused client is told to wait, in seconds of the wall clock
    grant_ttl_ns: int = seconds(1800)  # lease of a grant whose Admit names no lease; use renews it
    lease_ns: int = seconds(5)  # silence after which the daemon counts as lost, if its heartbeats do not say
    keep_ns: int = seconds(30)  # how long the last limit stays in force after the loss
    open_step_ns: int = seconds(1)  # after that, time in which one more slot opens
    time_scale: float = 1.0  # how much faster than the wall clock the gate's clock runs

    def __post_init__(self) -> None:
        held = ("max_held", "max_held_bytes", "hard_factor", "max_programs")
        bodies = ("max_body_bytes", "max_body_values", "max_arriving_bytes")
        times = ("body_ns", "hold_ns", "reask_ns", "retry_after_ns", "grant_ttl_ns", "lease_ns", "open_step_ns")
        for name in held + bodies + times:
            require(name, getattr(self, name), low=1, high=_INFINITE, ends="[)")
        for name in ("keep_ns", "early_headers_ns"):
            require(name, getattr(self, name), low=0, high=_INFINITE, ends="[)")
        require("time_scale", self.time_scale, low=0, high=_INFINITE, ends="()")

    @property
    def most_lease_ns(self) -> int:
        """The longest lease that a heartbeat may claim, which is the longest that a daemon may be configured to."""
        return MOST_LEASE_S * self.wall_second_ns

    @property
    def wall_second_ns(self) -> int:
        """One second of the wall clock, in nanoseconds of the gate's clock."""
        return round(NANOSECONDS_PER_SECOND * self.time_scale)
