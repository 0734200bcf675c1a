"""A small file of each format, and what a count by hand makes of it.

Its shape is that of the sources which the readers name; the numbers are made up. ``text(n)`` is guessed at ``n``
tokens: four bytes each.
"""

import json
from typing import Any

from support.request_files import MEASURED, Programs, lines


def text(tokens: int) -> str:
    return "abc " * tokens


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


def _step(action: str, execution_time: float, *query: int) -> dict[str, Any]:
    said = [{"role": "user", "content": text(tokens), "message_type": "observation"} for tokens in query]
    step = {"action": action, "observation": text(30), "response": text(20), "thought": "", "state": {}}
    return {**step, "execution_time": execution_time, "query": said or [{}], "extra_info": {}}


SWE_AGENT_1 = json.dumps(
    {
        "trajectory": [
            _step("", 0.0, 50, 50),  # its reply could not be parsed, and is not in the history that follows
            _step("find . -name x", 0.5, 50, 60),
            _step("submit", 0.25, 50, 60, 20, 31),
            _step("", 0.0),  # the end, which no model told
        ],
        "history": [],
        "info": {"exit_status": "submitted", "model_stats": {"api_calls": 3}},
        "replay_config": "{}",
        "environment": "main",
    },
    indent=2,
)


def _interaction(at: int, prompt: int, reply: int, cached: int | None = None) -> dict[str, Any]:
    usage = {"input_tokens": prompt, "output_tokens": reply, "cache_read_input_tokens": cached}
    calls = [{"call_id": "c", "name": "bash", "arguments": {"command": "ls"}, "id": None}]
    response = {"content": text(5), "usage": usage, "tool_calls": calls}
    said = [{"role": "user", "content": None, "tool_result": {"call_id": "c", "result": text(30), "error": None}}]
    at_s = f"2026-01-01T00:00:{at:02}.000001"
    return {"timestamp": at_s, "provider": "anthropic", "input_messages": said, "response": response}


def _trae_step(at: str, answered: bool = True) -> dict[str, Any]:
    return {"timestamp": f"2026-01-01T00:00:{at}", "llm_response": {"content": ""} if answered else None}


TRAE = json.dumps(
    {
        "task": "t",
        "llm_interactions": [
            _interaction(10, 96, 10, cached=4),
            _interaction(20, 0, 0),  # whose usage its API did not tell
        ],
        "agent_steps": [_trae_step("10.204001"), _trae_step("20"), _trae_step("30", answered=False)],
    }
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


def _said(role: str, at: str, content: str | None, *tools: str, **more: Any) -> dict[str, Any]:
    calls = [{"id": "c", "name": name, "arguments": {}, "requestor": role} for name in tools] or None
    at_s = f"2026-01-01T00:00:{at}.000001"
    return {"role": role, "content": content, "tool_calls": calls, "timestamp": at_s, "usage": None, **more}


def _spent(prompt: int, reply: int) -> dict[str, Any]:
    return {"usage": {"completion_tokens": reply, "prompt_tokens": prompt}}


TAU2_BENCH = json.dumps(
    {
        "timestamp": "2026-01-01T00:00:00",
        "info": {},
        "tasks": [],
        "simulations": [
            {
                "id": "u",
                "task_id": "7",
                "trial": 1,
                "messages": [
                    _said("assistant", "00", "Hi! How can I help you today?", cost=0.0),  # no model's
                    _said("user", "02", text(10)),
                    _said("assistant", "04", None, "find", **_spent(1000, 20)),
                    _said("tool", "05", text(40), requestor="assistant"),
                    _said("assistant", "07", text(6), **_spent(1060, 30)),
                    _said("user", "08", None, "toggle"),  # the person's own, which the agent does not see
                    _said("tool", "09", text(500), requestor="user"),
                    _said("user", "11", text(4)),
                    _said("assistant", "12", text(2)),
                ],
            }
        ],
    }
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
SHARE_GPT_CUT = lines(
    {
        "id": "QWJh_7",
        "conversations": [
            {"from": "gpt", "value": text(9)},
            {"from": "human", "value": text(1)},
            {"from": "gpt", "value": text(3)},
        ],
    }
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
    "SWE-agent 1": (
        SWE_AGENT_1,
        [("file", "", 0, [(100, 20, "bash", 0.0), (110, 20, "find", 500.0), (161, 20, "", None)])],
    ),
    "trae-agent": (TRAE, [("file", "", 0, [(100, 10, "ls", 204.0), (140, 5, "", None)])]),
    "tau2-bench": (
        TAU2_BENCH,
        [("u/7/1", "", 0, [(1000, 20, "find", 1000.0), (1060, 30, "human", 4000.0), (1094, 2, "", None)])],
    ),
    "tau-bench": (
        TAU_BENCH,
        [("3/0", "", 0, [(110, 3, "find", None), (153, 6, "human", None), (163, 2, "", None)])],
    ),
    "ShareGPT": (SHARE_GPT, [("QWJh_0", "", 0, [(10, 20, "human", None), (35, 7, "", None)])]),
    "ShareGPT, cut": (SHARE_GPT_CUT, [("QWJh_7", "", 0, [(10, 3, "", None)])]),
    **MEASURED,
}
"""By format: a file, and the programs in it, parents first, in the order in which they are told."""
