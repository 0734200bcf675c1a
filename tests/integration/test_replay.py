"""The load generator against the engine double, its tool phases seen on a real nats-server."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import nats
import pytest
from support.daemon_process import eventually

from controlplane.core.model.events import (
    Event,
    ProgramArrived,
    ProgramEnded,
    ReplyRead,
    ToolEnded,
    ToolEnqueued,
    ToolStarted,
    TurnEnded,
)
from controlplane.lab.double.options import DoubleOptions
from controlplane.lab.double.server import run_double
from controlplane.lab.experiment import Workload
from controlplane.lab.load.options import ReplayOptions
from controlplane.lab.load.progress import ReplayProgress
from controlplane.lab.load.replay import replay
from controlplane.lab.load.tools import ToolOptions
from controlplane.lab.load.watch import StatusWatch
from controlplane.lab.workload.arrivals import Closed, Poisson
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.trace import ProgramTrace, Trace, Turn
from controlplane.transport.delivery import delivered
from controlplane.transport.subjects import all_events_subject, event_subject
from controlplane.wire.codec import decode_events

if TYPE_CHECKING:
    from support.nats import NatsServer

TIME_SCALE = 50.0
TIMEOUT_S = 240.0  # far more than is needed: the machine may be busy


class Quiet:
    """A display that keeps only the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def update(self, progress: ReplayProgress) -> None:
        pass

    def note(self, text: str) -> None:
        self.notes.append(text)

    def close(self) -> None:
        pass


@contextmanager
def engine_double(**options: object) -> Iterator[str]:
    """The engine double on a thread of its own; its URL."""
    started = threading.Event()
    found: list[str] = []
    handles: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def announce(url: str) -> None:
        found.append(url)
        started.set()

    async def run() -> None:
        stop = asyncio.Event()
        handles.append((asyncio.get_running_loop(), stop))
        await run_double(DoubleOptions(port=0, grace_s=0.5, on_ready=announce, **options), stop)  # type: ignore[arg-type]

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        assert started.wait(TIMEOUT_S), "the engine double did not start"
        yield found[0]
    finally:
        loop, stop = handles[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join(TIMEOUT_S)


def growing_program(name: str, turns: int, first_tokens: int = 3200) -> ProgramTrace:
    prompt = first_tokens
    made = []
    for _ in range(turns):
        made.append(Turn(input_tokens=prompt, output_tokens=64, tool="bash", tool_ms=300.0))
        prompt += 64 + 640
    return ProgramTrace(program_id=name, source="test", turns=tuple(made))


def options(url: str, programs: int, **more: object) -> ReplayOptions:
    trace = Trace(programs=tuple(growing_program(str(n), 4) for n in range(programs)), rejected=[])
    base = {"arrival": Closed(4), "tokens_per_word": 64, "time_scale": TIME_SCALE, **more}
    return ReplayOptions(trace=trace, url=url, **base)  # type: ignore[arg-type]


async def heard_while(
    server: "NatsServer", node: str, work: Callable[[], RunResult]
) -> tuple[RunResult, list[Event]]:
    """Run ``work`` in a thread and collect the tool events published meanwhile, until every program's end."""
    heard: list[Event] = []

    async def run() -> RunResult:
        async with await nats.connect(server.url) as connection:
            subscription = await connection.subscribe(event_subject(node, "tool"))
            await delivered(connection)
            result = await asyncio.to_thread(work)
            while sum(isinstance(event, ProgramEnded) for event in heard) < len(result.programs):
                message = await subscription.next_msg(timeout=TIMEOUT_S)
                heard.extend(decode_events(message.data).events)
        return result

    return await run(), heard


@pytest.mark.asyncio
async def test_programs_run_with_prefix_reuse_and_their_tools_are_reported(nats_server: "NatsServer") -> None:
    with engine_double(time_scale=TIME_SCALE, tokens_per_word=64) as url:
        asked = options(url, 6, nats=nats_server.url, node="replay-test", tools=ToolOptions(slots=2))
        result, heard = await heard_while(nats_server, "replay-test", lambda: replay(asked, Quiet()))
    assert result.summary.programs_ended == 6
    assert result.summary.turns_ended == 24
    first = [turn for turn in result.turns if turn.index == 0]
    later = [turn for turn in result.turns if turn.index > 0]
    assert {turn.prompt_tokens for turn in first} == {3200}
    assert all(turn.cached_tokens / turn.prompt_tokens > 0.7 for turn in later)
    assert all(turn.output_tokens == 64 for turn in result.turns)
    counts = {kind: sum(type(event) is kind for event in heard) for kind in {type(event) for event in heard}}
    assert counts == {ProgramArrived: 6, ToolEnqueued: 18, ToolStarted: 18, ToolEnded: 18, ProgramEnded: 6}
    sequences = [event.sequence for event in heard]
    assert sequences == list(range(1, len(heard) + 1))
    ended = [event for event in heard if isinstance(event, ToolEnded)]
    assert all(event.duration_ns >= 300_000_000 for event in ended)


@pytest.mark.asyncio
async def test_what_replies_call_is_told_by_the_turns_that_the_engine_tells(nats_server: "NatsServer") -> None:
    node, programs = "replay-turns", 3
    heard: list[Event] = []

    async def run(asked: ReplayOptions) -> None:
        async with await nats.connect(nats_server.url) as connection:
            subscription = await connection.subscribe(all_events_subject(node))
            await delivered(connection)
            await asyncio.to_thread(replay, asked, Quiet())
            while not all(
                sum(type(one) is kind for one in heard) == 4 * programs for kind in (ReplyRead, TurnEnded)
            ):
                heard.extend(decode_events((await subscription.next_msg(timeout=TIMEOUT_S)).data).events)

    bus = {"bus": nats_server.url, "node": node}
    with engine_double(time_scale=TIME_SCALE, tokens_per_word=64, **bus) as url:
        told = {
            "nats": nats_server.url,
            "node": node,
            "workload": Workload(trace="in hand", telemetry=Telemetry.TURNS),
        }
        await run(options(url, programs, **told))
    read = {(event.program_id, event.turn_id) for event in heard if isinstance(event, ReplyRead)}
    assert read == {(event.program_id, event.turn_id) for event in heard if isinstance(event, TurnEnded)}
    assert not [one for one in heard if isinstance(one, ProgramArrived | ProgramEnded | ToolStarted)]


def test_open_arrivals_against_a_bus_that_is_away_still_measure_everything() -> None:
    with engine_double(time_scale=TIME_SCALE, tokens_per_word=64) as url:
        display = Quiet()
        asked = options(url, 5, nats="nats://127.0.0.1:9", arrival=Poisson(2.0))
        result = replay(asked, display)
    assert result.summary.programs_ended == 5
    assert result.rate == 2.0
    assert any("tool events never reached the bus" in note for note in display.notes)


def test_an_engine_that_dies_fails_what_runs_and_the_replay_ends() -> None:
    display = Quiet()
    box: list[RunResult] = []
    asking = threading.Event()

    class Watch(Quiet):
        def update(self, progress: ReplayProgress) -> None:
            if progress.turns_ended:
                asking.set()

    with engine_double(time_scale=1.0, tokens_per_word=64) as url:
        asked = options(url, 4, time_scale=1.0)
        thread = threading.Thread(target=lambda: box.append(replay(asked, Watch())))
        thread.start()
        assert asking.wait(TIMEOUT_S)
    thread.join(TIMEOUT_S)
    (result,) = box
    assert result.summary.programs_failed == 4
    assert all(program.error for program in result.programs)
    assert display.notes == []


@pytest.mark.asyncio
async def test_a_watch_that_ends_while_it_connects_leaves_nothing_open(nats_server: "NatsServer") -> None:
    nats_server.suspend()  # its port still accepts: the kernel does that
    try:
        with StatusWatch(nats_server.url, "node"):
            await eventually(lambda: nats_server.connections_from_here > 0, what="a connection")
        assert nats_server.connections_from_here == 0
    finally:
        nats_server.resume()
