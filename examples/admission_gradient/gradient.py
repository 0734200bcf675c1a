"""A window that follows how much slower things are than they should be: Gradient2, for agents.

Three signals, each a ratio that is 1 where nothing is wrong:

- turns that came back to an evicted context wait longer than usual (``Estimates.eviction_delay_ns``);
- tools take longer than on an uncrowded host (``Pressure.tool_slowdown_ratio``);
- the active programs need more of the KV pool than they should (``Pressure.kv_use_ratio``).

The worst one is the gradient. At 1 the window grows by a headroom; below, it shrinks in proportion.

**Source**: Netflix concurrency-limits, ``Gradient2Limit`` (long-term against short-term latency, tolerance,
smoothing, no change while the limit is not used), itself after TCP Vegas: Brakmo and Peterson 1995. Deviations,
since a slot here is held for minutes and is not taken back:

- Only the first signal has a baseline that is learned. It drifts up under lasting congestion, as Gradient2's does;
  the other two are measured against baselines that cannot drift, so they stop the window where it would run away.
- Headroom is added only while nothing is wrong: windows of agents are small, it would drown a moderate gradient.
- The window shrinks no further while more programs are active than it allows: the last decrease has not shown yet.
"""

from dataclasses import dataclass, replace
from math import floor

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.errors import require
from controlplane.core.model.types import Pressure
from controlplane.core.policies.admission.window import NEVER, require_windows
from controlplane.core.policies.caps import NO_CAP, cpu_cap, rooms
from controlplane.core.policies.protocols import Window, Windowed

_STEEPEST = 0.5  # as Gradient2: one interval never asks for less than half
_RECOVERED = 2.0  # the baseline this much above the present was learned under congestion
_FORGET = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientState(Windowed):
    """The window, the usual and the last eviction delay (0: none seen yet), and the interval of the last step."""

    baseline_ns: float = 0.0
    delay_ns: int = 0
    interval_ends_ns: int = NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """``headroom`` and windows are in programs, ``memory`` in intervals that saw a context come back evicted."""

    tolerance: float = 1.5  # how much slower than usual is still fine
    kv_target: float = 0.85
    smoothing: float = 0.2
    headroom: float = 4.0
    memory: int = 100
    window_initial: float = 8.0
    window_min: float = 1.0
    window_max: float = 4096.0

    def __post_init__(self) -> None:
        require("tolerance", self.tolerance, low=1, high=100)
        require("kv_target", self.kv_target, low=0, high=2, ends="(]")
        require("smoothing", self.smoothing, low=0, high=1, ends="(]")
        require("headroom", self.headroom, low=0, high=1000, ends="(]")
        require("memory", self.memory, low=1, high=1_000_000)
        require_windows(self.window_initial, self.window_min, self.window_max)

    def initial(self) -> GradientState:
        return GradientState(window=self.window_initial)

    def update(
        self, state: GradientState, facts: Estimates, pressure: Pressure, now_ns: int
    ) -> tuple[GradientState, Window]:
        why = "held"
        interval_ends_ns = pressure.interval_ends_ns
        if state.interval_ends_ns == NEVER:
            state = replace(state, interval_ends_ns=interval_ends_ns)
        elif state.interval_ends_ns != interval_ends_ns:
            delay_ns, baseline_ns = facts.eviction_delay_ns, state.baseline_ns
            fresh = delay_ns != state.delay_ns  # else no turn came back cold: an old figure says nothing of now
            if fresh:
                baseline_ns = self._learn(baseline_ns, delay_ns)
            gradient, side = self._gradient(baseline_ns, delay_ns if fresh else 0, pressure)
            window, why = self._step(state.window, gradient, side, pressure)
            state = GradientState(
                window=window, baseline_ns=baseline_ns, delay_ns=delay_ns, interval_ends_ns=interval_ends_ns
            )
        cpu = cpu_cap(pressure)
        decided = Window(
            limit=max(1, min(floor(state.window), cpu)),
            window=state.window,
            reason=f"{why}; capped by the CPUs at {cpu}" if cpu < NO_CAP else why,
        )
        if not pressure.kv_total_blocks:
            return state, decided
        filled = self.kv_target * pressure.kv_total_blocks
        ahead = tuple(filled - blocks for blocks in pressure.kv_forecast_blocks)
        return state, replace(decided, room_blocks=rooms(pressure), ahead_blocks=ahead, filled_blocks=filled)

    def _learn(self, baseline_ns: float, delay_ns: int) -> float:
        """The long-term average of the eviction delay, after one more interval that saw one."""
        if delay_ns <= 0 or baseline_ns <= 0:
            return max(baseline_ns, float(delay_ns))
        if baseline_ns > _RECOVERED * delay_ns:
            baseline_ns *= _FORGET
        return baseline_ns + (delay_ns - baseline_ns) / self.memory

    def _gradient(self, baseline_ns: float, delay_ns: int, pressure: Pressure) -> tuple[float, str]:
        """The worst of the three signals, in 0.5..1, and its name."""
        signals = {
            "eviction delay": self.tolerance * baseline_ns / delay_ns if delay_ns > 0 else 1.0,
            "tools": self.tolerance / max(1.0, pressure.tool_slowdown_ratio),
            "kv": self.kv_target / pressure.kv_use_ratio if pressure.kv_use_ratio > 0 else 1.0,
        }
        side = min(signals, key=signals.__getitem__)
        return min(1.0, max(_STEEPEST, signals[side])), side

    def _step(self, window: float, gradient: float, side: str, pressure: Pressure) -> tuple[float, str]:
        if gradient < 1.0:
            if pressure.programs_active > window:
                return window, f"{side}: waiting for the last decrease to show"
            aim, why = window * gradient, f"{side}: gradient {gradient:.2f}"
        elif pressure.programs_active < floor(window):
            return window, "programs do not fill it"
        else:
            aim, why = window + self.headroom, "as fast as it should be"
        window += self.smoothing * (aim - window)
        return min(self.window_max, max(self.window_min, window)), why
