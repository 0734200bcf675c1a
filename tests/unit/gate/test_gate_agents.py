"""Which kind of agent sends a request."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.gate.agents import kind_of_agent
from controlplane.gate.identity import identify

_JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "name", "text"]), inner),
    max_leaves=6,
)


def tools(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": {}}} for name in names]


def system(text: object, role: str = "system") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text}, {"role": "user", "content": "a task"}]}


def test_runs_of_one_agent_are_alike_whatever_their_task() -> None:
    first = {**system("You are a coder. " + "x" * 64 + " Today is Monday."), "tools": tools("bash", "edit")}
    second = {**system("You are a coder. " + "x" * 64 + " Today is Friday."), "tools": tools("edit", "bash")}
    assert kind_of_agent(first) == kind_of_agent(second)
    assert len(kind_of_agent(first)) == 8


@pytest.mark.parametrize(
    "other",
    [
        {**system("You are a coder."), "tools": tools("bash")},
        {**system("You are a poet."), "tools": tools("bash", "edit")},
        {"tools": tools("bash", "edit")},
        system("You are a coder."),
    ],
)
def test_other_tools_or_instructions_are_another_agent(other: dict[str, Any]) -> None:
    assert kind_of_agent(other) != kind_of_agent({**system("You are a coder."), "tools": tools("bash", "edit")})


@pytest.mark.parametrize(
    "body",
    [
        system("You are a coder."),
        system([{"type": "text", "text": "You are a coder."}]),
        system("You are a coder.", role="developer"),
        {"instructions": "You are a coder.", "input": "a task"},
        {"system": [{"type": "text", "text": "You are a coder."}], "messages": [{"role": "user", "content": "a"}]},
        {"input": [{"role": "developer", "content": "You are a coder."}]},
    ],
)
def test_each_api_says_it_elsewhere(body: dict[str, Any]) -> None:
    assert kind_of_agent(body) == kind_of_agent(system("You are a coder."))


def test_tools_are_named_nested_or_flat() -> None:
    flat = [{"type": "function", "name": "bash"}, {"type": "function", "name": "edit"}]
    assert kind_of_agent({"tools": flat}) == kind_of_agent({"tools": tools("bash", "edit")})


@pytest.mark.parametrize("body", [{}, {"messages": [{"role": "user", "content": "hello"}]}, {"prompt": "hello"}])
def test_a_request_that_shows_nothing_is_of_no_kind(body: dict[str, Any]) -> None:
    assert kind_of_agent(body) == ""


@given(st.dictionaries(st.sampled_from(["tools", "messages", "input", "system", "instructions"]), _JSON))
def test_no_body_is_too_strange(body: dict[str, Any]) -> None:
    assert len(kind_of_agent(body)) in (0, 8)


def test_who_says_what_it_is_is_believed() -> None:
    body = {"program_id": "p", **system("You are a coder.")}
    assert identify([(b"x-penstock-agent", b"coder")], body).agent == "coder"
    assert identify([], body).agent == kind_of_agent(body)
    assert identify([(b"x-penstock-agent", b"x" * 300)], body).agent.startswith("sha256-")
