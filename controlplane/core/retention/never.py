"""Leave every context to the engine's own eviction, as a stock engine does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from controlplane.core.commands import Command
from controlplane.core.facts import Facts
from controlplane.core.policies import STATELESS, Stateless
from controlplane.core.types import Pressure, ProgramView


@dataclass(frozen=True, slots=True, kw_only=True)
class Never:
    """No pin, ever."""

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
        return state, ()
