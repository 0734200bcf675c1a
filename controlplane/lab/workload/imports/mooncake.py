"""Mooncake's traces: requests in the order of their times, with lengths and the hashes of their prompts' blocks.

**Sources**: Mooncake's own (``timestamp`` in ms, blocks of 512 tokens); with ``session_id`` and ``delay`` in ms, as
Dynamo's replay and aiperf 0.13 have them; Bailian's (``parent_chat_id``, ``timestamp`` in s).

Mooncake's own names no sessions. A prompt goes on from the earlier one whose last full block stands furthest back
in it, and each prompt is gone on from once. What nobody has gone on from for an hour has ended; so a trace of any
length is read in the memory of an hour.
"""

from collections.abc import Iterator
from typing import Any

from controlplane.lab.workload.imports.calls import Session
from controlplane.lab.workload.imports.fields import Fields
from controlplane.lab.workload.imports.reading import Reading
from controlplane.lab.workload.imports.records import Record
from controlplane.lab.workload.trace_lines import BadProgram

_BLOCK_TOKENS = 512
_IDLE_S = 3600.0


def knows(value: dict[str, Any]) -> bool:
    return "input_length" in value and not {"hash_ids", "output_length", "session_id"}.isdisjoint(value)


def read(records: Iterator[Record], reading: Reading) -> Iterator[Session]:
    """Sessions by their names where they have any, else by blocks."""
    found: dict[Any, Session] = {}  # by what its next request is known by; the longest idle first

    def take(request: Fields) -> Iterator[Session]:
        if not request.count("output_length") or not request.count("input_length"):
            raise BadProgram("expected an input_length and an output_length of 1 or more")
        at = request.number("timestamp")
        at_s = at if at is None or request.any("chat_id") is not None else at / 1e3
        before, after = _keys(request, found, reading.place)
        session = found.pop(before, None) or reading.session(request.text("session_id"))
        if session.calls:
            session.calls[-1].tool_ms = request.number("delay")
        session.ask(at_s)
        call = session.reply(None)
        call.input_tokens, call.output_tokens = request.count("input_length"), request.count("output_length")
        if (replaced := found.pop(after, None)) is not None:
            yield replaced
        found[after] = session
        while not request.any("session_id") and at_s is not None:
            oldest = next(iter(found))
            if at_s - (found[oldest].calls[-1].sent_s or 0.0) <= _IDLE_S:
                break
            yield found.pop(oldest)

    yield from reading.each(records, take)
    yield from found.values()


def _keys(request: Fields, found: dict[Any, Session], place: str) -> tuple[Any, Any]:
    """What it may go on from, and what is to go on from it."""
    if name := request.text("session_id"):
        return name, name
    if request.any("chat_id") is not None:
        return request.any("parent_chat_id"), request.any("chat_id")
    blocks: list[Any] = request.any("hash_ids") or []
    full = min(len(blocks), request.count("input_length") // _BLOCK_TOKENS)
    before = next((block for block in reversed(blocks) if block in found), None)
    if before is not None and found[before].calls[-1].input_tokens > request.count("input_length"):
        before = None
    return before, blocks[full - 1] if full else f"a short prompt: {place}"
