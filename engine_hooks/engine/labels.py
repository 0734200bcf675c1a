"""The labels that carry a turn's identity from the HTTP request to the scheduler: by what name, and from where."""

from collections.abc import Mapping
from typing import Any

from controlplane.core.model.causes import Change
from controlplane.gate import BadIdentity, GatedRequest, identify
from controlplane.gate.request_ids import ID_HEADERS, carried_by, change_text

PROGRAM = "program_id"
TURN = "penstock_turn"
PARENT = "penstock_parent"
TRACE = "penstock_trace"
CHANGE = "penstock_change"
OURS = (TURN, PARENT, TRACE, CHANGE)
"""Those that no client may write."""


def gated_labels(gated: GatedRequest) -> dict[str, str]:
    """Those of a turn that its gate let in."""
    labels = {PROGRAM: gated.identity.program_id, TURN: gated.ticket.turn_id}
    if gated.identity.parent_id:
        labels[PARENT] = gated.identity.parent_id
    if gated.ticket.trace:
        labels[TRACE] = gated.ticket.trace
    return labels | _change(gated.ticket.change)


def _change(change: Change) -> dict[str, str]:
    text = change_text(change)
    return {CHANGE: text} if text else {}


def ungated_labels(scope: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, str]:
    """A path without a gate: what headers and the parsed request tell. One that names nobody is not labelled.

    Nor is a parent, whom nobody has checked: to the daemon the engine's word is as good as its gate's.
    """
    try:
        identity = identify(list(scope["headers"]), fields)
    except BadIdentity:
        return {}
    return {} if identity.anonymous else {PROGRAM: identity.program_id}


def outside_labels(scope: Mapping[str, Any]) -> dict[str, str]:
    """Those that a gate outside wrote into a header that routers hand on; none where there is no such gate."""
    for name, value in scope["headers"]:
        if name.decode("latin-1").lower() in ID_HEADERS and (labels := carried_labels(value.decode("latin-1"))):
            return labels
    return {}


def carried_labels(request_id: str) -> dict[str, str]:
    """Those that a gate outside of the engine wrote into the request's id; none where there is no such gate."""
    carried = carried_by(request_id)
    if carried is None:
        return {}
    labels = {PROGRAM: carried.program_id, TURN: carried.turn_id}
    labels |= _change(carried.change)
    return {**labels, TRACE: carried.trace} if carried.trace else labels
