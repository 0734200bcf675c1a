"""kv-cache-tester's traces, which InferenceX's AgentX runs: a document, or a line, for each session.

**Source**: the schema of aiperf 0.13 (``weka_trace_models.py``), which reads both. ``t`` is in s since the session
began; one of a sub-agent that is less than its parent's is counted from there. Blocks are named by hash: a prompt
that has fewer than half of the last one's in front of it is a new history. Tools have no names.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile

from controlplane.lab.workload.imports.calls import Call, Session
from controlplane.lab.workload.imports.fields import Fields
from controlplane.lab.workload.imports.lineage import linked
from controlplane.lab.workload.imports.reading import Reading
from controlplane.lab.workload.imports.records import Record

TOOL = "tool_use"


def read(records: Iterator[Record], reading: Reading) -> Iterator[Session]:
    """A session for each trace, and behind it those of its sub-agents."""

    def take(trace: Fields) -> Iterator[Session]:
        requests = list(trace.objects("requests"))
        agents = [request for request in requests if request.any("type") == "subagent"]
        root = reading.session(trace.text("id"))
        root.calls = _calls([request for request in requests if request.any("type") != "subagent"], 0.0)
        sessions = [root]
        for agent in agents:
            child = reading.session(f"{root.program_id}/{agent.text('agent_id')}", root.program_id)
            child.calls = _calls(list(agent.objects("requests")), agent.number("t") or 0.0)
            sessions.append(child)
        return linked([session for session in sessions if session.calls], reading.tally)

    return reading.each(records, take)


def _calls(requests: Sequence[Fields], begin_s: float) -> list[Call]:
    calls: list[Call] = []
    blocks: list[int] = []
    for request in sorted(requests, key=lambda each: each.number("t") or 0.0):
        at, took = request.number("t") or 0.0, request.number("api_time")
        at += begin_s if at < begin_s else 0.0
        call = Call(input_tokens=request.count("in"), output_tokens=request.count("out"), sent_s=at)
        call.ended_s = None if took is None else at + took
        call.tools = (TOOL,) if request.any("stop") == TOOL else ()
        call.by_person = (
            bool(calls) and not calls[-1].tools and "tool_result" not in str(request.any("input_types"))
        )
        before, blocks = blocks, request.array("hash_ids")
        think_s = request.number("think_time")
        if calls and calls[-1].ended_s is None and think_s is not None:
            calls[-1].tool_ms = 1e3 * think_s
        pairs = zip(before, blocks, strict=False)
        call.rewrites = 2 * len(list(takewhile(lambda pair: pair[0] == pair[1], pairs))) < len(before)
        calls.append(call)
    return calls
