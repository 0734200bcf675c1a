"""An instrument that is read from a daemon's status when somebody looks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from controlplane.shell.status import Status

Values = Iterable[tuple[float, dict[str, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """An instrument that is read from the status. ``grows``: a counter, else a gauge."""

    name: str
    unit: str
    description: str
    read: Callable[[Status], Values]
    grows: bool = False


def one(value: float) -> Values:
    """A value without a label."""
    return [(value, {})]
