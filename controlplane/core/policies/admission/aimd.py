"""Additive increase, multiplicative decrease under two pressures, clamped by two caps.

**Paper**: MARS Algorithm 1, UpdateWindow (§4.2). Where we deviate: the window grows only while it is used
(docs/adr/0003). The paper clamps only the value it returns, so that its raw window winds up behind a cap and a
later decrease takes many intervals to matter. And it is cut only once the programs above the last cut have left
(docs/adr/0003). The paper cuts in each interval, to the minimum before the first of them has ended.
"""

from dataclasses import dataclass, replace
from math import floor

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.errors import require
from controlplane.core.model.types import Pressure
from controlplane.core.policies.admission.window import NEVER, SteppedWindow, require_windows
from controlplane.core.policies.caps import NO_CAP, cpu_cap, kv_cap, rooms, tolerated_excess
from controlplane.core.policies.protocols import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Aimd:
    """MARS's law, one step a control interval. Windows count programs."""

    alpha: float = 1.0
    beta: float = 0.7
    window_initial: float = 8.0
    window_min: float = 1.0
    window_max: float = 4096.0
    kv_high: float = 0.8  # of the pool: what the forecast may fill, which is a mean (ADR 0005)
    waste: float = 0.1  # share of the engine's time that evicted contexts may cost, computed again
    # What departs from Algorithm 1, each by itself; all of them False are the law as it is printed.
    used_only: bool = True  # the window grows only while it is used (ADR 0003)
    one_cut: bool = True  # it is cut again only once the last cut has told (ADR 0003)
    evidence: bool = True  # W_cpu holds only while the host is overloaded (ADR 0003)
    slow_start: bool = False  # it doubles until it is cut for the first time, as TCP's does (ADR 0003)
    compute: bool = False  # what the forecast may fill and exceed falls as computing saturates (ADR 0019)
    forecast: bool = True  # newcomers fit by what all will come to need (ADR 0005), not W_kv by their number
    # What belongs to the law as it is printed, beside ``forecast`` false.
    kv_soft: float = 0.0  # with less of the pool left W_kv lets in progressively fewer (MARS §4.2); 0: all that fit
    slowdown_high: float = 0.0  # turns that take so many times as long as alone are overload (§4.2); 0: never
    strict: bool = False  # nobody is let in beyond the limit, however long the engine is idle (lines 24-25)

    def __post_init__(self) -> None:
        require("alpha", self.alpha, low=0, high=1000, ends="(]")
        require("beta", self.beta, low=0, high=1, ends="()")
        require_windows(self.window_initial, self.window_min, self.window_max)
        require("kv_high", self.kv_high, low=0, high=2, ends="(]")
        require("waste", self.waste, low=0, high=1)
        require("kv_soft", self.kv_soft, low=0, high=1)
        require("slowdown_high", self.slowdown_high, low=0, high=1000)

    def initial(self) -> SteppedWindow:
        return SteppedWindow(window=self.window_initial)

    def update(
        self, state: SteppedWindow, facts: Estimates, pressure: Pressure, now_ns: int
    ) -> tuple[SteppedWindow, Window]:
        why, window = "as it was", min(self.window_max, max(self.window_min, state.window))
        if window != state.window:  # the bounds were changed while it ran
            state, why = replace(state, window=window), "within its new bounds"
        interval_ends_ns = pressure.interval_ends_ns
        if state.interval_ends_ns == NEVER:
            state = replace(state, interval_ends_ns=interval_ends_ns)
        elif state.interval_ends_ns != interval_ends_ns:  # Algorithm 1, line 13
            window, why = self._step(state, facts, pressure)
            was_cut = state.was_cut or window < state.window
            state = SteppedWindow(window=window, interval_ends_ns=interval_ends_ns, was_cut=was_cut)
        cpu = cpu_cap(pressure, always=not self.evidence)
        kv = NO_CAP if self.forecast else kv_cap(pressure, self.kv_soft)
        limit = max(1, min(floor(state.window), cpu, kv))  # line 19
        why = f"{why}; capped by the CPUs at {cpu}" if cpu < NO_CAP else why
        decided = Window(limit=limit, window=state.window, reason=why, strict=self.strict)
        if not pressure.kv_total_blocks or not self.forecast:
            return state, decided  # nothing is known of the pool, or it is in W_kv
        each = rooms(pressure) if pressure.queue_length else ()  # of very many engines they take a while to tell
        below_ratio = pressure.host_total_blocks / pressure.kv_total_blocks
        marginal_throughput = facts.marginal_throughput if self.compute else 1.0
        filled = self.kv_high * pressure.kv_total_blocks * (1.0 + marginal_throughput if self.compute else 1.0)
        later, now = tolerated_excess(facts, self.waste, below_ratio, marginal_throughput)
        return state, replace(
            decided,
            room_blocks=each,
            ahead_blocks=tuple(filled - blocks for blocks in pressure.kv_forecast_blocks),
            filled_blocks=filled,
            excess_ratio=later,
            excess_now_ratio=now,
            returning_blocks=now / 2 * pressure.kv_total_blocks / len(each) if each else 0.0,
        )

    def _step(self, state: SteppedWindow, facts: Estimates, pressure: Pressure) -> tuple[float, str]:
        window = state.window
        slow = bool(self.slowdown_high) and facts.marginal_throughput * self.slowdown_high <= 1.0
        signs = (("cpu", pressure.cpu_overloaded), ("kv", pressure.kv_overloaded), ("gpu", slow))
        if sides := "+".join(side for side, over in signs if over):  # line 14
            if self.one_cut and pressure.programs_active > floor(window):  # ours: see the module's docstring
                return window, f"{sides} overloaded: the last cut has yet to tell"
            return max(self.window_min, window * self.beta), f"{sides} overloaded: x{self.beta:g}"
        if not pressure.kv_has_slack:
            return window, "no room to grow"
        if self.used_only and pressure.programs_active < floor(window):  # ours: see the module's docstring
            return window, "programs do not fill it"
        if self.slow_start and not state.was_cut:
            return min(self.window_max, window * 2), "room, never cut yet: x2"
        return min(self.window_max, window + self.alpha), f"room: +{self.alpha:g}"
