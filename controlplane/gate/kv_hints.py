"""``kv_hints`` of a request: what its client asks to become of its context, and the receipt that it gets.

The envelope is vLLM's and SGLang's (vllm-project/vllm#53421, sgl-project/sglang#36224):

    {protocol_version, message_id, actions: [{action_id, action_type, action_version, payload}]}

No engine answers one yet. Here the reply's header ``x-penstock-kv-hints`` says of each action whether it is
accepted, clipped or rejected, and why. What became of it, and what it was worth, ``penstock explain`` tells.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.core.model.text import sanitize
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, Tier

RECEIPT_HEADER = "x-penstock-kv-hints"
RETAIN, DEMOTE, PREFETCH, DEREFERENCE = "kv.retain", "kv.demote", "kv.prefetch", "kv.deref"
_MOVES = {DEMOTE: Tier.HOST, PREFETCH: Tier.HBM, DEREFERENCE: Tier.NONE}
_MOST_ACTIONS = 16  # of an envelope: a receipt is a header, and has an end
_MOST_ID = 64  # characters of an id that are told back
_MOST_S = 30 * 86_400.0  # vLLM's own bound
_MAJOR = "1"

ACTIONS = {
    RETAIN: (
        "its context is kept for `ttl_seconds` after the turn, or for the longest `duration` of its `directives`; "
        "ranges of tokens count for the whole",
        "`control.hints.retain_most_s` (0: rejected); the engine's pin budget",
    ),
    DEMOTE: ("its context goes below the device once the turn has ended", "rejected without such memory"),
    PREFETCH: (
        "what of it lies below is loaded while the turn is held, once",
        "room that active programs leave; rejected without such memory",
    ),
    DEREFERENCE: ("its context is freed once the turn has ended, beside what others share", "nothing"),
}
"""By ``action_type``: what it does, and what bounds it."""

ACCEPTED, CLIPPED, REJECTED = "accepted", "clipped", "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What is granted here: for how long a context may be kept, and whether there is memory below the device.

    ``refusal``: why nothing is; else empty.
    """

    retain_most_ns: int = 0
    host_tier: bool = False
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """What of an envelope goes on to the daemon, as ``Hints`` has it, and the receipt for its client."""

    retain_least_ns: int = 0
    retain_by: str = ""
    move: str = ""
    move_by: str = ""
    receipt: str = ""


class _Rejected(Exception):
    """An action is none that can be obeyed; why."""


def granted(envelope: Any, bounds: Bounds, session: str) -> Granted:
    """Read an envelope within ``bounds``. ``session`` is the program's own name: no other's context is its to move.

    Of several actions that keep a context the longest counts, of several that move it the last.
    """
    actions = envelope.get("actions") if isinstance(envelope, dict) else None
    if not isinstance(actions, list):
        return Granted(receipt=_receipt("", [{"outcome": REJECTED, "reason": "expected a list of actions"}]))
    found = dict[str, Any]()
    told = [_told(action, bounds, session, found) for action in actions[:_MOST_ACTIONS]]
    if len(actions) > _MOST_ACTIONS:
        told.append({"outcome": REJECTED, "reason": f"of {len(actions)} actions {_MOST_ACTIONS} are read"})
    return Granted(**found, receipt=_receipt(_id(envelope.get("message_id")), told))


def _told(action: Any, bounds: Bounds, session: str, found: dict[str, Any]) -> dict[str, Any]:
    """What the client is told of one action; what is granted goes into ``found``."""
    answer: dict[str, Any] = {"action_id": _id(action.get("action_id"))} if isinstance(action, dict) else {}
    try:
        if not isinstance(action, dict):
            raise _Rejected("expected an object")
        kind, payload = action.get("action_type"), action.get("payload", {})
        if str(action.get("action_version", "")).partition(".")[0] != _MAJOR:
            raise _Rejected("expected action_version 1.x")
        if not isinstance(payload, dict):
            raise _Rejected("expected an object as payload")
        if bounds.refusal:
            raise _Rejected(bounds.refusal)
        named = payload.get("session_id")
        if named is not None and named != session and not session.startswith(f"{named}@"):
            raise _Rejected("it names another session than its request does")
        if kind == RETAIN:
            return answer | _retained(payload, bounds, found)
        if kind not in _MOVES:
            raise _Rejected(f"expected {RETAIN}, {', '.join(_MOVES)} as action_type")
        if kind != DEREFERENCE and not bounds.host_tier:
            raise _Rejected("there is no memory below the device")
        found |= {"move": str(_MOVES[kind]), "move_by": f"kv_hints {kind}"}
    except _Rejected as why:
        return answer | {"outcome": REJECTED, "reason": str(why)}
    return answer | {"outcome": ACCEPTED}


def _retained(payload: Mapping[str, Any], bounds: Bounds, found: dict[str, Any]) -> dict[str, Any]:
    if not bounds.retain_most_ns:
        raise _Rejected("control.hints.retain_most_s allows none")
    asked_s, why = _asked(payload)
    most_s = bounds.retain_most_ns / NANOSECONDS_PER_SECOND
    if asked_s > most_s:
        why = [*why, f"control.hints.retain_most_s allows {most_s:g} s"]
    asked_ns = round(asked_s * NANOSECONDS_PER_SECOND)
    if asked_ns > found.get("retain_least_ns", 0):
        found |= {"retain_least_ns": asked_ns, "retain_by": f"kv_hints {RETAIN}"}
    answer: dict[str, Any] = {"ttl_seconds": round(min(asked_s, most_s), 3)}
    return answer | ({"outcome": CLIPPED, "reason": "; ".join(why)} if why else {"outcome": ACCEPTED})


def _asked(payload: Mapping[str, Any]) -> tuple[float, list[str]]:
    """For how many seconds a context is to be kept, and what of the wish is not followed.

    Dynamo's routers say ``ttl_seconds``; vLLM's payload has ``directives`` for ranges of tokens, of which the
    longest that protects anything counts for the whole.
    """
    directives = payload.get("directives", [payload])
    if not (isinstance(directives, list) and directives and all(isinstance(each, dict) for each in directives)):
        raise _Rejected("expected ttl_seconds, or a list of directives, in the payload")
    keeping = [each for each in directives if each.get("priority", 1) != 0]
    if not keeping:
        return 0.0, []
    asked_s = max(map(_duration_s, keeping))
    ranged = any(each.get(name) is not None for each in directives for name in ("start", "end", "covers_output"))
    return asked_s, ["the whole context is kept, not a range"] if ranged else []


def _duration_s(directive: Mapping[str, Any]) -> float:
    value = directive.get("ttl_seconds", directive.get("duration"))
    if value is None:
        return _MOST_S  # without an end
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_S:
        raise _Rejected(f"expected 0 to {_MOST_S:,.0f} seconds")
    return float(value) if math.isfinite(value) else _MOST_S


def _id(value: Any) -> str:
    return sanitize(value)[:_MOST_ID] if isinstance(value, str) else ""


def _receipt(message_id: str, told: list[dict[str, Any]]) -> str:
    """ASCII, as a header must be."""
    return json.dumps({"message_id": message_id, "actions": told}, separators=(",", ":"))


def envelope_of(body: Mapping[str, Any]) -> Any:
    """The request's envelope; None for none."""
    if (found := body.get("kv_hints")) is not None:
        return found
    inside = body.get("kv_transfer_params")
    return inside.get("kv_hint") if isinstance(inside, dict) else None
