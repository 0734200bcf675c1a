"""What a replay tells of its programs beside their id."""

from typing import Any

import pytest
from endpoint_double import EndpointDouble
from replay_runs import Recorder, program, run

from controlplane.core.errors import ConfigError
from controlplane.core.events import Event, ProgramArrived, ProgramEnded, ReplyRead, ToolEnded
from controlplane.emit.stats import EmitterStats
from controlplane.lab.experiment import Workload
from controlplane.lab.load import replay
from controlplane.lab.load.options import Observation, ReplayOptions
from controlplane.lab.load.tools import ToolOptions
from controlplane.lab.workload.arrivals import Closed
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.telemetry import Telemetry, told
from controlplane.lab.workload.trace import ProgramTrace, Trace, Turn

BUS = "nats://127.0.0.1:9"
PROGRAMS = [program(f"p{n}", (10, 1), (20, 1)) for n in range(6)]


class EmitterDouble:
    """Keeps what it is given; ``made`` has every one."""

    made: list["EmitterDouble"]

    def __init__(self, **_options: Any) -> None:
        self.events: list[Event] = []
        self.made.append(self)

    @property
    def stats(self) -> EmitterStats:
        return EmitterStats(sent=len(self.events))

    def start(self) -> None: ...

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def emitters(monkeypatch: pytest.MonkeyPatch) -> list[EmitterDouble]:
    made: list[EmitterDouble] = []
    monkeypatch.setattr(EmitterDouble, "made", made, raising=False)
    monkeypatch.setattr(replay, "Emitter", EmitterDouble)
    return made


async def told_by(
    telemetry: str, *programs: ProgramTrace, names_turns: bool = True, **more: Any
) -> tuple[RunResult, Recorder]:
    endpoint = EndpointDouble(names_turns=names_turns)
    return await run(endpoint, *(programs or PROGRAMS), telemetry=Telemetry(telemetry), **{"nats": BUS, **more})


def kinds(events: list[Event]) -> set[str]:
    return {type(event).__name__ for event in events}


@pytest.mark.asyncio
async def test_without_telemetry_nobody_speaks_on_the_bus_and_the_daemon_is_watched_all_the_same(
    emitters: list[EmitterDouble],
) -> None:
    seen = Observation(pressure=replay.Pressure(), window=3.0, limit=3)
    result, recorder = await told_by("none", observe=lambda: seen)
    assert emitters == []
    assert result.summary.programs_ended == 6
    assert result.facts["telemetry"] == "none"
    assert recorder.seen[-1].limit == 3
    assert recorder.notes == []


@pytest.mark.asyncio
async def test_full_telemetry_tells_runs_and_tools(emitters: list[EmitterDouble]) -> None:
    result, _ = await told_by("full")
    (emitter,) = emitters
    assert kinds(emitter.events) == {"ProgramArrived", "ToolEnqueued", "ToolStarted", "ToolEnded", "ProgramEnded"}
    assert result.facts["telemetry"] == "full"


@pytest.mark.asyncio
async def test_half_of_the_programs_tell_all_and_the_same_ones_each_time(emitters: list[EmitterDouble]) -> None:
    results = [(await told_by("half", run_id=name, label="h"))[0] for name in ("one", "other")]
    telling = {n for n, asked in enumerate(PROGRAMS) if told(Telemetry.HALF, asked.program_id).run}
    assert 0 < len(telling) < len(PROGRAMS)
    for name, emitter in zip(("one", "other"), emitters, strict=True):
        names = {f"h-{name}-{n:05d}" for n in telling}
        for kind in (ProgramArrived, ProgramEnded, ToolEnded):
            assert {event.program_id for event in emitter.events if type(event) is kind} == names
    assert [result.facts["telemetry"] for result in results] == ["half", "half"]


@pytest.mark.asyncio
async def test_turns_tell_what_each_reply_calls_by_the_name_of_the_gate(emitters: list[EmitterDouble]) -> None:
    turns = (
        Turn(input_tokens=10, output_tokens=1, tool="bash", tool_ms=1.0),
        Turn(input_tokens=20, output_tokens=1, tool="human", tool_ms=1.0),
        Turn(input_tokens=30, output_tokens=1, tool="", tool_ms=1.0),
        Turn(input_tokens=40, output_tokens=1, tool="bash", tool_ms=1.0),
    )
    result, recorder = await told_by("turns", ProgramTrace(program_id="p", source="test", turns=turns))
    (name,) = (one.program_id for one in result.programs)
    assert emitters[0].events == [
        ReplyRead(program_id=name, turn_id="turn-1", tool="bash", tool_calls=1),
        ReplyRead(program_id=name, turn_id="turn-2", tool="", tool_calls=0),
        ReplyRead(program_id=name, turn_id="turn-4", tool="", tool_calls=0),
    ]
    assert recorder.notes == []


@pytest.mark.asyncio
async def test_replies_without_a_gate_cannot_be_told_of_and_that_is_said(emitters: list[EmitterDouble]) -> None:
    _, recorder = await told_by("turns", names_turns=False)
    assert emitters[0].events == []
    assert any(note.startswith("12 replies came through no gate") for note in recorder.notes)


@pytest.mark.asyncio
async def test_without_a_bus_nothing_is_told_whatever_was_asked(emitters: list[EmitterDouble]) -> None:
    result, _ = await told_by("full", nats=None)
    assert emitters == []
    assert result.facts["telemetry"] == "none"


def test_replies_of_programs_without_a_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="telemetry: no gate reads"):
        ReplayOptions(
            trace=Trace(programs=tuple(PROGRAMS), rejected=[]),
            url="http://127.0.0.1:9",
            arrival=Closed(1),
            identity="none",
            workload=Workload(trace="in hand", telemetry=Telemetry.TURNS),
        )


@pytest.mark.asyncio
async def test_a_tool_that_is_not_told_takes_its_slot_all_the_same(emitters: list[EmitterDouble]) -> None:
    result, _ = await told_by("none", arrival=Closed(6), tools=ToolOptions(slots=1))
    assert result.summary.tool_wait_mean_s > 0
