"""Leave every context to the engine's own eviction, as a stock engine does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.commands import Command
from controlplane.core.model.types import Pressure, Program
from controlplane.core.policies.protocols import NoState, RetentionPolicy, Stateless


@dataclass(frozen=True, slots=True, kw_only=True)
class Never(NoState, RetentionPolicy[Stateless]):
    """No pin, ever."""

    def plan(
        self,
        state: Stateless,
        programs: Mapping[str, Program],
        changed: Sequence[Program],
        facts: Estimates,
        pressure: Pressure,
        now_ns: int,
    ) -> tuple[Stateless, Sequence[Command]]:
        return state, ()
