"""What a replay tells of its programs beside their id."""

from dataclasses import replace
from typing import Any

import pytest
from endpoint_double import EndpointDouble
from replay_runs import Recorder, program, run

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.events import (
    Event,
    ProgramArrived,
    ProgramEnded,
    ReplyRead,
    ToolEnded,
    ToolEnqueued,
    ToolStarted,
)
from controlplane.emit.stats import EmitterStats
from controlplane.lab.experiment import Workload
from controlplane.lab.load import replay
from controlplane.lab.load.options import Observation, ReplayOptions
from controlplane.lab.load.tools import ToolOptions
from controlplane.lab.workload.arrivals import Closed
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.telemetry import Telemetry, reported
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


async def test_without_telemetry_nobody_speaks_the_daemon_is_watched_and_a_tool_takes_its_slot(
    emitters: list[EmitterDouble],
) -> None:
    seen = Observation(pressure=replay.Pressure(), window=3.0, limit=3)
    result, recorder = await told_by("none", observe=lambda: seen, arrival=Closed(6), tools=ToolOptions(slots=1))
    assert emitters == []
    assert result.summary.programs_ended == 6
    assert result.facts["telemetry"] == "none"
    assert recorder.seen[-1].limit == 3
    assert recorder.notes == []
    assert result.summary.tool_wait_mean_s > 0


@pytest.mark.parametrize("telemetry", [Telemetry.FULL, Telemetry.HALF])
async def test_who_tells_tells_all_of_its_runs_and_tools(
    telemetry: Telemetry, emitters: list[EmitterDouble]
) -> None:
    result, _ = await told_by(telemetry, run_id="one", label="h")
    telling = {f"h-one-{n:05d}" for n, asked in enumerate(PROGRAMS) if reported(telemetry, asked.program_id).run}
    for kind in (ProgramArrived, ToolEnqueued, ToolStarted, ToolEnded, ProgramEnded):
        assert {event.program_id for event in emitters[0].events if type(event) is kind} == telling
    assert result.facts["telemetry"] == telemetry


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


async def test_replies_without_a_gate_cannot_be_told_of_and_that_is_said(emitters: list[EmitterDouble]) -> None:
    _, recorder = await told_by("turns", names_turns=False)
    assert emitters[0].events == []
    assert any(note.startswith("12 replies came through no gate") for note in recorder.notes)


def test_replies_of_programs_without_a_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="telemetry: no gate reads"):
        ReplayOptions(
            trace=Trace(programs=tuple(PROGRAMS), rejected=[]),
            url="http://127.0.0.1:9",
            arrival=Closed(1),
            identity="none",
            workload=Workload(trace="in hand", telemetry=Telemetry.TURNS),
        )


def tree() -> list[ProgramTrace]:
    """A program that sends two sub-agents, and one alone."""
    root = program("root", (50, 2), (90, 2), tool="Task", tool_ms=0.0)
    child = program("child", (40, 2), (60, 2), tool_ms=1.0)
    children = [
        replace(child, program_id=f"c{n}", parent_id="root", spawn_turn=0, family_tokens=20) for n in range(2)
    ]
    return [root, *children, program("alone", (30, 2))]


async def test_a_parents_next_turn_waits_for_all_of_its_sub_agents(emitters: list[EmitterDouble]) -> None:
    result, recorder = await told_by("full", *tree(), arrival=Closed(1), shared_prefix=10)
    children = [each for each in result.programs if each.parent_id]
    (root,) = [each for each in result.programs if each.turns == 2 and not each.parent_id]
    (last,) = [each for each in result.turns if each.program_id == root.program_id and each.index == 1]
    assert last.queued_ns >= max(each.ended_ns for each in children)
    assert {each.parent_id for each in children} == {root.program_id}
    assert (len(children), result.summary.programs_ended, recorder.seen[-1].programs_ended) == (2, 2, 2)
    events = emitters[0].events
    arrived = {each.program_id: each.parent_id for each in events if isinstance(each, ProgramArrived)}
    assert [arrived[each.program_id] for each in children] == [root.program_id] * 2
    calls = [type(each) for each in events if "Tool" in type(each).__name__ and each.program_id == root.program_id]
    assert calls == [ToolEnqueued, ToolStarted, ToolEnded]


async def test_siblings_have_the_beginning_of_their_system_message_in_common() -> None:
    endpoint = EndpointDouble()
    await run(endpoint, *tree(), arrival=Closed(1), shared_prefix=10)
    systems = {}
    for body, headers in zip(endpoint.requests, endpoint.headers, strict=True):
        systems.setdefault(headers["x-session-id"], body["messages"][0]["content"].split())
    by_length = sorted(systems.values(), key=len)
    assert [len(words) for words in by_length] == [10, 10, 30, 30]
    assert by_length[2] == by_length[3]
    assert by_length[2][:10] == by_length[0]


@pytest.mark.asyncio
async def test_rollouts_name_their_group_and_have_its_prompt_in_common() -> None:
    endpoint = EndpointDouble()
    told = [
        replace(program(f"{group}{n}", (50, 2)), agent=group, shared_tokens=40, group=(group, 2))
        for group in "ab"
        for n in range(2)
    ]
    await run(endpoint, *told, arrival=Closed(4), shared_prefix=10, run_id="r")
    systems = {
        (headers["x-penstock-group-id"], headers["x-penstock-group-size"]): body["messages"][0]["content"]
        for body, headers in zip(endpoint.requests, endpoint.headers, strict=True)
    }
    assert set(systems) == {("replay-r-a", "2"), ("replay-r-b", "2")}
    assert {body["messages"][0]["content"] for body in endpoint.requests} == set(systems.values())
    assert [len(text.split()) for text in systems.values()] == [40, 40]
