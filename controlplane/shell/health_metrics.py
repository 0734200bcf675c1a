"""What is wrong on a node, and whom its gates did not serve, as metrics."""

from controlplane.core.events import REFUSALS
from controlplane.shell.health import RULES
from controlplane.shell.state_metrics import State, Values, one
from controlplane.shell.status import Status


def _findings(status: Status) -> Values:
    found = {each.name for each in status.findings}
    return [(rule.name in found, {"finding": rule.name, "level": str(rule.level)}) for rule in RULES]


def _refusals(status: Status) -> Values:
    turns = {each.code: each.turns for each in status.refusals}
    return [(turns.get(code, 0), {"code": code}) for code in (*REFUSALS, "other")]


HEALTH_STATES = (
    State(
        name="penstock.finding",
        unit="",
        description="1 while that is wrong; level bad: it does not work, look: it does, note: it is so on purpose",
        read=_findings,
    ),
    State(
        name="penstock.turns.refused",
        unit="{turn}",
        description="Turns that left gates unserved, by why, since the state began",
        read=_refusals,
        grows=True,
    ),
    State(
        name="penstock.messages.set_aside",
        unit="",
        description="Messages that could not be applied",
        read=lambda s: one(s.set_aside),
        grows=True,
    ),
)
