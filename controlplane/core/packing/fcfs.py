"""Order the queue by arrival."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from controlplane.core.facts import Facts
from controlplane.core.types import Pressure, QueuedProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class Fcfs:
    """Whoever arrived first is admitted first; a program that returns keeps its first arrival."""

    looks_ahead: ClassVar[bool] = False
    ages: ClassVar[bool] = False

    def order(
        self, queue: Sequence[QueuedProgram], facts: Facts, pressure: Pressure, now_ns: int
    ) -> Sequence[QueuedProgram]:
        return sorted(queue, key=lambda waiting: waiting.arrived_at_ns)
