"""kv-cache-tester's traces, which InferenceX's AgentX runs: a document, or a line, for each session.

**Sources**: callanjfox/kv-cache-tester, its docs' ``trace_replay_tester.md`` at 19c263b and
``traces/trace_0079.json`` at 3269ece; the schema of both in ai-dynamo/aiperf,
``src/aiperf/dataset/loader/weka_trace_models.py`` at 90f31d1; and what SemiAnalysisAI/InferenceX,
``infx/datasets/proxy_to_weka.py`` at 3b79cc9 writes, which has no ``stop`` and no ``input_types``, so that it does
not tell tools from people.

``t`` is in s since the session began. That of a sub-agent counts from its own begin in some sets (ai-dynamo/aiperf,
pull request 1396): where its first is before the sub-agent's. Blocks are named by hash: a prompt that has fewer
than half of the last one's in front of it is a new history. Tools have no names.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile

from controlplane.lab.workload.imports.calls import Call, Session
from controlplane.lab.workload.imports.fields import Fields
from controlplane.lab.workload.imports.lineage import linked
from controlplane.lab.workload.imports.reading import Reading
from controlplane.lab.workload.imports.records import Record

TOOL = "tool_use"
_RESULT = "tool_result"


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
    before: list[int] = []
    ordered = sorted(requests, key=_at)
    origin_s = begin_s if ordered and _at(ordered[0]) < begin_s else 0.0
    for request in ordered:
        at, took = origin_s + _at(request), request.number("api_time")
        call = Call(input_tokens=request.count("in"), output_tokens=request.count("out"), sent_s=at)
        call.ended_s = None if took is None else at + took
        call.tools = (TOOL,) if request.any("stop") == TOOL else ()
        if calls:
            _gap(calls[-1], call, request)
        if blocks := request.array("hash_ids"):
            pairs = zip(before, blocks, strict=False)
            call.rewrites = 2 * len(list(takewhile(lambda pair: pair[0] == pair[1], pairs))) < len(before)
            before = blocks
        calls.append(call)
    return calls


def _at(request: Fields) -> float:
    return request.number("t") or 0.0


def _gap(last: Call, call: Call, request: Fields) -> None:
    """What the request tells of the time before it."""
    given, think_s = request.array("input_types"), request.number("think_time")
    if _RESULT in given:
        last.tools = (TOOL,)
    call.by_person = bool(given) and not last.tools
    if last.ended_s is None and think_s is not None:
        last.tool_ms = 1e3 * think_s
