"""One replica: there is nothing to choose."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.policies import STATELESS, Replica, Stateless
from controlplane.core.types import ProgramView


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """Stay where the program is, else take the first replica by name."""

    def initial(self) -> Stateless:
        return STATELESS

    def place(
        self, state: Stateless, program: ProgramView, replicas: Sequence[Replica], now_ns: int
    ) -> tuple[Stateless, str]:
        return state, replicas[0].name
