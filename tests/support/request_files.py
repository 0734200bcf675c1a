"""Files of requests that were measured, or only counted, and what a count by hand makes of them.

TraceLab's rounds and Mooncake's sample are their publishers' own, Bailian's the one in its description with its
root; the other numbers are made up. A program is its id, its parent and the turn behind which it begins, and a turn
its tokens of prompt and reply, its tool and the milliseconds until the next.
"""

import json
from typing import Any

Turns = list[tuple[int, int, str, float | None]]
Programs = list[tuple[str, str, int, Turns]]


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def _asked(t: float, prompt: int, reply: int, blocks: list[int], api_time: float, **more: Any) -> dict[str, Any]:
    asked = {"t": t, "type": "s", "model": "m", "in": prompt, "out": reply, "hash_ids": blocks}
    return {**asked, "api_time": api_time, **more}


def _weka(*requests: dict[str, Any]) -> dict[str, Any]:
    trace = {"id": "trace_1", "models": ["m"], "block_size": 64, "hash_id_scope": "local"}
    return {**trace, "requests": list(requests)}


KV_CACHE_TESTER = lines(
    _weka(
        _asked(0.0, 256, 9, [1, 2, 3, 4], 2, input_types=["text"], stop="tool_use"),
        {
            "t": 3,
            "type": "subagent",
            "agent_id": "agent_001",
            "requests": [_asked(0.5, 70, 3, [1], 1), _asked(3.5, 80, 3, [1], 1)],  # from its own begin
        },
        _asked(9, 300, 8, [1, 2, 3, 4], 1, input_types=["tool_result"], stop="end_turn", think_time=5.0),
        _asked(70, 320, 7, [1, 9, 8, 7, 6], 1, input_types=["text"], stop=""),
    )
)
AGENTX = lines(
    _weka(
        _asked(0.0, 256, 9, [0, 1, 2, 3], 2.0, ttft=0.5),
        {
            "t": 3.0,
            "type": "subagent",
            "agent_id": "subagent_001_0a1b2c3d",
            "subagent_type": "Subagent",
            "duration_ms": 4000,
            "tool_use_count": None,
            "status": "completed",
            "requests": [_asked(3.0, 70, 3, [0], 4.0)],  # from the session's
        },
        _asked(9.0, 300, 8, [0, 1, 2, 3], 1.0, think_time=2.0),
    )
)
MOONCAKE = lines(
    {"timestamp": 0, "input_length": 1100, "output_length": 10, "hash_ids": [1, 2, 3]},
    {"timestamp": 500, "input_length": 100, "output_length": 5, "hash_ids": [4]},
    {"timestamp": 2000, "input_length": 1700, "output_length": 20, "hash_ids": [1, 2, 5, 6]},
    {"timestamp": 3000, "input_length": 1100, "output_length": 10, "hash_ids": [1, 7, 8]},
    {"timestamp": 4000, "input_length": 2100, "output_length": 30, "hash_ids": [1, 2, 5, 9, 10]},
)
MOONCAKE_SAMPLE = lines(
    {
        "timestamp": 27482,
        "input_length": 6955,
        "output_length": 52,
        "hash_ids": [*range(46, 58), 2353, 2354],
    },
    {"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [*range(46, 58), 2366]},
)


def _chat(chat: int, parent: int, at_s: float, prompt: int, reply: int, turn: int) -> dict[str, Any]:
    row = {"chat_id": chat, "parent_chat_id": parent, "timestamp": at_s, "input_length": prompt}
    return {**row, "output_length": reply, "type": "text", "turn": turn, "hash_ids": [1089, 1090, 1091]}


BAILIAN = lines(
    _chat(0, -1, 0.0, 502, 1494, 1), _chat(55, -1, 1.5, 521, 132, 1), _chat(159, 55, 61.114, 700, 80, 2)
)
DYNAMO_REPLAY = lines(
    {"session_id": "a", "timestamp": 0, "input_length": 100, "output_length": 10, "hash_ids": [1]},
    {"session_id": "b", "timestamp": 5, "input_length": 50, "output_length": 5, "hash_ids": [2]},
    {"session_id": "a", "delay": 250, "input_length": 130, "output_length": 10, "hash_ids": [1]},
    {"session_id": "b", "delay_ms": 20, "tool_wait_ms": 420.5, "input_length": 90, "output_length": 5},
)
AIPERF = lines(
    {
        "session_id": "x",
        "turns": [
            {"text": "abc " * 10, "output_length": 20},
            {"text": "abc " * 5, "delay": 900, "output_length": 7},
        ],
    },
    {"session_id": "y", "turns": [{"text": "abc " * 10}]},
)


def _record(turn: int, begin_s: int, end_s: int, prompt: int, reply: int) -> dict[str, Any]:
    values = {"input_sequence_length": {"value": prompt}, "output_sequence_length": {"value": reply}}
    at = {"request_start_ns": (1_700_000_000 + begin_s) * 10**9, "request_end_ns": (1_700_000_000 + end_s) * 10**9}
    return {"metadata": {"x_correlation_id": "k", "turn_index": turn, **at}, "metrics": values}


AIPERF_EXPORT = lines(_record(0, 0, 2, 100, 10), _record(1, 5, 6, 140, 12))


def _round(prompt: int, cached: int, reply: int, reasoning: int, *stamps: tuple[str, str]) -> dict[str, Any]:
    events = [{"event_type": kind, "timestamp": f"2026-03-21T10:06:{at}Z"} for kind, at in stamps]
    tools = [{"tool_name": "exec_command"} for kind, _ in stamps if kind == "tool_call"]
    row = {"provider": "codex", "session_id": "codex:1", "round_index": 4, "input_tokens_total": prompt}
    row |= {"prefix_tokens": cached, "newly_append_tokens": prompt - cached, "output_tokens": reply}
    return {**row, "reasoning_output_tokens": reasoning, "timing_events": events, "tools": tools}


TRACELAB = lines(
    _round(
        *(10472, 10240, 294, 96),
        *(("tool_result", "18.571"), ("tool_result", "18.662"), ("reasoning", "20.848"), ("text", "23.365")),
        ("usage_report", "23.374"),
    ),
    _round(
        *(10436, 9216, 262, 69),
        *(("user_message", "29.707"), ("reasoning", "31.470"), ("text", "33.500"), ("tool_call", "33.501")),
        *(("tool_call", "33.548"), ("usage_report", "33.556")),
    ),
    _round(11636, 10624, 198, 41, ("tool_result", "33.558"), ("tool_result", "33.610"), ("text", "36.851")),
)


def _served(name: str, at_ms: int, took_ms: int, prompt: int, reply: int, parent: str = "") -> dict[str, Any]:
    request = {"input_tokens": prompt, "output_tokens": reply, "cached_tokens": 0}
    request |= {"request_received_ms": 1_700_000_000_000 + at_ms, "total_time_ms": took_ms}
    context = {"session_id": name} | ({"parent_session_id": parent} if parent else {})
    return _dynamo("request_end", context, request=request)


def _dynamo(kind: str, context: dict[str, str], **more: Any) -> dict[str, Any]:
    return {
        "timestamp": 1,
        "event": {"schema": "dynamo.request.trace.v1", "event_type": kind, "agent_context": context, **more},
    }


DYNAMO = lines(
    _served("root", 0, 1000, 100, 10),
    _dynamo("tool_end", {"session_id": "root"}, tool={"tool_class": "research"}),
    _served("child", 1500, 2000, 60, 6, "root"),
    _served("root", 4000, 500, 150, 12),
)


def _agent_trace(kind: str, at_ms: int, ids: dict[str, str], **more: Any) -> dict[str, Any]:
    at = {"event_type": kind, "event_time_unix_ms": 1_777_312_800_000 + at_ms}
    return {"schema": "dynamo.agent.trace.v1", **at, "agent_context": ids, **more}


def _measured(at_ms: int, prompt: int, reply: int) -> dict[str, Any]:
    replay = {"trace_block_size": 64, "input_length": prompt, "input_sequence_hashes": [1]}
    return {"output_tokens": reply, "request_received_ms": 1_777_312_800_000 + at_ms, "replay": replay}


_PLANNER = {"session_type_id": "deep_research", "session_id": "run-42", "trajectory_id": "run-42:planner"}
_RESEARCHER = {**_PLANNER, "trajectory_id": "run-42:researcher", "parent_trajectory_id": "run-42:planner"}
_FIRST = {"workflow_type_id": "deep_research", "workflow_id": "run-1", "program_id": "run-1:planner"}
_FAILED = {"tool_call_id": "call-abc", "tool_class": "web_search", "status": "error", "duration_ms": 420.5}
DYNAMO_AGENTS = lines(
    _agent_trace("request_end", 1000, _PLANNER, request=_measured(0, 128, 16)),
    _agent_trace("request_end", 2500, _RESEARCHER, request=_measured(1500, 64, 8)),
    _agent_trace("tool_start", 2500, _RESEARCHER, tool={"tool_call_id": "call-abc", "tool_class": "web_search"}),
    _agent_trace("tool_error", 2921, _RESEARCHER, tool=_FAILED),
    _agent_trace("request_end", 3500, _RESEARCHER, request=_measured(3000, 96, 8)),
    _agent_trace("request_end", 5000, _PLANNER, request=_measured(4000, 160, 16)),
    _agent_trace("request_end", 1000, _FIRST, request={"input_tokens": 20, "output_tokens": 2}),
)

MEASURED: dict[str, tuple[str, Programs]] = {
    "AgentX": (
        AGENTX,
        [
            ("trace_1", "", 0, [(256, 9, "", 3000.0), (300, 8, "", None)]),
            ("trace_1/subagent_001_0a1b2c3d", "trace_1", 0, [(70, 3, "", None)]),
        ],
    ),
    "kv-cache-tester": (
        KV_CACHE_TESTER,
        [
            ("trace_1", "", 0, [(256, 9, "tool_use", 3000.0), (300, 8, "human", 60000.0), (320, 7, "", None)]),
            ("trace_1/agent_001", "trace_1", 0, [(70, 3, "", 2000.0), (80, 3, "", None)]),
        ],
    ),
    "Mooncake": (
        MOONCAKE,
        [
            ("file-2", "", 0, [(100, 5, "", None)]),
            ("file-4", "", 0, [(1100, 10, "", None)]),
            ("file", "", 0, [(1100, 10, "", 2000.0), (1700, 20, "", 2000.0), (2100, 30, "", None)]),
        ],
    ),
    "Mooncake's sample": (
        MOONCAKE_SAMPLE,
        [("file", "", 0, [(6955, 52, "", None)]), ("file-2", "", 0, [(6472, 26, "", None)])],
    ),
    "Bailian": (
        BAILIAN,
        [
            ("file", "", 0, [(502, 1494, "", None)]),
            ("file-2", "", 0, [(521, 132, "", 59614.0), (700, 80, "", None)]),
        ],
    ),
    "Dynamo's replay": (
        DYNAMO_REPLAY,
        [
            ("a", "", 0, [(100, 10, "", 250.0), (130, 10, "", None)]),
            ("b", "", 0, [(50, 5, "", 440.5), (90, 5, "", None)]),
        ],
    ),
    "aiperf": (AIPERF, [("x", "", 0, [(10, 20, "human", 900.0), (35, 7, "", None)])]),
    "aiperf's export": (AIPERF_EXPORT, [("k", "", 0, [(100, 10, "", 3000.0), (140, 12, "", None)])]),
    "TraceLab": (
        TRACELAB,
        [
            (
                "codex:1",
                "",
                0,
                [(10472, 294, "human", 6342.0), (10436, 262, "exec_command", 62.0), (11636, 198, "", None)],
            )
        ],
    ),
    "Dynamo": (
        DYNAMO,
        [
            ("root", "", 0, [(100, 10, "research", 1000.0), (150, 12, "", None)]),
            ("child", "root", 0, [(60, 6, "", None)]),
        ],
    ),
    "Dynamo's agent trace": (
        DYNAMO_AGENTS,
        [
            ("run-42:planner", "", 0, [(128, 16, "", 1000.0), (160, 16, "", None)]),
            ("run-42:researcher", "run-42:planner", 0, [(64, 8, "web_search", 500.0), (96, 8, "", None)]),
            ("run-1:planner", "", 0, [(20, 2, "", None)]),
        ],
    ),
}
