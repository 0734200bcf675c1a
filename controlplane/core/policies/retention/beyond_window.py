"""Pause active programs beyond the window between two turns, the latest arrival first.

**Paper**: CONCUR (arXiv 2601.22705): agents are paused and resumed whole, between their steps. Nothing is pinned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.commands import Command, Pause
from controlplane.core.model.types import Pressure, Program
from controlplane.core.policies.protocols import NoState, RetentionPolicy, Stateless
from controlplane.core.policies.retention.overflow import may_leave


@dataclass(frozen=True, slots=True, kw_only=True)
class BeyondWindow(NoState, RetentionPolicy[Stateless]):
    """No parameters."""

    def plan(
        self,
        state: Stateless,
        programs: Mapping[str, Program],
        changed: Sequence[Program],
        facts: Estimates,
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
