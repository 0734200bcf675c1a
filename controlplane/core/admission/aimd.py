"""Additive increase, multiplicative decrease under two pressures, clamped by two caps.

**Paper**: MARS Algorithm 1, UpdateWindow (§4.2). Where we deviate: the window grows only while it is used
(docs/adr/0003). The paper clamps only the value it returns, so that its raw window winds up behind a cap and a
later decrease takes many intervals to matter. And it is cut only once the programs above the last cut have left
(docs/adr/0026). The paper cuts in each interval, to the minimum before the first of them has ended.
"""

from dataclasses import dataclass, replace
from math import floor

from controlplane.core.caps import NO_CAP, cpu_cap, kv_cap, tolerated_excess
from controlplane.core.errors import ConfigError, require
from controlplane.core.facts import Facts
from controlplane.core.policies import Window
from controlplane.core.types import Pressure, seconds

_NEVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AimdState:
    """The raw window W_adm and when the control interval last ended."""

    window: float
    updated_at_ns: int = _NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Aimd:
    """MARS's law. ``interval_s`` is the control interval; windows count programs."""

    alpha: float = 1.0
    beta: float = 0.7
    interval_s: float = 1.0
    window_initial: float = 8.0
    window_min: float = 1.0
    window_max: float = 4096.0
    kv_high: float = 0.8  # of the pool: what the forecast may fill, which is a mean (ADR 0020)
    waste: float = 0.1  # share of the engine's time that evicted contexts may cost, computed again

    def __post_init__(self) -> None:
        require("alpha", self.alpha, low=0, high=1000, ends="(]")
        require("beta", self.beta, low=0, high=1, ends="()")
        require("interval_s", self.interval_s, low=0, high=3600, ends="(]")
        require("window_min", self.window_min, low=1, high=1_000_000)
        require("window_max", self.window_max, low=self.window_min, high=1_000_000)
        require("kv_high", self.kv_high, low=0, high=2, ends="(]")
        require("waste", self.waste, low=0, high=1)
        if not self.window_min <= self.window_initial <= self.window_max:
            raise ConfigError(
                f"expected window_min <= window_initial <= window_max, got {self.window_initial:g}",
                field="window_initial",
            )

    def initial(self) -> AimdState:
        return AimdState(window=self.window_initial)

    def update(self, state: AimdState, facts: Facts, pressure: Pressure, now_ns: int) -> tuple[AimdState, Window]:
        why, window = "held", min(self.window_max, max(self.window_min, state.window))
        if window != state.window:  # the bounds were changed while it ran
            state, why = replace(state, window=window), "within its new bounds"
        if state.updated_at_ns == _NEVER:
            state = replace(state, updated_at_ns=now_ns)
        elif now_ns - state.updated_at_ns >= seconds(self.interval_s):  # Algorithm 1, line 13
            window, why = self._step(state.window, pressure)
            state = AimdState(window=window, updated_at_ns=now_ns)
        cpu = cpu_cap(pressure)
        excess = tolerated_excess(pressure, facts, self.waste)
        kv = kv_cap(pressure, kv_high=self.kv_high, excess_ratio=excess)
        limit = max(1, min(floor(state.window), cpu, kv))  # line 19
        caps = " ".join(f"{name}={cap}" for name, cap in (("W_cpu", cpu), ("W_kv", kv)) if cap < NO_CAP)
        return state, Window(limit=limit, window=state.window, reason=f"{why}; {caps}" if caps else why)

    def _step(self, window: float, pressure: Pressure) -> tuple[float, str]:
        if pressure.cpu_overloaded or pressure.kv_overloaded:  # line 14
            sides = "+".join(
                side for side, over in (("cpu", pressure.cpu_overloaded), ("kv", pressure.kv_overloaded)) if over
            )
            if pressure.programs_active > floor(window):  # ours: see the module's docstring
                return window, f"{sides} overloaded: the last cut has yet to tell"
            return max(self.window_min, window * self.beta), f"{sides} overloaded: x{self.beta:g}"
        if not pressure.kv_has_slack:
            return window, "no slack"
        if pressure.programs_active < floor(window):  # ours: see the module's docstring
            return window, "not used"
        return min(self.window_max, window + self.alpha), f"slack: +{self.alpha:g}"
