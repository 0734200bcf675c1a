"""By what clients say over HTTP that a program is over, beside an adapter's word on the bus."""

from collections.abc import Iterable, Mapping
from typing import Any

from controlplane.gate.gate import Gate
from controlplane.gate.identity import Identity

ENDING_PATHS: Mapping[str, bool] = {
    "/close_session": True,  # SGLang's own
    "/finish_session": False,  # prime-rl's router
    "/programs/release": False,  # ThunderAgent's proxy
}
"""Requests that end the program that they name as a turn does: whether the server behind the gate is told, too."""
_LAST_STEP = "is_last_step"  # in the body of Continuum's clients
_FINAL = b"x-dynamo-session-final"


def is_last(headers: Iterable[tuple[bytes, bytes]], body: Mapping[str, Any]) -> bool:
    """Whether the client says that this turn is its program's last."""
    if body.get(_LAST_STEP) is True:
        return True
    return any(name.lower() == _FINAL and value.strip().lower() == b"true" for name, value in headers)


def ended(gate: Gate, identity: Identity) -> dict[str, object]:
    """End the program that a request to one of ``ENDING_PATHS`` names; the answer, as JSON."""
    known = not identity.anonymous and gate.client_ended(identity.program_id)
    return {"program_id": "" if identity.anonymous else identity.program_id, "ended": known}
