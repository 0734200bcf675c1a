"""A window of agents that moves with how full the cache is and how often it is hit.

**Paper**: CONCUR (Chen et al., ICML 2026, arXiv 2601.22705): control of whole agents, as congestion control is of
packets. With U the share of the pool that running turns hold and H the hit rate, the window of active agents
grows by alpha while U is low, is multiplied by beta while U is high and H low, which is thrashing, and stays
otherwise. Agents beyond the window are paused between their steps (``retention/beyond_window.py``). Known from
its abstract and from what others write of it: the law is CONCUR's, the figures of the parameters are ours.
"""

from dataclasses import dataclass
from math import floor

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.errors import require
from controlplane.core.model.types import Pressure
from controlplane.core.policies.admission.window import NEVER, SteppedWindow, require_windows
from controlplane.core.policies.protocols import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Concur:
    """Windows count programs. ``use_low``, ``use_high``: of the pool; ``hit_low``: of the tokens of prompts."""

    alpha: float = 2.0
    beta: float = 0.5
    use_low: float = 0.5
    use_high: float = 0.8
    hit_low: float = 0.5
    window_initial: float = 8.0
    window_min: float = 1.0
    window_max: float = 4096.0

    def __post_init__(self) -> None:
        require("alpha", self.alpha, low=0, high=1000, ends="(]")
        require("beta", self.beta, low=0, high=1, ends="()")
        require("use_high", self.use_high, low=0, high=1, ends="(]")
        require("use_low", self.use_low, low=0, high=self.use_high, ends="(]")
        require("hit_low", self.hit_low, low=0, high=1)
        require_windows(self.window_initial, self.window_min, self.window_max)

    def initial(self) -> SteppedWindow:
        return SteppedWindow(window=self.window_initial)

    def update(
        self, state: SteppedWindow, facts: Estimates, pressure: Pressure, now_ns: int
    ) -> tuple[SteppedWindow, Window]:
        window, why = min(self.window_max, max(self.window_min, state.window)), "as it was"
        if state.interval_ends_ns not in (NEVER, pressure.interval_ends_ns):
            window, why = self._step(window, facts.hit_ratio, pressure)
        state = SteppedWindow(window=window, interval_ends_ns=pressure.interval_ends_ns)
        return state, Window(limit=max(1, floor(window)), window=window, reason=why)

    def _step(self, window: float, hit_ratio: float, pressure: Pressure) -> tuple[float, str]:
        if not pressure.kv_total_blocks:
            return window, "the pool's size is not known yet"
        unused = pressure.kv_free_blocks + pressure.kv_evictable_blocks
        use = max(0.0, 1.0 - unused / pressure.kv_total_blocks)
        observed = f"running turns hold {use:.2f} of the pool, {hit_ratio:.2f} of prompts is cached"
        if use >= self.use_high and hit_ratio < self.hit_low:
            return max(self.window_min, window * self.beta), f"{observed}: x{self.beta:g}"
        if use < self.use_low:
            return min(self.window_max, window + self.alpha), f"{observed}: +{self.alpha:g}"
        return window, observed
