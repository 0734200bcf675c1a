"""What tests of the engines' plugins share: a turn that a gate let in, and emitters that keep their events."""

from typing import Any

import pytest

from controlplane.core.model.events import Event
from controlplane.emit.emitter import Emitter
from controlplane.gate import GatedRequest, Identity, Ticket
from controlplane.gate.tickets import Entered

GATED = {"program_id": "p", "penstock_turn": "t-1", "penstock_parent": "root", "penstock_trace": "00-1-2-01"}
ON_RANK_1 = "node/engine-30000-dp1"


def gated_scope(place: str = "") -> dict[str, Any]:
    """The ASGI scope of a turn whose labels are ``GATED``."""
    request = GatedRequest(
        identity=Identity(program_id="p", parent_id="root"),
        ticket=Ticket(turn_id="t-1", program_id="p", trace="00-1-2-01"),
        body={},
        entered=Entered(hold_ns=0, reason=""),
        place=place,
    )
    return {"type": "http", "headers": [], "penstock": request}


def emitted(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """What emitters are given from now on; none of them starts, since there is no bus."""
    events: list[Event] = []
    monkeypatch.setattr(Emitter, "start", lambda emitter, role="": None)
    monkeypatch.setattr(Emitter, "emit", lambda emitter, event, urgent=False: events.append(event))
    return events
