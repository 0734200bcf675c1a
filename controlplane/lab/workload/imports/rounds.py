"""Requests that were measured one by one, each with the name of its session.

**Sources**: ``profile_export.jsonl`` of aiperf 0.13. TraceLab's rounds: uw-syfi/TraceLab,
``example_sessions/sanitized/round_trace.jsonl`` and ``artifacts/utils/DB_SCHEMA.md`` at b889eb7. Dynamo's traces:
ai-dynamo/dynamo, ``lib/llm/src/request_trace/types.rs`` at 0366e63 (``dynamo.request.trace.v1``: a session is one
chain of calls), and ``lib/llm/src/agents/trace/types.rs`` at 7d5c5a6 with its docs' ``agents/agent-tracing.md``
at 01a60e6 (``dynamo.agent.trace.v1``: a session is a whole run; its chains are trajectories, at first programs).

A session is whole when the file ends, so that all are in memory until then, as numbers.
"""

from collections.abc import Callable, Iterator

from controlplane.lab.workload.imports.calls import Call, Session
from controlplane.lab.workload.imports.fields import Fields
from controlplane.lab.workload.imports.reading import Reading
from controlplane.lab.workload.imports.records import Record
from controlplane.lab.workload.trace_lines import BadProgram

_Add = Callable[[Fields, Callable[..., Session]], None]
_CHAINS = ("trajectory", "program", "session")
_TOOL_ENDS = ("tool_end", "tool_error")


def _aiperf(one: Fields, session: Callable[..., Session]) -> None:
    call = Call(sent_s=one.time("metadata.request_start_ns"), ended_s=one.time("metadata.request_end_ns"))
    call.input_tokens = one.count("metrics.input_sequence_length.value")
    call.output_tokens = one.count("metrics.output_sequence_length.value")
    session(one.text("metadata.x_correlation_id") or one.text("metadata.conversation_id")).calls.append(call)


def _tracelab(row: Fields, session: Callable[..., Session]) -> None:
    """Sub-agents are sessions of their own there, whose parents nobody names."""
    stamps = [(event.text("event_type"), event.time("timestamp") or 0.0) for event in row.objects("timing_events")]
    asked = [at for kind, at in stamps if kind in ("user_message", "tool_result")]
    told = [at for kind, at in stamps if kind in ("text", "reasoning", "tool_call")]
    found = session(row.text("session_id"))
    call = Call(
        input_tokens=row.count("input_tokens_total"),
        output_tokens=row.count("output_tokens"),  # in which reasoning_output_tokens are
        cached_tokens=row.count("prefix_tokens"),
        sent_s=max(asked, default=min(told, default=None)),
        ended_s=max(told, default=None),
        tools=tuple(tool.text("tool_name") for tool in row.objects("tools")),
        by_person=bool(found.calls) and any(kind == "user_message" for kind, _ in stamps),
    )
    found.calls.append(call)


def _dynamo(line: Fields, session: Callable[..., Session]) -> None:
    """A session for each chain of calls, with the tools that the harness told of."""
    event = Fields(line.any("event") or line.value)
    told = event.any("event_type")
    chain = next((each for each in _CHAINS if event.any(f"agent_context.{each}_id")), "session")
    name = event.text(f"agent_context.{chain}_id")
    if told in ("request_end", *_TOOL_ENDS) and not name:
        raise BadProgram("agent_context: without a session or a trajectory it is a single request")
    if told == "request_end":
        sent_s, took_ms = event.time("request.request_received_ms"), event.number("request.total_time_ms")
        call = Call(sent_s=sent_s, ended_s=event.time("event_time_unix_ms"))
        if sent_s is not None and took_ms is not None:
            call.ended_s = sent_s + took_ms / 1e3
        call.count(event, "request")
        call.input_tokens = call.input_tokens or event.count("request.replay.input_length")
        if event.any("request.cached_tokens") is not None:
            call.cached_tokens = event.count("request.cached_tokens")
        session(name, event.text(f"agent_context.parent_{chain}_id")).calls.append(call)
    elif told in _TOOL_ENDS and (calls := session(name).calls):
        calls[-1].tools += (event.text("tool.tool_class"),)


def _reader(add: _Add) -> Callable[[Iterator[Record], Reading], Iterator[Session]]:
    def read(records: Iterator[Record], reading: Reading) -> Iterator[Session]:
        found: dict[str, Session] = {}

        def session(name: str, parent: str = "") -> Session:
            one = reading.session(name, parent)
            return found.setdefault(one.program_id, one)

        yield from reading.each(records, lambda fields: add(fields, session))
        for each in found.values():
            each.calls.sort(key=lambda call: call.sent_s or 0.0)
            yield each

    return read


read_aiperf, read_tracelab, read_dynamo = _reader(_aiperf), _reader(_tracelab), _reader(_dynamo)
