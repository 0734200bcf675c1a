"""The tool calls of an MCP connection: which they are, whose, and how they end."""

import json
from typing import Any

from support.reports import Reports

from controlplane.core.events import ProgramArrived, ProgramEnded, ToolEnded, ToolStarted
from engine_hooks.tools.mcp_calls import Calls


def line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


def call(number: int | str, tool: str = "look", **meta: str) -> bytes:
    return line(id=number, method="tools/call", params={"name": tool, "_meta": meta})


def test_a_call_is_a_tool_from_its_request_to_its_answer() -> None:
    reports = Reports()
    calls = Calls(reports)
    calls.to_server(line(id=0, method="initialize", params={}))
    calls.to_server(line(method="notifications/initialized"))
    calls.to_client(line(id=0, result={}))
    assert reports.events == [], "a connection that calls nothing is no program"
    calls.to_server(call(1))
    calls.to_client(line(method="notifications/progress", params={}))
    calls.to_client(line(id=1, result={"content": [], "isError": True}))
    calls.to_server(call(2))
    calls.to_client(line(id=2, error={"code": -1, "message": "no"}))
    calls.to_server(call(3))
    calls.end()
    kinds = [type(event) for event in reports.events]
    assert kinds == [ProgramArrived, *[ToolStarted, ToolEnded] * 3, ProgramEnded]
    assert [event.ok for event in reports.events if isinstance(event, ToolEnded)] == [False, False, False]
    assert len({event.program_id for event in reports.events}) == 1  # type: ignore[attr-defined]


def test_the_clients_own_name_of_the_program_wins() -> None:
    reports = Reports()
    calls = Calls(reports, "given")
    calls.to_server(call("a"))
    calls.to_server(call("b", session_id="session"))
    calls.to_client(line(id="b", result={}))
    calls.to_client(line(id="a", result={}))
    calls.end()
    started = [event.program_id for event in reports.events if isinstance(event, ToolStarted)]
    assert started == ["given", "session"]
    assert not [event for event in reports.events if isinstance(event, ProgramEnded)]


def test_lines_that_are_no_messages_are_none_of_its_business() -> None:
    reports = Reports()
    calls = Calls(reports)
    for told in (b"", b"hello\n", b"[1, 2]\n", b"7\n", b'{"method": "tools/call"}\n', b"\xff\xfe\n"):
        calls.to_server(told)
        calls.to_client(told)
    batch = json.dumps([json.loads(call(1)), json.loads(call(2))]).encode()
    calls.to_server(batch)
    assert len([event for event in reports.events if isinstance(event, ToolStarted)]) == 2


def test_a_call_that_its_client_cancels_is_over() -> None:
    reports = Reports()
    calls = Calls(reports)
    calls.to_server(call(1))
    calls.to_server(line(method="notifications/cancelled", params={"requestId": "1"}))
    assert ended(reports) == [], "1 and '1' are two requests"
    calls.to_server(line(method="notifications/cancelled", params={"requestId": 1, "reason": "enough"}))
    calls.to_client(line(id=1, result={}))
    assert ended(reports) == [False]


def test_a_call_that_takes_too_long_is_answered_once() -> None:
    now_s = [0.0]
    reports = Reports()
    calls = Calls(reports, timeout_s=10, now_s=lambda: now_s[0])
    calls.to_server(call(1, "slow"))
    now_s[0] = 5.0
    calls.to_server(call(2, "later"))
    now_s[0] = 9.9
    assert calls.overdue() == []
    now_s[0] = 10.0
    (late,) = calls.overdue()
    answer, told = json.loads(late.to_client), json.loads(late.to_server)
    assert (answer["id"], answer["error"]["code"]) == (1, -32001)
    assert "slow took longer than 10 s" in answer["error"]["message"]
    assert (told["method"], told["params"]["requestId"], "id" in told) == ("notifications/cancelled", 1, False)
    assert calls.overdue() == [], "told once"
    assert calls.to_client(line(id=1, result={})) is False, "its client has an answer"
    assert calls.to_client(line(id=2, result={})) is True
    assert ended(reports) == [False, True]
    calls.to_server(call(1, "again"))
    assert calls.to_client(line(id=1, result={})) is True, "an id that is used again is another call"


def test_a_call_that_the_server_refused_is_over() -> None:
    reports = Reports()
    calls = Calls(reports)
    assert calls.to_server(call("a")) == ["a"]
    calls.failed("a")
    calls.failed("a")
    assert ended(reports) == [False]


def test_a_client_that_asks_for_nothing_more_has_ended_once_its_calls_have() -> None:
    reports = Reports()
    calls = Calls(reports)
    calls.to_server(call(1))
    calls.end_if_idle()
    assert not isinstance(reports.events[-1], ProgramEnded), "an answer is to come"
    calls.to_client(line(id=1, result={}))
    calls.end_if_idle()
    calls.end()
    assert [type(event) for event in reports.events].count(ProgramEnded) == 1
    assert isinstance(reports.events[-1], ProgramEnded)


def ended(reports: Reports) -> list[bool]:
    return [event.ok for event in reports.events if isinstance(event, ToolEnded)]
