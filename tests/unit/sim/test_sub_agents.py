"""Programs that send sub-agents and wait for all of them, in the simulator."""

from pathlib import Path
from typing import Any

import pytest
from experiments import experiment

from controlplane.core.model import events as ev
from controlplane.core.model.types import seconds
from controlplane.lab.sim.ideal_time import IdealTimes
from controlplane.lab.simulate import bound_of, run_of, simulate
from controlplane.lab.workload.arrivals import Closed, Poisson
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.trace import ProgramTrace, Trace, Turn
from controlplane.wire.log import EventRecord, Header, LogWriter, read_log

CALL = Turn(input_tokens=100, output_tokens=11, tool="Task", tool_ms=1.0)
LAST = Turn(input_tokens=200, output_tokens=1)
SLOW = Turn(input_tokens=60, output_tokens=5, tool="bash", tool_ms=4000.0)


def program(name: str, *turns: Turn, **more: Any) -> ProgramTrace:
    return ProgramTrace(program_id=name, source="test", turns=turns, **more)


def tree() -> tuple[ProgramTrace, ...]:
    """A root that sends two sub-agents behind its first turn, one of which sends one of its own."""
    return (
        program("root", CALL, LAST),
        program("quick", LAST, parent_id="root"),
        program("slow", CALL, SLOW, LAST, parent_id="root"),
        program("below", SLOW, LAST, parent_id="slow"),
    )


def asked(*programs: ProgramTrace, **changes: Any) -> Any:
    return experiment(trace=Trace(programs=programs, rejected=[]), **changes)


def test_a_parents_next_turn_begins_when_the_last_of_its_sub_agents_has_ended() -> None:
    result = simulate(asked(*tree(), arrival=Poisson(1.0)))
    ended = {each.program_id: each.ended_ns for each in result.programs}
    turns = {(each.program_id, each.index): each for each in result.turns}
    assert set(ended) == {"root", "quick", "slow", "below"}
    assert turns["root", 1].queued_ns == ended["slow"] > ended["quick"]
    assert turns["slow", 1].queued_ns == ended["below"]
    assert ended["slow"] >= seconds(8), "its own tool behind that of the one below it"
    first_ns = turns["root", 0].ended_ns
    assert turns["quick", 0].queued_ns == turns["slow", 0].queued_ns == first_ns


def test_only_roots_count_as_programs_and_their_time_has_their_sub_agents_in_it() -> None:
    result = simulate(asked(*tree(), program("alone", CALL, LAST), arrival=Closed(1), pool_tokens=10_000))
    assert (result.summary.programs_ended, result.summary.turns_ended) == (2, 10)
    roots = {each.program_id: each for each in result.programs if not each.parent_id}
    assert roots["root"].completion_ns > seconds(8)
    assert result.summary.jct_mean_s * 2 == pytest.approx(
        (roots["root"].completion_ns + roots["alone"].completion_ns) / 1e9
    )
    assert roots["alone"].arrived_ns == roots["root"].ended_ns, "closed arrivals are of roots"


def test_programs_beyond_the_trace_are_whole_families_again() -> None:
    run = run_of(asked(*tree(), programs=3, arrival=Poisson(1.0)))
    assert run.roots == 3
    assert len(run.programs) == 12
    again = [each for each in run.programs if each.program_id.endswith("#3")]
    assert {each.parent_id for each in again} == {"", "root#3", "slow#3"}


@pytest.mark.parametrize(
    ("telemetry", "parents"), [("full", ["", "root", "root", "slow"]), ("runs", [""] * 4), ("none", [None] * 4)]
)
def test_the_call_is_a_tool_and_sub_agents_say_whose_they_are(
    telemetry: str, parents: list[str | None], tmp_path: Path
) -> None:
    with LogWriter(tmp_path / "log", Header(node="sim", preset="")) as log:
        simulate(asked(*tree(), arrival=Poisson(1.0), telemetry=Telemetry(telemetry)), recorder=log)
    events = [record.event for record in read_log(tmp_path / "log") if isinstance(record, EventRecord)]
    arrived = {each.program_id: each.parent_id for each in events if isinstance(each, ev.ProgramArrived)}
    assert [arrived.get(name) for name in ("root", "quick", "slow", "below")] == parents
    calls = [each for each in events if isinstance(each, ev.ToolEnded) and each.program_id == "root"]
    assert [(call.tool, call.duration_ns > seconds(8)) for call in calls] == [("Task", True)] * bool(arrived)
    assert len({each.program_id for each in events if isinstance(each, ev.TurnQueued)}) == 4


def test_sub_agents_of_a_program_that_fails_before_it_sends_them_never_begin() -> None:
    long = Turn(input_tokens=10**6, output_tokens=1, tool="bash", tool_ms=1.0)
    children = (program("c", CALL, LAST, parent_id="p", spawn_turn=1), program("cc", LAST, parent_id="c"))
    result = simulate(
        asked(
            program("p", long, CALL, LAST),
            *children,
            program("q", CALL, LAST),
            program("r", long, parent_id="q"),
            arrival=Closed(1),
            pool_tokens=10_000,
        )
    )
    failed = {each.program_id: each.failed for each in result.programs}
    assert failed == {"p": True, "q": False, "r": True}, "a sub-agent that fails holds nobody up"


def test_time_alone_and_the_bound_have_the_longest_of_the_sub_agents_in_them() -> None:
    run = run_of(asked(*tree(), arrival=Poisson(1.0)))
    times = IdealTimes(run.engine.build).of_all(run.programs, 0)
    assert times["root"] > times["slow"] > times["below"] > seconds(4)
    assert times["root"] >= times["slow"] + times["quick"] // 2
    found = bound_of(asked(*tree(), arrival=Poisson(1.0)))
    measured = simulate(asked(*tree(), arrival=Poisson(1.0)), ideal=IdealTimes(run.engine.build))
    assert seconds(8) / 1e9 < found.jct_mean_s <= measured.summary.jct_mean_s
    (root,) = [each for each in measured.programs if not each.parent_id]
    assert root.ideal_ns == pytest.approx(times["root"], rel=0.2), "beside the shared prefix"


def test_what_siblings_have_in_common_is_computed_once() -> None:
    brief = Turn(input_tokens=5000, output_tokens=1)
    hits = {}
    for family_tokens in (0, 4800):
        children = [
            program(f"c{n}", brief, parent_id="p", family_tokens=family_tokens, spawn_turn=n) for n in range(2)
        ]
        result = simulate(asked(program("p", CALL, CALL, LAST), *children, arrival=Closed(1), shared_prefix=0))
        (second,) = [each for each in result.turns if each.program_id == "c1"]
        hits[family_tokens] = second.cached_tokens
    assert hits[0] == 0
    assert hits[4800] >= 4700
