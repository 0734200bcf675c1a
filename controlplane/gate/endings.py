"""By what clients say over HTTP that a program is over, beside an adapter's word on the bus."""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from controlplane.core.model.text import sanitize
from controlplane.gate.gate import Gate
from controlplane.gate.identity import Identity

ENDING_PATHS: Mapping[str, bool] = {
    "/close_session": True,  # SGLang's own
    "/finish_session": False,  # the routers of prime-rl and SkyRL
    "/programs/release": False,  # ThunderAgent's proxy
}
"""Requests that end the program that they name as a turn does: whether the server behind the gate is told, too."""
OURS = "penstock-"
"""How the names of sessions begin that a gate itself has in an engine."""
_LAST_STEP = "is_last_step"  # in the body of Continuum's clients
_FINAL = b"x-dynamo-session-final"


def is_last(headers: Iterable[tuple[bytes, bytes]], body: Mapping[str, Any]) -> bool:
    """Whether the client says that this turn is its program's last."""
    if body.get(_LAST_STEP) is True:
        return True
    return any(name.lower() == _FINAL and value.strip().lower() == b"true" for name, value in headers)


def with_query(query: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
    """What such a request says: SkyRL names the session in the query, and sends no body."""
    return {**dict(parse_qsl(query)), **(body or {})}


def ended(gate: Gate, identity: Identity, path: str, body: Mapping[str, Any]) -> dict[str, object] | None:
    """End the program that a request to one of ``ENDING_PATHS`` names.

    The answer, as JSON; None where the server behind the gate is to be told, too, and answers. Of a session that is
    another account's, or the gate's own, it is not told.
    """
    known = not identity.anonymous and gate.client_ended(identity.program_id)
    session = body.get("session_id")
    is_free = not isinstance(session, str) or (
        not session.startswith(OURS) and gate.tenants.may_name(sanitize(session), identity)
    )
    if ENDING_PATHS[path] and is_free:
        return None
    return {"program_id": "" if identity.anonymous else identity.program_id, "ended": known}
