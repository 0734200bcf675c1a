"""Lend the slot of a program in a long gap, and take it back where the pool is overfull; pin nothing.

Whose context the engine evicts is then the engine's own choice, by last use. With slots taken back before the pool
overflows it rarely has to choose: pins beside that changed no case of the ablations by 5% (docs/adr/0004).
What it moved to memory below the device can be fetched before it is likely to be asked for
(``retention.prefetch``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.commands import Command
from controlplane.core.model.types import Pressure, Program, seconds
from controlplane.core.policies.protocols import RetentionPolicy
from controlplane.core.policies.retention.overflow import pauses
from controlplane.core.policies.retention.prefetch import NOTHING_FETCHED, Fetching, fetched, require_prefetch


@dataclass(frozen=True, slots=True, kw_only=True)
class Lend(RetentionPolicy[Fetching]):
    """What ``overflow`` weighs. ``prefetch_s``: so long before its likely return a context is fetched; 0: never."""

    prefetch_s: float = 0.0

    @property
    def lends(self) -> bool:
        return True

    def __post_init__(self) -> None:
        require_prefetch(self.prefetch_s)

    def initial(self) -> Fetching:
        return NOTHING_FETCHED

    def plan(
        self,
        state: Fetching,
        programs: Mapping[str, Program],
        changed: Sequence[Program],
        facts: Estimates,
        pressure: Pressure,
        now_ns: int,
    ) -> tuple[Fetching, Sequence[Command]]:
        leaving = pauses(programs.values(), pressure, now_ns)
        state, coming = fetched(state, programs, facts, pressure, now_ns, seconds(self.prefetch_s))
        return state, [*leaving, *coming]
