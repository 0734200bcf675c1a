"""What a shadow decides otherwise, what it takes and what it would change, as instruments; nothing without one."""

from collections.abc import Callable
from dataclasses import asdict

from controlplane.shell.shadow import DECIDES, FAILED, THIN, ShadowStatus
from controlplane.shell.state_metrics import State, Values, one
from controlplane.shell.status import Status


def _shadow(read: Callable[[ShadowStatus], Values]) -> Callable[[Status], Values]:
    """Of a shadow, where there is one."""
    return lambda status: read(status.shadow) if status.shadow is not None else ()


def _shadow_compared(shadow: ShadowStatus) -> Values:
    counts = asdict(shadow.counts)
    counts.pop("order")  # it is part of another kind
    return [(count, {"kind": kind}) for kind, count in counts.items()]


def _shadow_change(end: str) -> Callable[[ShadowStatus], Values]:
    return lambda shadow: [(getattr(each, end), {"of": each.name}) for each in shadow.estimate.changes]


SHADOW_STATES = (
    State(
        name="penstock.shadow.deciding",
        unit="",
        description="1 while the shadow of that preset decides, 0 while it rests, waits or has failed",
        read=_shadow(lambda s: [(s.standing in (DECIDES, THIN), {"preset": s.preset})]),
    ),
    State(
        name="penstock.shadow.failed",
        unit="",
        description="1 once an error of its own has switched the shadow off",
        read=_shadow(lambda s: one(s.standing == FAILED)),
    ),
    State(
        name="penstock.shadow.decisions",
        unit="",
        description="Decisions by how the shadow's compare with those in force, since the two are compared",
        read=_shadow(_shadow_compared),
        grows=True,
    ),
    State(
        name="penstock.shadow.window.limit",
        unit="{program}",
        description="The shadow's window: root programs that it would have active; 0: no limit",
        read=_shadow(lambda s: one(s.window.limit)),
    ),
    State(
        name="penstock.shadow.ahead",
        unit="{program}",
        description="Programs that the shadow has let in and the daemon holds",
        read=_shadow(lambda s: one(s.ahead)),
    ),
    State(
        name="penstock.shadow.cpu_ratio",
        unit="",
        description="Share of the daemon's CPU time that the shadow took",
        read=_shadow(lambda s: one(s.cpu_ratio)),
    ),
    State(
        name="penstock.shadow.rests",
        unit="",
        description="Times that the shadow had used up its share of CPU time",
        read=_shadow(lambda s: one(s.rests)),
        grows=True,
    ),
    State(
        name="penstock.shadow.estimates",
        unit="",
        description="Estimates that were made of what the shadow would change",
        read=_shadow(lambda s: one(s.estimate.made)),
        grows=True,
    ),
    State(
        name="penstock.shadow.change_ratio",
        unit="",
        description="What the shadow is estimated to change: of times a ratio less 1, of the hit rate a difference",
        read=_shadow(_shadow_change("value")),
    ),
    State(
        name="penstock.shadow.change_low_ratio",
        unit="",
        description="Lower end of that change's 95% interval; the change itself where the interval is not known",
        read=_shadow(_shadow_change("low")),
    ),
    State(
        name="penstock.shadow.change_high_ratio",
        unit="",
        description="Upper end of that change's 95% interval; the change itself where the interval is not known",
        read=_shadow(_shadow_change("high")),
    ),
)
