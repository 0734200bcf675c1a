"""Programs that will hold least memory for least time go first, weighed against how long they have been here.

The memory is what programs compete for, and a program takes of it its context times the time for which it holds
it: KV space-time. Serving the least expected remaining work first makes the mean wait least (SERPT; Schrage 1968
where it is known, Gittins where it is not); the work is space-time here, as many programs hold the memory at once.
It is that of the program's class, given the turns that it has had (``lives``). While CPUs are overloaded they are
what is competed for, and a program takes of them for as long as it is here, whatever it holds: least time first.

Size alone would starve whoever is large, so time counts against it as in highest response ratio next (Brinch
Hansen 1971), to a power: with 1 a program that has been here for twice as long may be twice as large.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.errors import require
from controlplane.core.model.types import Pressure, QueuedProgram
from controlplane.core.policies.protocols import PackingPolicy

_LEAST = 1e-9  # blocks x lifetimes: below what any program holds


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLeft(PackingPolicy):
    """``ageing``: the power of the time since arrival that counts against what is left."""

    looks_ahead: ClassVar[bool] = True
    ages: ClassVar[bool] = True
    groups: ClassVar[bool] = True
    ageing: float = 0.5

    def __post_init__(self) -> None:
        require("ageing", self.ageing, low=0, high=4, ends="(]")

    def order(
        self, queue: Sequence[QueuedProgram], facts: Estimates, pressure: Pressure, now_ns: int
    ) -> Sequence[QueuedProgram]:
        def index(waiting: QueuedProgram) -> float:
            here_ns = max(1, now_ns - waiting.arrived_at_ns)
            left = waiting.lifetimes if pressure.cpu_overloaded else waiting.left
            return float(here_ns**self.ageing) / max(_LEAST, left)

        by_arrival = sorted(queue, key=lambda waiting: waiting.arrived_at_ns)
        return sorted(by_arrival, key=index, reverse=True)
