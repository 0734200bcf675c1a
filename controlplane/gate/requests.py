"""What a gate asks of a request, whatever carries it: which are turns, whose they are, what their clients are told.

The middleware has them from ASGI, a fleet's endpoint picker from Envoy.
"""

import re
import secrets
from collections.abc import Iterable
from dataclasses import fields
from http import HTTPStatus
from typing import Any

from controlplane.core.estimators.prompt_size import PromptSize
from controlplane.core.model.causes import Change
from controlplane.core.model.types import NANOSECONDS_PER_SECOND
from controlplane.gate.hints import DEADLINES, Asked
from controlplane.gate.identity import Identity
from controlplane.gate.kv_hints import RECEIPT_HEADER
from controlplane.gate.problems import ANTHROPIC_PATH, DROPPED_REASON, dropped_reason, problem
from controlplane.gate.tickets import Refused, Ticket

GATED_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", ANTHROPIC_PATH, "/generate")
MORE_PATHS = (
    *("/chat/completions", "/completions", "/completion", "/responses"),  # of llama.cpp and others, without /v1
    *("/api/chat", "/api/generate"),  # Ollama's
    *("/inference/v1/generate", "/v1/chat/completions/batch", "/v1/systemone", "/generative_scoring"),  # vLLM's
    *("/invocations", "/cohere/v2/chat"),
)
"""Where servers generate beside these. A path that a server has not costs nothing."""
GATED_METHODS = ("POST", "PUT")  # SGLang's /generate takes either
HEALTH_PATH = "/penstock/health"
HOLD_HEADER = "x-penstock-hold-ms"
TURN_HEADER = "x-penstock-turn-id"
CHANGE_HEADER = "x-penstock-prompt-change"
NO_RETRY = "x-should-retry"  # OpenAI's and Anthropic's SDKs obey it
_MOST_DIGITS = 18
_RETRIED = frozenset({408, 409, 429})  # by OpenAI's and Anthropic's SDKs, beside what a server fails at
_TURN_ID_BYTES = 16  # what nobody guesses: it proves to whom the turn was answered
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_TURN_ID = re.compile(rb"[0-9a-f]{32}")
_OF_IDENTITY = tuple(field.name for field in fields(Identity))


def turn_path(path: str) -> str:
    """The path by which a turn is known: slashes at its end make no difference."""
    return path.rstrip("/")


def new_turn_id() -> str:
    """An id that no other turn has."""
    return secrets.token_hex(_TURN_ID_BYTES)


def turn_id_from(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The name that a gate before this one gave the turn; empty where there is none that a gate would make.

    It may be forged. It is 128 random bits where a gate made it, so nobody meets another turn's by guessing.
    Whoever picks one for a turn of a program has named that program, and would have been told that turn's name
    anyway: as a proof of parenthood (docs/adr/0021) it is worth no more, and it proves nothing of another program.
    A name that is at the gate, or that one of the program's latest turns had, is not taken again, or events of two
    turns would be taken for one's. A fleet's Envoy takes the header from clients.
    """
    received = next((value for name, value in headers if name.lower() == TURN_HEADER.encode()), b"")
    return received.decode() if _TURN_ID.fullmatch(received) else ""


def ticket_of(
    identity: Identity,
    turn_id: str,
    *,
    prompt: PromptSize,
    change: Change | None = None,
    held_bytes: int,
    waited_ns: int = 0,
    timeout_s: float = 0.0,
    asked: Asked,
) -> Ticket:
    """The ticket of that identity's turn."""
    whose = {name: getattr(identity, name) for name in _OF_IDENTITY}
    more: dict[str, Any] = {"held_bytes": held_bytes, "waited_ns": waited_ns, "timeout_s": timeout_s}
    more |= {"hints": asked.hints, "receipt": asked.receipt}
    return Ticket(turn_id=turn_id, prompt=prompt, change=change or Change(), **more, **whose)


def timeout_from(headers: Iterable[tuple[bytes, bytes]]) -> float:
    """For how many seconds the client says that it waits: the least of what it says; 0: it says nothing."""
    said = (
        float(text) * DEADLINES[name]
        for raw, value in headers
        if (name := raw.decode("latin-1").lower()) in DEADLINES
        and _NUMBER.fullmatch(text := value.decode("latin-1").strip())
    )
    return min((each for each in said if each > 0), default=0.0)


def is_retried(status: int) -> bool:
    """Whether clients ask for the turn again after a reply of this status; 0: none began.

    If not, its client's word that it is the last holds, whatever became of the reply.
    """
    return status == 0 or status in _RETRIED or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def refusal_problem(path: str, refused: Refused) -> dict[str, Any]:
    """The body of a refusal, for JSON."""
    again = {} if refused.is_final else {"retry_after_s": refused.retry_after_s}
    return problem(
        path,
        refused.status,
        refused.code,
        refused.message,
        program_id=refused.program_id,
        held_s=round(refused.hold_ns / NANOSECONDS_PER_SECOND, 3),
        **again,
    )


def refusal_headers(refused: Refused) -> dict[str, str]:
    """When to come again; of what is refused for good, that clients' SDKs need not try."""
    again = {NO_RETRY: "false"} if refused.is_final else {"retry-after": str(refused.retry_after_s)}
    return again | {DROPPED_REASON: dropped_reason(refused.code)}


def told_headers(ticket: Ticket) -> dict[str, str]:
    """What a reply says beside: the answer to ``kv_hints``, and what differs first from an earlier prompt."""
    change = ticket.change
    changed = f"{change.change}; {change.change_at}" if change.change else ""
    told = {RECEIPT_HEADER: ticket.receipt, CHANGE_HEADER: changed}
    return {name: value for name, value in told.items() if value}


def count_of(text: str) -> int:
    """The count that a header says; 0 if it is none, or longer than any."""
    return int(text) if len(text) <= _MOST_DIGITS and text.isdecimal() else 0


def hold_ms(hold_ns: int, before: str = "") -> str:
    """The value of ``HOLD_HEADER``; ``before``, what a gate before this one said in the request."""
    return str(round(hold_ns / 1e6) + count_of(before))
