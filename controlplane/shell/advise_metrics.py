"""What automatic advice has done, as instruments; nothing while it is off and has done nothing."""

from collections.abc import Callable

from controlplane.shell.advise.status import AdviseStatus
from controlplane.shell.state_metrics import State, Values, one
from controlplane.shell.status import Status


def _advice(read: Callable[[AdviseStatus], Values]) -> Callable[[Status], Values]:
    """Of automatic advice, where there is some."""
    return lambda status: read(status.advise) if status.advise is not None else ()


_OUTCOMES = ("tried", "kept", "taken_back")

ADVISE_STATES = (
    State(
        name="penstock.advise.phase",
        unit="",
        description="1 with the phase that automatic advice is in: rests, listens, asks, tries, judges or off",
        read=_advice(lambda a: [(1, {"phase": str(a.phase)})]),
    ),
    State(
        name="penstock.advise.steps",
        unit="",
        description="Steps that automatic advice made, kept and took back",
        read=_advice(
            lambda a: [(count, {"outcome": name}) for name, count in zip(_OUTCOMES, _counts(a), strict=True)]
        ),
        grows=True,
    ),
    State(
        name="penstock.advise.in_force",
        unit="",
        description="Settings that are otherwise than operators wrote them, by automatic advice",
        read=_advice(lambda a: one(len(a.in_force))),
    ),
)


def _counts(advice: AdviseStatus) -> tuple[int, int, int]:
    return advice.tried, advice.kept, advice.undone
