"""Order the queue to fit the resources that are left.

**Paper**: MARS Algorithm 1, PackQueue, and §4.2 "Global Load Balancer": long sessions first while the host is
overloaded (they bring fewer tool calls soon), a feasible set by first fit while only long sessions wait, short
sessions first otherwise. Where we deviate: who waits long overtakes who is short, or the mean would be bought with
the tail (docs/adr/0014); and who comes back, having lent its slot, goes before newcomers, since less is left of it
(docs/adr/0014; the paper takes no slot back). The paper leaves AllLongSessions open; ours
(docs/explanation/presets.md): the smallest estimate is at least 1/8 of the pool.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.errors import require
from controlplane.core.model.types import Pressure, QueuedProgram
from controlplane.core.policies.protocols import PackingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureAware(PackingPolicy):
    """``long_share``: the share of the pool from which a session counts as long.

    ``aged``: among short sessions size counts against the time waited, or else by itself. ``returners_first``: who
    comes back goes before newcomers.
    """

    long_share: float = 0.125
    aged: bool = True
    returners_first: bool = True

    def __post_init__(self) -> None:
        require("long_share", self.long_share, low=0, high=1, ends="(]")

    def order(
        self, queue: Sequence[QueuedProgram], facts: Estimates, pressure: Pressure, now_ns: int
    ) -> Sequence[QueuedProgram]:
        by_arrival = sorted(queue, key=lambda waiting: waiting.arrived_at_ns)
        if pressure.cpu_overloaded:  # Algorithm 1, lines 4-5
            return sorted(by_arrival, key=lambda waiting: -waiting.blocks)
        if self._all_long(by_arrival, pressure):  # lines 6-7
            free_blocks = max(0, pressure.kv_total_blocks - pressure.kv_demand_blocks)
            return first_fit(by_arrival, free_blocks)
        back = [waiting for waiting in by_arrival if self.returners_first and waiting.turn_index]
        new = [waiting for waiting in by_arrival if not self.returners_first or not waiting.turn_index]
        if self.aged:
            new.sort(key=lambda waiting: _response_ratio(waiting, now_ns), reverse=True)
        else:
            new.sort(key=lambda waiting: waiting.blocks)  # lines 8-9
        return back + new

    def _all_long(self, queue: Sequence[QueuedProgram], pressure: Pressure) -> bool:
        if not queue or pressure.kv_total_blocks <= 0:
            return False
        return min(waiting.blocks for waiting in queue) >= self.long_share * pressure.kv_total_blocks


def _response_ratio(waiting: QueuedProgram, now_ns: int) -> float:
    """Time since arrival for each block asked for: highest response ratio next (Brinch Hansen 1971)."""
    return max(1, now_ns - waiting.arrived_at_ns) / max(1, waiting.blocks)


def first_fit(queue: Sequence[QueuedProgram], free_blocks: int) -> list[QueuedProgram]:
    """Those that fit together into ``free_blocks``, in the given order, then the rest in that order."""
    fitting: list[QueuedProgram] = []
    rest: list[QueuedProgram] = []
    for waiting in queue:
        if waiting.blocks <= free_blocks:
            free_blocks -= waiting.blocks
            fitting.append(waiting)
        else:
            rest.append(waiting)
    return fitting + rest
