"""A window that an operator chose; 0 admits everyone, as an engine without admission does."""

from dataclasses import dataclass

from controlplane.core.errors import require
from controlplane.core.facts import Facts
from controlplane.core.policies import STATELESS, Stateless, Window
from controlplane.core.types import Pressure


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """``window`` programs at once."""

    window: int = 0

    def __post_init__(self) -> None:
        require("window", self.window, low=0, high=1_000_000)

    def initial(self) -> Stateless:
        return STATELESS

    def update(self, state: Stateless, facts: Facts, pressure: Pressure, now_ns: int) -> tuple[Stateless, Window]:
        reason = f"fixed at {self.window}" if self.window else "no limit"
        return state, Window(limit=self.window, window=float(self.window), reason=reason)
