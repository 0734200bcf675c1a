"""What the simulated controller hears of programs, by what they tell."""

import pytest
from worlds import TWO_TURNS, ControllerDouble, trace_of, world_of

from controlplane.core.model import events as ev
from controlplane.lab.workload.telemetry import Telemetry, reported

PROGRAMS = tuple(trace_of(*TWO_TURNS, name=f"p{n}") for n in range(6))
OF_RUNS = (ev.ProgramArrived, ev.ToolEnqueued, ev.ToolStarted, ev.ToolEnded, ev.ProgramEnded)


def heard(telemetry: Telemetry) -> ControllerDouble:
    """All programs run to their end; what the controller heard."""
    control = ControllerDouble()
    world = world_of(*PROGRAMS, control=control, telemetry=telemetry)
    world.run()
    assert [program.failed for program in world.programs] == [False] * len(PROGRAMS)
    return control


@pytest.mark.parametrize("telemetry", Telemetry)
def test_runs_are_told_of_by_those_who_tell_and_replies_where_they_are_read(telemetry: Telemetry) -> None:
    control = heard(telemetry)
    telling = {program.program_id for program in PROGRAMS if reported(telemetry, program.program_id).run}
    assert [{event.program_id for _, event in control.of(kind)} for kind in OF_RUNS] == [telling] * len(OF_RUNS)
    assert len(telling) == {"none": 0, "turns": 0, "half": 2, "runs": 6, "full": 6}[telemetry]
    said = sorted((event.tool, event.tool_calls) for _, event in control.of(ev.TurnEnded))
    read = [("", 0)] * len(PROGRAMS) + [("bash", 1)] * len(PROGRAMS)
    assert said == (read if telemetry is Telemetry.TURNS else [("", -1)] * 2 * len(PROGRAMS))
    agents = {event.agent for _, event in control.of(ev.TurnQueued)}
    assert agents == {"test"}  # it is in their requests, whatever else is told
