"""A turn's identity inside its request's id, for engines whose front end has no place for a gate or a plugin.

vLLM's front end in Rust drops headers and fields that it does not know. Of those that it knows, ``X-Session-ID`` is
overruled by a ``session_id`` in the body, and is dropped if it is not ASCII. ``X-Request-Id`` overrules the body;
thousands of characters of it arrive as they were, and what the engine adds stands before and behind them. SGLang
with several tokenizer workers hands no header on but ``x-smg-routing-key``, as it is: on OpenAI's and Anthropic's
routes. The same text rides there.
"""

import re
import string
from dataclasses import dataclass
from urllib.parse import quote, unquote

from controlplane.core.model.text import sanitize

REQUEST_ID_HEADER = "x-request-id"
RANK_HEADER = "x-data-parallel-rank"  # by which that front end sends a request to one of its ranks
ID_HEADERS = (REQUEST_ID_HEADER, "x-smg-routing-key")
_MARK = "penstock"
_CARRIED = re.compile(
    rf".*{_MARK}:([0-9a-f]{{32}}):([^:]+):([0-9a-f-]{{0,55}}):", re.DOTALL
)  # the last one is the gate's
_VISIBLE = string.punctuation + " "


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The identity of a turn that a gate has let in. ``trace`` is its client's span, as ``traceparent`` has it."""

    turn_id: str
    program_id: str
    trace: str = ""


def request_id_with(carried: Carried, own: str = "") -> str:
    """The value of each of ``ID_HEADERS`` that carries it: ``own``, what the client calls its request, and that.

    ASCII alone, whatever they hold: ``OWN:penstock:TURN:PROGRAM:TRACE:``.
    """
    program, mine = quote(carried.program_id, safe=""), f"{quote(own, safe=_VISIBLE)}:" * bool(own)
    return f"{mine}{_MARK}:{carried.turn_id}:{program}:{carried.trace}:"


def carried_by(request_id: str) -> Carried | None:
    """What such an id carries, whatever stands around it; None where no gate has written there.

    It may be forged by whoever reaches the engine itself: they name a program as they might in any other way, and
    cannot meet another's turn by guessing (``requests.turn_id_from``). So no parent is carried.
    """
    found = _CARRIED.match(request_id)
    if found is None:
        return None
    turn_id, program, trace = found.groups()
    return Carried(turn_id=turn_id, program_id=sanitize(unquote(program)), trace=trace)
