"""Repairs of prompts: what they change, and that they change nothing else."""

import asyncio
import copy
import json
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.model.errors import ConfigError
from controlplane.gate import Gate, GateMiddleware
from controlplane.gate.contexts import Contexts
from controlplane.gate.repairs import Repairer, repairs_in
from controlplane.gate.sizing import measure

BOTH = frozenset(("tools", "heads"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
TOOLS = st.lists(
    st.fixed_dictionaries(
        {"name": st.text("abc", min_size=1, max_size=2), "more": JSON},
        optional={"cache_control": st.just({"type": "ephemeral"})},
    )
    | JSON,
    max_size=4,
)
BODIES = st.fixed_dictionaries(
    {}, optional={"tools": TOOLS, "functions": JSON, "system": JSON, "messages": JSON, "input": JSON, "model": JSON}
)
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197; cch=0001;"}


def agent(second: int, left: int = 9000, **more: Any) -> dict[str, Any]:
    """Claude Code's kind of request, in which three things change by themselves."""
    text = (
        f"You are an agent.\nNow: 2026-11-30T10:00:{second:02}Z\nCutoff: 2025-01-01.\nTokens left: {left}\nBe good."
    )
    return {
        "system": [BILLING, {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "go on"}],
        "tools": [{"name": name} for name in ("write", "read")],
        "max_tokens": 5,
        **more,
    }


@given(body=BODIES)
def test_of_any_request_the_tools_change_places_and_nothing_else_does(body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    made = Repairer(frozenset(("tools",))).repair("p", body)
    assert body == before
    assert {name: value for name, value in made.items() if name not in ("tools", "functions")} == {
        name: value for name, value in body.items() if name not in ("tools", "functions")
    }
    for field in ("tools", "functions"):
        if made.get(field) != body.get(field):
            were, are = body[field], made[field]
            assert Counter(map(_unmarked, are)) == Counter(map(_unmarked, were))
            assert [each.get("cache_control") for each in are] == [each.get("cache_control") for each in were]
    assert Repairer(frozenset(("tools",))).repair("p", made) is made


def _unmarked(tool: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in tool.items() if name != "cache_control"})


@given(bodies=st.lists(BODIES, min_size=1, max_size=3))
def test_any_request_is_repaired_or_left_as_it_is(bodies: list[dict[str, Any]]) -> None:
    repairer = Repairer(BOTH)
    for body in bodies:
        before = copy.deepcopy(body)
        came = json.dumps(body)
        made, data = repairer.sent_on("p", body, came.encode())
        assert body == before
        assert made.keys() == body.keys()
        assert (json.loads(data) if data else body) == made


def test_a_line_that_changes_goes_behind_the_last_message_once_it_was_seen_to() -> None:
    repairer = Repairer(frozenset(("heads",)))
    first, second = repairer.repair("p", agent(1)), repairer.repair("p", agent(2))
    left = agent(1)["system"][1]
    assert first == agent(1) | {"system": [left]}, "only the billing line is known to change"
    text = "You are an agent.\nCutoff: 2025-01-01.\nTokens left: 9000\nBe good."
    note = "go on\n\nNow: 2026-11-30T10:00:02Z"
    assert second == agent(2) | {"system": [left | {"text": text}], "messages": [{"role": "user", "content": note}]}
    assert repairer.repair("q", agent(3))["system"] == agent(3)["system"][1:], "another program's may stand still"
    assert repairer.repaired == 3


def test_a_repaired_conversation_goes_on() -> None:
    """What a gate sees of it: without the repairs the head differs each turn, with them nothing before the note."""

    def changes(repairer: Repairer) -> list[str]:
        contexts, found = Contexts(), []
        for turn in range(1, 6):
            body = agent(turn, left=9000 - turn)
            if turn % 2:
                body["tools"].reverse()
            body["messages"] = [{"role": "user", "content": f"step {number}"} for number in range(turn)]
            prompt = measure(repairer.repair("p", body))
            found.append(contexts.change("p", prompt, ()).change)
            contexts.remember("p", str(turn), prompt)
        return found

    assert set(changes(Repairer())[1:]) <= {"volatile_head", "tools_reordered"}
    assert changes(Repairer(BOTH))[3:] == ["message_edited"] * 2, "the note alone"


@pytest.mark.parametrize(
    "content",
    ["go", [{"type": "tool_result", "tool_use_id": "t", "content": "x"}], [{"type": "text", "text": "go"}]],
)
def test_a_note_stands_behind_all_that_a_message_has(content: Any) -> None:
    repairer = Repairer(frozenset(("heads",)))
    for second in (1, 2):
        made = repairer.repair("p", agent(second, messages=[{"role": "user", "content": content}]))
    (message,) = made["messages"]
    told = message["content"][len(content) :]
    note = "Now: 2026-11-30T10:00:02Z"
    assert told in (f"\n\n{note}", [{"type": "text", "text": note}])


ASKED = {"role": "user", "content": "go"}


@pytest.mark.parametrize(
    "messages",
    [
        [ASKED, {"role": "assistant", "content": "{"}],  # begun, for the model to go on with
        [ASKED, {"role": "assistant", "content": None, "tool_calls": []}],
        [{"role": "user", "content": None}],
        [{"content": "go"}],
        ["go"],
        "go",
        {"role": "user"},
    ],
)
def test_a_line_that_has_nowhere_to_go_stays_where_it_was(messages: Any) -> None:
    repairer = Repairer(frozenset(("heads",)))
    for second in (1, 2, 3):
        body = agent(second, messages=messages)
        assert repairer.repair("p", body) == body | {"system": body["system"][1:]}


@pytest.mark.parametrize(
    "more", ['"a": 1.50, "a": 1e400', '"seed": 123456789012345678901234567890', '"a": "\\u00e9"']
)
def test_the_bytes_of_all_else_stay(more: str) -> None:
    data = ('{"tools": [{"name": "b"}, {"name": "a"}], ' + more + "}").encode()
    _, sent = Repairer(BOTH).sent_on("p", {"tools": [{"name": "b"}, {"name": "a"}]}, data)
    assert more.rpartition('": ')[2].encode() in sent and b'[{"name":"a"},{"name":"b"}]' in sent


def test_what_is_no_json_by_the_letter_is_repaired_without_loss() -> None:
    body = {"tools": [{"name": "b"}, {"name": "a"}], "top_p": float("inf"), "stop": "\ud800"}
    made, sent = Repairer(BOTH).sent_on("p", body, json.dumps(body).encode())
    assert json.loads(sent) == made == body | {"tools": [{"name": "a"}, {"name": "b"}]}


def test_a_long_system_prompt_is_repaired_as_far_as_it_is_read() -> None:
    repairer, begun_s = Repairer(BOTH), time.process_time()
    for text in ("1," * (1 << 22), "10:00\n" * (1 << 20)):
        body = agent(1, system=[BILLING, {"type": "text", "text": text}])
        assert repairer.repair("p", body)["system"] == body["system"][1:]
    assert time.process_time() - begun_s < 5


@pytest.mark.parametrize(
    ("text", "asked"), [("", frozenset()), ("tools", frozenset({"tools"})), (" heads, tools ,", BOTH)]
)
def test_what_an_operator_asks_for(text: str, asked: frozenset[str]) -> None:
    assert repairs_in({"PENSTOCK_REPAIR": text}) == asked


def test_what_there_is_no_repair_of_is_refused() -> None:
    with pytest.raises(ConfigError, match="PENSTOCK_REPAIR: expected tools, heads or tools,heads, got 'head'"):
        repairs_in({"PENSTOCK_REPAIR": "head"})


@pytest.mark.parametrize("repairs", [frozenset(), BOTH])
def test_a_gate_sends_on_what_was_repaired_and_all_else_as_it_came(repairs: frozenset[str]) -> None:
    heard: list[Any] = []

    async def engine(scope: Any, receive: Any, send: Any) -> None:
        heard.append((dict(scope["headers"]), (await receive())["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    gate = GateMiddleware(engine, Gate(send=lambda event, urgent: None, now_ns=lambda: 0), repairs=repairs)
    data = json.dumps(agent(1), indent=1).encode()

    async def ask() -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": data}

        async def send(message: Any) -> None:
            pass

        headers = [(b"x-session-id", b"p"), (b"content-length", str(len(data)).encode())]
        await gate({"type": "http", "method": "POST", "path": "/v1/messages", "headers": headers}, receive, send)

    asyncio.run(ask())
    ((headers, body),) = heard
    assert int(headers[b"content-length"]) == len(body)
    if not repairs:
        assert body == data
    else:
        changed = {"system": agent(1)["system"][1:], "tools": [{"name": "read"}, {"name": "write"}]}
        assert json.loads(body) == agent(1) | changed
