"""Lend the slot of a program in a long gap, and take it back where the pool is overfull; pin nothing.

Whose context the engine evicts is then the engine's own choice, by last use. With slots taken back before the pool
overflows it rarely has to choose: pins beside that changed no case of the ablations by 5% (docs/adr/0034).
What it moved to memory below the device can be fetched before it is likely to be asked for
(``retention.prefetch``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from controlplane.core.commands import Command
from controlplane.core.facts import Facts
from controlplane.core.retention.overflow import pauses
from controlplane.core.retention.prefetch import NOTHING_FETCHED, Fetching, fetched, require_prefetch
from controlplane.core.types import Pressure, ProgramView, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Lend:
    """What ``overflow`` weighs. ``prefetch_s``: so long before its likely return a context is fetched; 0: never."""

    half_life_ns: ClassVar[int] = 0
    lends: ClassVar[bool] = True
    prefetch_s: float = 0.0

    def __post_init__(self) -> None:
        require_prefetch(self.prefetch_s)

    def initial(self) -> Fetching:
        return NOTHING_FETCHED

    def plan(
        self,
        state: Fetching,
        programs: Mapping[str, ProgramView],
        changed: Sequence[ProgramView],
        facts: Facts,
        pressure: Pressure,
        now_ns: int,
    ) -> tuple[Fetching, Sequence[Command]]:
        leaving = pauses(programs.values(), pressure, now_ns)
        state, coming = fetched(state, programs, facts, pressure, now_ns, seconds(self.prefetch_s))
        return state, [*leaving, *coming]
