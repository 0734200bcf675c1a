"""A small file of each format, made by hand, and what a count by hand makes of it.

``text(n)`` is guessed at ``n`` tokens: four bytes each. A program is its id, its parent and the turn behind which
it begins, and a turn its tokens of prompt and reply, its tool and the milliseconds until the next.
"""

import json
from typing import Any

Turns = list[tuple[int, int, str, float | None]]
Programs = list[tuple[str, str, int, Turns]]


def text(tokens: int) -> str:
    return "abc " * tokens


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def _claude(kind: str, at: str, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content, **{k: more.pop(k) for k in ("id", "usage", "model") if k in more}}
    return {"type": kind, "sessionId": "s", "timestamp": f"2026-01-01T00:00:{at}Z", "message": message, **more}


def _used(prompt: int, reply: int) -> dict[str, int]:
    return {
        "input_tokens": prompt - 7,
        "cache_read_input_tokens": 5,
        "cache_creation_input_tokens": 2,
        "output_tokens": reply,
    }


_CALL = {"type": "tool_use", "name": "Bash", "input": {"command": "git status"}}
CLAUDE_CODE = lines(
    {"type": "summary", "summary": "a title", "leafUuid": "x"},
    _claude("user", "00", text(9)),
    _claude("assistant", "02", [{"type": "text", "text": "I look"}], id="m1", usage=_used(100, 1)),
    _claude("assistant", "03", [_CALL], id="m1", usage=_used(100, 20)),
    _claude("user", "04.5", [{"type": "tool_result", "content": "clean"}]),
    _claude("assistant", "05", [{"type": "tool_use", "name": "Task", "input": {}}], id="m2", usage=_used(130, 10)),
    _claude("user", "06", text(2), isSidechain=True, uuid="a"),
    _claude("assistant", "08", "ok", isSidechain=True, uuid="b", parentUuid="a", id="c1", usage=_used(50, 5)),
    _claude("user", "09", [{"type": "tool_result", "content": "ok"}]),
    _claude("assistant", "10", "Done.", id="m3", usage=_used(150, 8)),
    _claude("assistant", "11", "API Error", id="m4", model="<synthetic>", usage=_used(7, 0)),
    {"type": "system", "subtype": "compact_boundary", "sessionId": "s", "timestamp": "2026-01-01T00:00:12Z"},
    _claude("user", "40", text(3)),
    _claude("assistant", "41", text(6), id="m5"),
)


def _codex(at: str, kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"timestamp": f"2026-01-01T00:00:{at}Z", "type": kind, "payload": payload}


def _counted(prompt: int, reply: int) -> dict[str, Any]:
    used = {"input_tokens": prompt, "cached_input_tokens": 3, "output_tokens": reply}
    return {"type": "token_count", "info": {"last_token_usage": used}}


CODEX = lines(
    _codex("00", "session_meta", {"id": "c", "source": "cli"}),
    _codex("00", "response_item", {"type": "message", "role": "user", "content": []}),
    _codex("01", "event_msg", {"type": "user_message", "message": "hello"}),
    _codex("02", "response_item", {"type": "reasoning", "summary": []}),
    _codex("03", "response_item", {"type": "local_shell_call", "action": {"command": ["cargo", "test"]}}),
    _codex("03", "event_msg", _counted(100, 20)),
    _codex("08", "response_item", {"type": "function_call_output", "output": "ok"}),
    _codex("08", "event_msg", _counted(100, 20)),
    _codex("09", "response_item", {"type": "message", "role": "assistant", "content": []}),
    _codex("09", "event_msg", _counted(150, 30)),
    _codex("19", "response_item", {"type": "message", "role": "user", "content": []}),
    _codex("19", "event_msg", {"type": "user_message", "message": "more"}),
    _codex("20", "response_item", {"type": "message", "role": "assistant", "content": []}),
    _codex("20", "event_msg", _counted(200, 5)),
)


def _event(at: int, kind: str, source: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "source": source, "timestamp": f"2026-01-01T00:00:{at:02}", **more}


OPENHANDS = json.dumps(
    {
        "instance_id": "django-1",
        "history": [
            _event(0, "SystemPromptEvent", "agent", system_prompt={"text": "s"}),
            _event(1, "MessageEvent", "user", llm_message={"content": "fix"}),
            _event(
                2, "ActionEvent", "agent", llm_response_id="r1", tool_name="terminal", action={"command": "ls -l"}
            ),
            _event(3, "ObservationEvent", "environment", observation={"content": "a"}),
            _event(3, "ActionEvent", "agent", llm_response_id="r1", tool_name="file_editor", action={}),
            _event(6, "ObservationEvent", "environment", observation={"content": "b"}),
            _event(8, "MessageEvent", "agent", llm_response_id="r2", llm_message={"content": "done"}),
        ],
        "metrics": {
            "token_usages": [
                {"response_id": "r1", "prompt_tokens": 100, "completion_tokens": 10, "cache_read_tokens": 0},
                {"response_id": "r2", "prompt_tokens": 160, "completion_tokens": 5, "cache_read_tokens": 100},
            ]
        },
    },
    indent=1,
)


def _old(
    at: int, kind: str, source: str, reply: str = "", sums: tuple[int, int] = (0, 0), **more: Any
) -> dict[str, Any]:
    told = {"source": source, "timestamp": f"2026-01-01T00:00:{at:02}.000001", **more}
    if reply:
        told["tool_call_metadata"] = {"function_name": "execute_bash", "model_response": {"id": reply}}
        usage = {"prompt_tokens": sums[0], "completion_tokens": sums[1]}
        told["llm_metrics"] = {"accumulated_token_usage": usage}
    return {kind: "run", **told} if kind != "message" else {"action": "message", **told}


OPENHANDS_OLD = json.dumps(
    [
        _old(0, "message", "user", content="fix"),
        _old(2, "action", "agent", "a", (100, 10), args={"command": "pytest -q"}),
        _old(9, "observation", "agent", "a", (100, 10), content="1 failed"),
        _old(11, "action", "agent", "b", (230, 22), args={"command": "git diff"}),
        _old(12, "observation", "agent", "b", (230, 22), content="-"),
    ]
)


def _mini(role: str, at: float, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": "", "extra": {"timestamp": at, **more}}


def _answer(prompt: int, reply: int) -> dict[str, Any]:
    details = {"cached_tokens": 4}
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": reply, "prompt_tokens_details": details}}


MINI = json.dumps(
    {
        "info": {"model_stats": {"api_calls": 2}, "mini_version": "2.4.6"},
        "instance_id": "sympy-2",
        "trajectory_format": "mini-swe-agent-1.1",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "t"},
            _mini("assistant", 1000.0, response=_answer(100, 10), actions=[{"command": "grep -rn x ."}]),
            _mini("user", 1002.5, raw_output="..."),
            _mini("assistant", 1004.0, response=_answer(200, 20), actions=[]),
            {"role": "exit", "content": "", "extra": {"exit_status": "Submitted"}},
        ],
    },
    indent=2,
)
SWE_AGENT = json.dumps(
    {
        "environment": "swe_main",
        "info": {"model_stats": {"tokens_sent": 999, "api_calls": 2}},
        "history": [{"role": "system", "content": text(50)}, {"role": "user", "content": text(50)}],
        "trajectory": [
            {"action": "find . -name x", "observation": text(30), "response": text(20), "execution_time": 0.5},
            {"action": "submit", "observation": "", "response": text(5), "execution_time": 0.1},
        ],
    }
)


def _interaction(at: int, prompt: int, reply: int, *tools: dict[str, Any]) -> dict[str, Any]:
    usage = {"input_tokens": prompt, "output_tokens": reply, "cache_read_input_tokens": 4}
    response = {"content": "", "usage": usage, "tool_calls": list(tools) or None}
    return {"timestamp": f"2026-01-01T00:00:{at:02}", "provider": "anthropic", "response": response}


TRAE = json.dumps(
    {
        "task": "t",
        "llm_interactions": [
            _interaction(10, 96, 10, {"name": "bash", "arguments": {"command": "ls"}}),
            _interaction(20, 196, 20),
        ],
        "agent_steps": [{"timestamp": "2026-01-01T00:00:10.204"}, {"timestamp": "2026-01-01T00:00:20"}],
    }
)
AGENTX = lines(
    {
        "id": "trace_1",
        "models": ["m"],
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [
            {"t": 0, "type": "n", "in": 256, "out": 9, "hash_ids": [1, 2, 3, 4], "stop": "tool_use", "api_time": 2},
            {
                "t": 3,
                "type": "subagent",
                "agent_id": "agent_001",
                "requests": [
                    {"t": 0.5, "type": "s", "in": 70, "out": 3, "hash_ids": [1], "stop": "", "api_time": 4}
                ],
            },
            {"t": 9, "type": "s", "in": 300, "out": 8, "hash_ids": [1, 2, 3, 4], "stop": "end_turn", "api_time": 1},
            {"t": 70, "type": "s", "in": 320, "out": 7, "hash_ids": [1, 9, 8, 7, 6], "stop": "", "api_time": 1},
        ],
    }
)
MOONCAKE = lines(
    {"timestamp": 0, "input_length": 1100, "output_length": 10, "hash_ids": [1, 2, 3]},
    {"timestamp": 500, "input_length": 100, "output_length": 5, "hash_ids": [4]},
    {"timestamp": 2000, "input_length": 1700, "output_length": 20, "hash_ids": [1, 2, 5, 6]},
    {"timestamp": 3000, "input_length": 1100, "output_length": 10, "hash_ids": [1, 7, 8]},
    {"timestamp": 4000, "input_length": 2100, "output_length": 30, "hash_ids": [1, 2, 5, 9, 10]},
)
DYNAMO_REPLAY = lines(
    {"session_id": "a", "timestamp": 0, "input_length": 100, "output_length": 10, "hash_ids": [1]},
    {"session_id": "b", "timestamp": 5, "input_length": 50, "output_length": 5, "hash_ids": [2]},
    {"session_id": "a", "delay": 250, "input_length": 130, "output_length": 10, "hash_ids": [1]},
)
AIPERF = lines(
    {
        "session_id": "x",
        "turns": [{"text": text(10), "output_length": 20}, {"text": text(5), "delay": 900, "output_length": 7}],
    },
    {"session_id": "y", "turns": [{"text": text(10)}]},
)


def _record(turn: int, begin_s: int, end_s: int, prompt: int, reply: int) -> dict[str, Any]:
    values = {"input_sequence_length": {"value": prompt}, "output_sequence_length": {"value": reply}}
    at = {"request_start_ns": (1_700_000_000 + begin_s) * 10**9, "request_end_ns": (1_700_000_000 + end_s) * 10**9}
    return {"metadata": {"x_correlation_id": "k", "turn_index": turn, **at}, "metrics": values}


AIPERF_EXPORT = lines(_record(0, 0, 2, 100, 10), _record(1, 5, 6, 140, 12))


def _round(index: int, prompt: int, *stamps: tuple[str, int]) -> dict[str, Any]:
    events = [{"event_type": kind, "timestamp": f"2026-01-01T00:00:{at:02}Z"} for kind, at in stamps]
    tools = [{"tool_name": "Bash"}] if any(kind == "tool_call" for kind, _ in stamps) else []
    row = {"session_id": "claude:1", "round_index": index, "input_tokens_total": prompt, "output_tokens": 9}
    return {**row, "prefix_tokens": 64, "newly_append_tokens": prompt - 64, "timing_events": events, "tools": tools}


TRACELAB = lines(
    _round(0, 100, ("user_message", 0), ("text", 2), ("tool_call", 3)),
    _round(1, 150, ("tool_result", 7), ("text", 8)),
    _round(2, 170, ("user_message", 38), ("text", 39)),
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
TAU_BENCH = json.dumps(
    [
        {
            "task_id": 3,
            "trial": 0,
            "reward": 1.0,
            "traj": [
                {"role": "system", "content": text(100)},
                {"role": "user", "content": text(10)},
                {"role": "assistant", "tool_calls": [{"function": {"name": "find", "arguments": "abcdefgh"}}]},
                {"role": "tool", "content": text(40)},
                {"role": "assistant", "content": text(6)},
                {"role": "user", "content": text(4)},
                {"role": "assistant", "content": text(2)},
            ],
        }
    ]
)
SHARE_GPT = json.dumps(
    [
        {
            "id": "QWJh_0",
            "conversations": [
                {"from": "human", "value": text(10)},
                {"from": "gpt", "value": text(20)},
                {"from": "human", "value": text(5)},
                {"from": "gpt", "value": text(7)},
            ],
        },
        {"id": "none", "conversations": []},
    ]
)

MADE: dict[str, tuple[str, Programs]] = {
    "Claude Code": (
        CLAUDE_CODE,
        [
            (
                "s",
                "",
                0,
                [(100, 20, "git", 1500.0), (130, 10, "Task", 2000.0), (150, 8, "human", 30000.0), (3, 6, "", None)],
            ),
            ("s/a", "s", 1, [(50, 5, "", None)]),
        ],
    ),
    "Codex": (CODEX, [("c", "", 0, [(100, 20, "cargo", 5000.0), (150, 30, "human", 10000.0), (200, 5, "", None)])]),
    "OpenHands": (OPENHANDS, [("django-1", "", 0, [(100, 10, "ls+file_editor", 4000.0), (160, 5, "", None)])]),
    "OpenHands, old": (OPENHANDS_OLD, [("file", "", 0, [(100, 10, "pytest", 7000.0), (130, 12, "", None)])]),
    "mini-swe-agent": (MINI, [("sympy-2", "", 0, [(100, 10, "grep", 2500.0), (200, 20, "", None)])]),
    "SWE-agent": (SWE_AGENT, [("file", "", 0, [(100, 20, "find", 500.0), (150, 5, "", None)])]),
    "trae-agent": (TRAE, [("file", "", 0, [(100, 10, "ls", 204.0), (200, 20, "", None)])]),
    "AgentX": (
        AGENTX,
        [
            ("trace_1", "", 0, [(256, 9, "tool_use", 3000.0), (300, 8, "human", 60000.0), (320, 7, "", None)]),
            ("trace_1/agent_001", "trace_1", 0, [(70, 3, "", None)]),
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
    "Dynamo's replay": (
        DYNAMO_REPLAY,
        [("b", "", 0, [(50, 5, "", None)]), ("a", "", 0, [(100, 10, "", 250.0), (130, 10, "", None)])],
    ),
    "aiperf": (AIPERF, [("x", "", 0, [(10, 20, "human", 900.0), (35, 7, "", None)])]),
    "aiperf's export": (AIPERF_EXPORT, [("k", "", 0, [(100, 10, "", 3000.0), (140, 12, "", None)])]),
    "TraceLab": (
        TRACELAB,
        [("claude:1", "", 0, [(100, 9, "Bash", 4000.0), (150, 9, "human", 30000.0), (170, 9, "", None)])],
    ),
    "Dynamo": (
        DYNAMO,
        [
            ("root", "", 0, [(100, 10, "research", 1000.0), (150, 12, "", None)]),
            ("child", "root", 0, [(60, 6, "", None)]),
        ],
    ),
    "tau-bench": (
        TAU_BENCH,
        [("3/0", "", 0, [(110, 3, "find", None), (153, 6, "human", None), (163, 2, "", None)])],
    ),
    "ShareGPT": (SHARE_GPT, [("QWJh_0", "", 0, [(10, 20, "human", None), (35, 7, "", None)])]),
}
"""By format: a file, and the programs in it, parents first, in the order in which they are told."""
