"""Mooncake's traces: requests in the order of their times, with lengths and the hashes of their prompts' blocks.

**Sources**: kvcache-ai/Mooncake, ``FAST25-release/README.md`` at 40ea55f (``timestamp`` in ms, blocks of 512
tokens). With ``session_id``, and ``delay`` or ``delay_ms`` in ms, as aiperf 0.13 and Dynamo's ``MooncakeRow`` have
them; its agentic rows add ``tool_wait_ms`` (ai-dynamo/dynamo, its docs' ``agents/agent-tracing.md`` at 01a60e6).
Bailian's: alibaba-edu/qwen-bailian-usagetraces-anon, ``README.md`` at 03a51e3 (``timestamp`` in s, a
``parent_chat_id`` of -1 for the first request of a chat).

Mooncake's own names no sessions. A prompt goes on from the earlier one whose last full block stands furthest back
in it, and each prompt is gone on from once; where two end in the same block it is a head that sessions share, and
tells nothing. What nobody has gone on from for an hour has ended, so that a trace is read in the memory of an hour.
"""

from collections.abc import Iterator

from controlplane.lab.workload.imports.calls import Session
from controlplane.lab.workload.imports.fields import Fields
from controlplane.lab.workload.imports.reading import Reading
from controlplane.lab.workload.imports.records import Record
from controlplane.lab.workload.trace_lines import BadProgram

_BLOCK_TOKENS = 512
_IDLE_S = 3600.0
_WAITS = ("delay", "delay_ms", "tool_wait_ms")
_Ends = dict[str | int, tuple[Session | None, float | None]]
"""By what the next request may go on from: the session, if none has yet, and when; the longest idle first."""
_NONE = None, None


def read(records: Iterator[Record], reading: Reading) -> Iterator[Session]:
    """Sessions by their names where they have any, else by blocks."""
    ends: _Ends = {}

    def take(request: Fields) -> Iterator[Session]:
        if not request.count("output_length") or not request.count("input_length"):
            raise BadProgram("expected an input_length and an output_length of 1 or more")
        at = request.number("timestamp")
        at_s = at if at is None or request.any("chat_id") is not None else at / 1e3
        before, after = _keys(request, ends, reading.place)
        session = ends.pop(before, _NONE)[0] or reading.session(request.text("session_id"))
        if session.calls:
            waits = [ms for name in _WAITS if (ms := request.number(name)) is not None]
            session.calls[-1].tool_ms = sum(waits) if waits else None
            ends[before] = None, at_s
        session.ask(at_s)
        call = session.reply(None)
        call.input_tokens, call.output_tokens = request.count("input_length"), request.count("output_length")
        is_head = after in ends and after != before
        if is_head:
            yield from filter(None, (ends[after][0], session))
        ends.pop(after, None)
        ends[after] = None if is_head else session, at_s
        while at_s is not None and not request.any("session_id"):
            oldest, (idle, last_s) = next(iter(ends.items()))
            if last_s is not None and at_s - last_s <= _IDLE_S:
                break
            del ends[oldest]
            yield from filter(None, (idle,))

    yield from reading.each(records, take)
    yield from (session for session, _ in ends.values() if session is not None)


def _keys(request: Fields, ends: _Ends, place: str) -> tuple[str | int, str | int]:
    """What it may go on from, and what is to go on from it."""
    if name := request.text("session_id"):
        return name, name
    if request.any("chat_id") is not None:
        parent = request.number("parent_chat_id")
        return -1 if parent is None else int(parent), request.count("chat_id")
    blocks = [block for block in request.array("hash_ids") if isinstance(block, int | str)]
    full = min(len(blocks), request.count("input_length") // _BLOCK_TOKENS)
    alone = f"a prompt that nothing goes on from: {place}"
    before = next((block for block in reversed(blocks) if ends.get(block, _NONE)[0]), alone)
    session = ends.get(before, _NONE)[0]
    if session is not None and session.calls[-1].input_tokens > request.count("input_length"):
        before = alone
    return before, blocks[full - 1] if full else alone
