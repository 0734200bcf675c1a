"""What clients end a program by over HTTP."""

import json

import pytest
from test_gate_middleware import CHAT, Bench

from controlplane.core.model.events import ProgramEnded, ReplyRead
from controlplane.gate.endings import ENDING_PATHS, is_last

NAMED = {"program_id": "p"}


@pytest.mark.parametrize(
    ("path", "body", "headers", "program_id"),
    [
        ("/close_session", {"session_id": "p"}, {}, "p"),
        ("/finish_session", {"session_id": "p"}, {}, "p"),
        ("/finish_session", {}, {"x_session_id": "p"}, "p"),
        ("/finish_session?session_id=p", b"", {}, "p"),
        ("/programs/release", NAMED, {}, "p"),
        ("/programs/release", {"program_id": "never seen"}, {}, ""),
        ("/programs/release", {}, {}, ""),
        ("/close_session", {"session_id": "never seen"}, {}, ""),
    ],
)
async def test_a_program_that_the_gate_knows_is_ended(
    path: str, body: object, headers: dict[str, str], program_id: str
) -> None:
    bench = Bench(governed=False)
    await bench.answered(CHAT)
    bench.events.clear()
    reply = await bench.answered(body, path=path, **headers)
    assert [event.program_id for event in bench.of(ProgramEnded)] == [program_id] * bool(program_id)
    is_asked = ENDING_PATHS[path.partition("?")[0]]
    assert len(bench.app.requests) == 1 + is_asked, "a server that has the path is asked, too"
    if not is_asked:
        assert (reply.status, json.loads(reply.body)["ended"]) == (200, bool(program_id))


async def test_another_accounts_program_is_not_ended() -> None:
    bench = Bench(governed=False)
    await bench.answered(CHAT, authorization="Bearer one")
    await bench.answered(NAMED, path="/programs/release", authorization="Bearer two")
    assert bench.of(ProgramEnded) == []


@pytest.mark.parametrize(
    ("session", "key", "is_told"), [("p", "one", 1), ("p", "two", 0), ("q", "two", 1), ("penstock-3", "one", 0)]
)
async def test_an_engine_is_told_to_close_nobody_elses_session(session: str, key: str, is_told: int) -> None:
    """Whichever program the request itself is of; and what the gate has there is nobody's to close."""
    bench = Bench(governed=False)
    await bench.answered(CHAT, authorization="Bearer one")
    body = {"session_id": session, "program_id": "my own"}
    reply = await bench.answered(body, path="/close_session", authorization=f"Bearer {key}")
    assert (len(bench.app.requests), reply.status) == (1 + is_told, 200)


@pytest.mark.parametrize(("value", "last"), [("true", True), ("True", True), ("false", False), ("1", False)])
async def test_dynamos_clients_say_in_a_header_that_a_turn_is_the_last(value: str, last: bool) -> None:
    bench = Bench(governed=False)
    await bench.answered(CHAT, **{"x-dynamo-session-final": value})
    assert [event.is_last for event in bench.of(ReplyRead)] == [True] * last
    assert is_last([(b"X-Dynamo-Session-Final", value.encode())], {}) == last
