"""SGLang's sessions: which turn carries which, when each is closed, and that none is left open or mixed up."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web
from support.daemon_process import eventually
from support.ports import free_port

from controlplane.core.model import commands as cmd
from controlplane.core.model.events import CommandApplied, CommandRejected, Event, Pin
from controlplane.core.model.types import seconds
from controlplane.gate.engine_api import EngineAccess
from controlplane.gate.tickets import Ticket
from engine_hooks.sglang import api as shell
from engine_hooks.sglang.api import SglangSessions
from engine_hooks.sglang.sessions import IDLE_NS, MOST, NOTHING_HERE, RUNS, Sessions

NOW = 1000
CHAT = "/v1/chat/completions"


def ticket(program: str, turn: str = "1", parent: str = "", *, anonymous: bool = False) -> Ticket:
    return Ticket(program_id=program, turn_id=turn, anonymous=anonymous, parent_id=parent)


def ready(most: int = MOST) -> Sessions:
    """Those of a server at which all of an earlier run are closed."""
    sessions = Sessions(most)
    for number in sessions.due(0):
        sessions.closed(number)
    return sessions


def ran(sessions: Sessions, program: str, parent: str = "") -> int:
    number = sessions.begin(ticket(program, parent=parent), NOW)
    assert number is not None
    sessions.end(ticket(program), NOW)
    return number


def test_a_turn_goes_without_until_what_an_earlier_run_left_open_is_closed() -> None:
    sessions = Sessions(2)
    assert sessions.begin(ticket("p"), NOW) is None
    sessions.closed(1)
    assert ran(sessions, "p") == 1 == ran(sessions, "p")
    assert list(sessions.due(NOW)) == [0]


@pytest.mark.parametrize(
    ("what", "after_ns"),
    [
        (lambda it: None, IDLE_NS),
        (lambda it: it.retain("p", 50, NOW), 50),
        (lambda it: it.retain("p", 2 * IDLE_NS, NOW), 2 * IDLE_NS),
        (lambda it: it.let_go("p"), 0),
        (lambda it: it.park("p"), 0),
        (lambda it: it.park("root"), 0),
    ],
    ids=["nothing said", "retained", "retained for longer", "let go", "parked", "its root parked"],
)
def test_a_session_is_closed_at_its_time_and_no_earlier(what: Callable[[Sessions], object], after_ns: int) -> None:
    sessions = ready()
    ran(sessions, "p", parent="root")
    what(sessions)
    if after_ns:
        assert not list(sessions.due(NOW + after_ns - 1))
    assert list(sessions.due(NOW + after_ns)) == [0]
    assert sessions.retain("p", 1, NOW) == sessions.let_go("p") == NOTHING_HERE


def test_a_running_turn_has_its_session_to_its_end() -> None:
    sessions = ready()
    ran(sessions, "p")
    sessions.retain("p", 50, NOW)
    assert list(sessions.pins(NOW + 20)) == [Pin(program_id="p", ttl_ns=30)]
    sessions.begin(ticket("p", "2"), NOW + 10)
    assert not list(sessions.pins(NOW)), "the pin has served"
    assert sessions.let_go("p") == sessions.retain("p", 1, NOW) == RUNS
    sessions.park("p")
    assert not list(sessions.due(NOW + 2 * IDLE_NS))
    sessions.end(ticket("p", "2"), NOW)
    sessions.want("p")
    assert not list(sessions.due(NOW + 60)), "it has a slot again"
    sessions.park("p")
    assert list(sessions.due(NOW)) == [0]


def test_where_all_are_taken_the_oldest_makes_room() -> None:
    sessions = ready(2)
    assert (ran(sessions, "old"), sessions.begin(ticket("runs"), NOW)) == (0, 1)
    assert sessions.begin(ticket("new"), NOW + 1) is None is sessions.begin(ticket("newer"), NOW + 1)
    assert list(sessions.due(NOW)) == [0]
    sessions.closed(0)
    assert sessions.begin(ticket("new"), NOW + 2) == 0


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_none_is_two_programs_and_none_stays_open(seed: int) -> None:
    """Beside what SGLang would have open, told of each turn's end and each close, in any order and late."""
    source, sessions, now_ns = random.Random(seed), ready(4), NOW
    open_there: dict[int, set[str]] = {}
    running: list[tuple[Ticket, int | None]] = []
    for step in range(4000):
        now_ns += source.choice((0, 1, IDLE_NS // 10))
        name = f"p{source.randrange(8)}"
        match source.randrange(7):
            case 0 | 1:
                turn = ticket(name, str(step))
                running.append((turn, sessions.begin(turn, now_ns)))
            case 2 if running:
                turn, number = running.pop(source.randrange(len(running)))
                if number is not None and source.random() < 0.9:  # else it was cut, and left nothing
                    open_there.setdefault(number, set()).add(turn.program_id)
                sessions.end(turn, now_ns)
            case 3:
                sessions.retain(name, source.randrange(1, IDLE_NS), now_ns)
            case 4:
                (sessions.let_go if source.random() < 0.5 else sessions.park)(name)
            case 5:
                sessions.want(name)
            case _:
                for number in sessions.due(now_ns):
                    if source.random() < 0.7:  # else the server did not answer
                        open_there.pop(number, None)
                        sessions.closed(number)
        owners = {session.number: owner for owner, session in sessions.by_program.items()}
        assert len(owners) == len(sessions.by_program)
        for number, programs in open_there.items():
            assert number in sessions.closing or programs == {owners[number]}
    for turn, _ in running:
        sessions.end(turn, now_ns)
    assert set(sessions.due(now_ns + IDLE_NS)) >= open_there.keys()
    assert not sessions.by_program


# -- the shell ---------------------------------------------------------------------------------------------


@dataclass
class SglangDouble:
    """What of SGLang's server is asked of; the real one is in tests/engine/test_engine_sessions.py."""

    info: Any = field(default_factory=lambda: {"enable_session_radix_cache": True, "startup_time": 1})
    status: int = 200
    closed: list[str] = field(default_factory=list)

    async def server_info(self, request: web.Request) -> web.Response:
        return web.json_response(self.info)

    async def close_session(self, request: web.Request) -> web.Response:
        if self.status == 200:
            self.closed.append((await request.json())["session_id"])
        return web.Response(status=self.status)


@asynccontextmanager
async def obeying(double: SglangDouble) -> AsyncIterator[tuple[SglangSessions, list[Event]]]:
    app, port, told = web.Application(), free_port(), list[Event]()
    app.router.add_get("/server_info", double.server_info)
    app.router.add_post("/close_session", double.close_session)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    api = SglangSessions(EngineAccess(address=f"127.0.0.1:{port}", emit=told.append))
    runs = asyncio.create_task(api.run())
    try:
        yield api, told
    finally:
        runs.cancel()
        await asyncio.gather(runs, return_exceptions=True)
        await runner.cleanup()


async def test_turns_name_sessions_and_the_daemons_word_closes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "_LOOK_NS", 0)
    double = SglangDouble()
    async with obeying(double) as (api, told):
        await eventually(lambda: len(double.closed) == MOST, what="all are closed")

        async def turn(one: Ticket, path: str = CHAT) -> object:
            fields = dict(await api.before_turn(one, path))
            api.turn_ended(one)
            return fields.get("session_id")

        assert await turn(ticket("p")) == "penstock-0" == await turn(ticket("p"), "/generate")
        assert await turn(ticket("q"), "/v1/messages") is None, "SGLang reads none there"
        assert await turn(ticket("q", anonymous=True)) is None
        assert await turn(replace(ticket("q"), aside=True)) is None
        assert await turn(ticket("q")) == "penstock-1"
        for command in (
            cmd.Retain(command_id=1, program_id="p", ttl_ns=seconds(99)),
            cmd.Discard(command_id=2, program_id="q"),
            cmd.Discard(command_id=3, program_id="q"),
            cmd.Demote(command_id=4, program_id="p"),
            cmd.Prefetch(command_id=5, program_id="p"),
        ):
            api.on_command(command)
        applied = [each.command_id for each in told if isinstance(each, CommandApplied)]
        assert (applied, [each.command_id for each in told if isinstance(each, CommandRejected)]) == (
            [1, 2],
            [3, 4, 5],
        )
        await eventually(lambda: sorted(double.closed[MOST:]) == ["penstock-0", "penstock-1"], what="both closed")
        double.info |= {"startup_time": 2}
        await eventually(lambda: len(double.closed) == 2 * MOST + 2, what="another server")
        double.info |= {"enable_session_radix_cache": False}
        await eventually(lambda: "--enable-session-radix-cache" in api.problem, what="a plain reason")
        assert await turn(ticket("p")) is None


async def test_a_server_that_closes_none_is_left_alone() -> None:
    async with obeying(SglangDouble(status=401)) as (api, _):
        await eventually(lambda: "/close_session answers 401" in api.problem, what="a plain reason")
        assert await api.before_turn(ticket("p"), CHAT) == {}
