"""A window of programs that is stepped once a control interval: its state and its bounds."""

from dataclasses import dataclass, replace
from typing import Self

from controlplane.core.model.errors import ConfigError, require
from controlplane.core.policies.protocols import Windowed

NEVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedWindow(Windowed):
    """The raw window, before any cap, and the end of the control interval in which it was stepped last."""

    interval_ends_ns: int = NEVER
    was_cut: bool = False  # an overload has told how much is too much

    def at(self, window: float) -> Self:
        return replace(self, window=window, was_cut=self.was_cut or window < self.window)


def require_windows(initial: float, least: float, most: float) -> None:
    """Raise ``ConfigError`` unless a window can begin at ``initial`` and move between the other two."""
    require("window_min", least, low=1, high=1_000_000)
    require("window_max", most, low=least, high=1_000_000)
    if not least <= initial <= most:
        raise ConfigError(
            f"expected window_min <= window_initial <= window_max, got {initial:g}", field="window_initial"
        )
