"""Lend the slot of a program in a long gap, and take it back where the pool is overfull; pin nothing.

Whose context the engine evicts is then the engine's own choice, by last use. With slots taken back before the pool
overflows it rarely has to choose: pins beside that changed no case of the ablations by 5% (docs/adr/0034).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from controlplane.core.commands import Command
from controlplane.core.facts import Facts
from controlplane.core.policies import STATELESS, Stateless
from controlplane.core.retention.overflow import pauses
from controlplane.core.types import Pressure, ProgramView


@dataclass(frozen=True, slots=True, kw_only=True)
class Lend:
    """What ``overflow`` weighs, and nothing beside it."""

    half_life_ns: ClassVar[int] = 0
    lends: ClassVar[bool] = True

    def initial(self) -> Stateless:
        return STATELESS

    def plan(
        self,
        state: Stateless,
        programs: Mapping[str, ProgramView],
        changed: Sequence[ProgramView],
        facts: Facts,
        pressure: Pressure,
        now_ns: int,
    ) -> tuple[Stateless, Sequence[Command]]:
        return state, pauses(programs.values(), pressure, now_ns)
