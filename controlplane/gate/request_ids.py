"""A turn's identity inside its request's id, for engines whose front end has no place for a gate or a plugin.

vLLM's front end in Rust drops headers and fields that it does not know. Of those that it knows, ``X-Session-ID`` is
overruled by a ``session_id`` in the body, and is dropped if it is not ASCII. ``X-Request-Id`` overrules the body;
thousands of characters of it arrive as they were, and what the engine adds stands before and behind them. SGLang
with several tokenizer workers hands no header on but ``x-smg-routing-key``, as it is: on OpenAI's and Anthropic's
routes. The same text rides there.
"""

import re
import string
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from controlplane.core.model.causes import CHANGE_FIELDS, Change
from controlplane.core.model.text import sanitize
from controlplane.gate.tickets import Ticket

REQUEST_ID_HEADER = "x-request-id"
RANK_HEADER = "x-data-parallel-rank"  # by which that front end sends a request to one of its ranks
ID_HEADERS = (REQUEST_ID_HEADER, "x-smg-routing-key")
_MARK = "penstock"
_CARRIED = re.compile(
    rf".*{_MARK}:([0-9a-f]{{32}}):([^:]+):([0-9a-f-]{{0,55}}):(?:([\w.,%~-]*):)?", re.DOTALL | re.ASCII
)  # the last one is the gate's
_VISIBLE = string.punctuation + " "


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The identity of a turn that a gate has let in. ``trace`` is its client's span, as ``traceparent`` has it.

    ``change``: what its client changed of its prompt.
    """

    turn_id: str
    program_id: str
    trace: str = ""
    change: Change = field(default_factory=Change)


def carried_of(turn: Ticket) -> Carried:
    """The identity of the turn with that ticket."""
    return Carried(turn_id=turn.turn_id, program_id=turn.program_id, trace=turn.trace, change=turn.change)


def change_text(change: Change) -> str:
    """The change in a line of ASCII, for ``change_in``; empty where nothing is known."""
    if change == Change():
        return ""
    values = [getattr(change, name) for name in CHANGE_FIELDS]
    return ",".join(quote(f"{each:.4f}" if isinstance(each, float) else each, safe="") for each in values)


def change_in(text: str) -> Change:
    """What ``change_text`` wrote; nothing where it did not write that."""
    values = [unquote(each) for each in text.split(",")]
    if len(values) != len(CHANGE_FIELDS):
        return Change()
    named: dict[str, Any] = dict(zip(CHANGE_FIELDS, values, strict=True))
    try:
        ratio = min(1.0, max(0.0, float(named.pop("kept_ratio"))))
    except ValueError:
        return Change()
    return Change(kept_ratio=ratio, **{name: sanitize(value) for name, value in named.items()})


def request_id_with(carried: Carried, own: str = "") -> str:
    """The value of each of ``ID_HEADERS`` that carries it: ``own``, what the client calls its request, and that.

    ASCII alone, whatever they hold: ``OWN:penstock:TURN:PROGRAM:TRACE:``, and ``CHANGE:`` where it is known.
    """
    program, mine = quote(carried.program_id, safe=""), f"{quote(own, safe=_VISIBLE)}:" * bool(own)
    change = f"{text}:" if (text := change_text(carried.change)) else ""
    return f"{mine}{_MARK}:{carried.turn_id}:{program}:{carried.trace}:{change}"


def carried_by(request_id: str) -> Carried | None:
    """What such an id carries, whatever stands around it; None where no gate has written there.

    It may be forged by whoever reaches the engine itself: they name a program as they might in any other way, and
    cannot meet another's turn by guessing (``requests.turn_id_from``). So no parent is carried.
    """
    found = _CARRIED.match(request_id)
    if found is None:
        return None
    turn_id, program, trace, change = found.groups()
    name = sanitize(unquote(program))
    return Carried(turn_id=turn_id, program_id=name, trace=trace, change=change_in(change or ""))
