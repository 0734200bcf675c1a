"""Admit as many programs as the pool has room for, by what they ask for.

**Paper**: ThunderAgent §4.3.1: paused programs are restored while the demand of the active ones is below the low
watermark, each only if the demand stays below the high one. New programs wait in the same queue. §4.3.2: one queue
before all engines, so that none idles while programs wait; each program has to fit one of them.

Between two looks programs are let in as well, but only beside the active programs' whole contexts. What acting ones
are weighted less is lent at a look alone: they may be back before the next one pauses somebody.
"""

from dataclasses import dataclass

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.errors import ConfigError, require
from controlplane.core.model.types import Pressure, seconds
from controlplane.core.policies.caps import loads
from controlplane.core.policies.protocols import Checked, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Watermarks are shares of the pool. ``interval_s``: between two looks (the paper's delta t); 0: always."""

    watermark_high: float = 1.0
    watermark_low: float = 1.0
    interval_s: float = 5.0

    def __post_init__(self) -> None:
        require("watermark_high", self.watermark_high, low=0, high=1, ends="(]")
        require("watermark_low", self.watermark_low, low=0, high=1, ends="(]")
        require("interval_s", self.interval_s, low=0, high=3600)
        if self.watermark_low > self.watermark_high:
            raise ConfigError(f"expected watermark_low <= {self.watermark_high:g}", field="watermark_low")

    def initial(self) -> Checked:
        return Checked()

    def update(self, state: Checked, facts: Estimates, pressure: Pressure, now_ns: int) -> tuple[Checked, Window]:
        active = pressure.programs_active
        if not pressure.kv_total_blocks:
            return state, Window(limit=0, window=0.0, reason="the pool's size is not known yet")
        if not active and pressure.queue_length:
            return state, _closed(1, "nobody is active: the first one fits or never will")
        rooms = self._rooms(pressure)
        if state.at_ns >= 0 and now_ns - state.at_ns < seconds(self.interval_s):
            rooms = self._room_left(rooms, pressure)
            if not rooms:
                return state, _closed(active, "between two looks, and no room beside all contexts")
        else:
            state = Checked(now_ns)
        if not rooms:
            return state, _closed(active, f"demand {pressure.kv_use_ratio:.2f} of the pool")
        limit = max(1, active + pressure.queue_length)
        reason = f"room for {' + '.join(map(str, rooms))} blocks"
        return state, Window(limit=limit, window=float(limit), reason=reason, room_blocks=rooms)

    def _rooms(self, pressure: Pressure) -> tuple[int, ...]:
        """What each engine below the low watermark has left below the high one."""
        return tuple(
            max(0, int(self.watermark_high * total) - demand)
            for demand, total in loads(pressure)
            if demand / total < self.watermark_low
        )

    def _room_left(self, rooms: tuple[int, ...], pressure: Pressure) -> tuple[int, ...]:
        """Of those rooms what is left beside every active context: acting ones count whole, and what grows soon."""
        needed = max(pressure.kv_demand_blocks, *pressure.kv_forecast_blocks[:1], 0)
        left = int(self.watermark_high * pressure.kv_total_blocks) - needed
        found = []
        for room in sorted(rooms, reverse=True):
            if left <= 0:
                break
            found.append(min(room, left))
            left -= room
        return tuple(found)


def _closed(limit: int, reason: str) -> Window:
    limit = max(1, limit)
    return Window(limit=limit, window=float(limit), reason=reason)
