"""Answers to a client whose turn does not run, in the shape that clients of its API expect."""

from http import HTTPStatus
from typing import Any

ANTHROPIC_PATH = "/v1/messages"
_OTHERWISE = "invalid_request_error"
_OPENAI_TYPES: dict[int, str] = {
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "service_unavailable",
}
_ANTHROPIC_TYPES: dict[int, str] = {
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}
DROPPED_REASON = "x-llm-d-request-dropped-reason"
_DROPPED: dict[str, str] = {
    "queue_full": "rejected-saturated",
    "overloaded": "rejected-saturated",
    "expected_wait": "rejected-saturated",
    "hold_deadline": "rejected-ttl-expired",
    "draining": "rejected-shutting-down",
    "gate_closed": "rejected-shutting-down",
    "no_engine": "rejected-no-endpoints",
}


def dropped_reason(code: str) -> str:
    """Why a turn was refused, in llm-d's words; where it has none, in ours after its prefix."""
    return _DROPPED.get(code, f"rejected-{code.replace('_', '-')}")


def problem(path: str, status: int, code: str, message: str, **details: object) -> dict[str, Any]:
    """The body of a refusal: in Anthropic's shape for ``/v1/messages``, in OpenAI's elsewhere.

    ``code`` and ``details`` are ours, and the same in both.
    """
    fails = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    if path == ANTHROPIC_PATH:
        kind = _ANTHROPIC_TYPES.get(status, "api_error" if fails else _OTHERWISE)
        return {"type": "error", "error": {"type": kind, "message": message, "code": code, **details}}
    kind = _OPENAI_TYPES.get(status, "server_error" if fails else _OTHERWISE)
    return {"error": {"message": message, "type": kind, "param": None, "code": code, **details}}
