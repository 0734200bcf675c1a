"""A window that an operator chose; 0 admits everyone, as an engine without admission does."""

from dataclasses import dataclass

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.errors import require
from controlplane.core.model.types import Pressure
from controlplane.core.policies.protocols import NoState, Stateless, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed(NoState):
    """``window`` programs at once."""

    window: int = 0

    def __post_init__(self) -> None:
        require("window", self.window, low=0, high=1_000_000)

    def update(
        self, state: Stateless, facts: Estimates, pressure: Pressure, now_ns: int
    ) -> tuple[Stateless, Window]:
        reason = f"fixed at {self.window}" if self.window else "no limit"
        return state, Window(limit=self.window, window=float(self.window), reason=reason)
