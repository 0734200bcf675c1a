"""What the simulated controller hears of programs, by what they tell."""

import pytest
from test_world import TWO_TURNS, ControllerDouble, trace_of, world_of

from controlplane.core import events as ev
from controlplane.lab.workload.telemetry import Telemetry, told

PROGRAMS = tuple(trace_of(*TWO_TURNS, name=f"p{n}") for n in range(6))
OF_RUNS = (ev.ProgramArrived, ev.ToolEnqueued, ev.ToolStarted, ev.ToolEnded, ev.ProgramEnded)


def heard(telemetry: Telemetry) -> ControllerDouble:
    """All programs run to their end; what the controller heard."""
    control = ControllerDouble()
    world = world_of(*PROGRAMS, control=control, telemetry=telemetry)
    world.run()
    assert [program.failed for program in world.programs] == [False] * len(PROGRAMS)
    return control


def names(control: ControllerDouble, kind: type[ev.Event]) -> set[str]:
    return {event.program_id for _, event in control.of(kind)}


def test_without_telemetry_neither_tools_nor_ends_are_heard() -> None:
    control = heard(Telemetry.NONE)
    assert [control.of(kind) for kind in OF_RUNS] == [[]] * len(OF_RUNS)
    ended = [event for _, event in control.of(ev.TurnEnded)]
    assert {event.program_id for event in ended} == {program.program_id for program in PROGRAMS}
    assert {(event.tool, event.tool_calls) for event in ended} == {("", -1)}


def test_of_turns_it_is_heard_what_they_call() -> None:
    control = heard(Telemetry.TURNS)
    assert [control.of(kind) for kind in OF_RUNS] == [[]] * len(OF_RUNS)
    said = [(event.tool, event.tool_calls) for _, event in control.of(ev.TurnEnded)]
    assert sorted(said) == [("", 0)] * len(PROGRAMS) + [("bash", 1)] * len(PROGRAMS)


@pytest.mark.parametrize("telemetry", [Telemetry.HALF, Telemetry.FULL])
def test_who_tells_tells_all(telemetry: Telemetry) -> None:
    control = heard(telemetry)
    telling = {program.program_id for program in PROGRAMS if told(telemetry, program.program_id).run}
    assert [names(control, kind) for kind in OF_RUNS] == [telling] * len(OF_RUNS)
    assert len(telling) == (6 if telemetry is Telemetry.FULL else 2)
