"""Pause active programs beyond the window between two turns, the latest arrival first.

**Paper**: CONCUR (arXiv 2601.22705): agents are paused and resumed whole, between their steps. Nothing is pinned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from controlplane.core.commands import Command, Pause
from controlplane.core.facts import Facts
from controlplane.core.policies import STATELESS, Stateless
from controlplane.core.retention.overflow import may_leave
from controlplane.core.types import Pressure, ProgramView


@dataclass(frozen=True, slots=True, kw_only=True)
class BeyondWindow:
    """No parameters."""

    half_life_ns: ClassVar[int] = 0
    lends: ClassVar[bool] = False

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
        beyond = pressure.programs_active - pressure.window_limit
        if not pressure.window_limit or beyond <= 0:
            return state, ()
        acting = [program for program in programs.values() if program.gap_since_ns and may_leave(program)]
        acting.sort(key=lambda program: (-program.arrived_at_ns, program.program_id))
        why = f"{pressure.programs_active} are active where {pressure.window_limit} may be"
        return state, [Pause(program_id=program.program_id, reason=why) for program in acting[:beyond]]
