"""Programs in the simulator: the turn barrier, tools, the gate, commands, and what is recorded."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
from engine_operations import TOY
from worlds import TWO_TURNS, ControllerDouble, spec, trace_of, world_of

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.errors import ConfigError, ControlPlaneError
from controlplane.core.model.types import seconds
from controlplane.core.policies.presets import PRESETS
from controlplane.lab.sim.engine_model import EngineModel
from controlplane.lab.sim.ideal_time import IdealTimes, ideal_time_ns
from controlplane.lab.simulate import run_of, simulate
from controlplane.lab.workload.arrivals import Closed
from controlplane.lab.workload.trace import Trace, Turn


def test_each_turn_takes_its_overhead_before_the_engine_has_it() -> None:
    profile = replace(TOY, turn_overhead_ns=7_000)
    control = ControllerDouble()
    world = world_of(trace_of(*TWO_TURNS), control=control, profile=profile)
    plain = world_of(trace_of(*TWO_TURNS))
    assert world.run() == plain.run() + 2 * 7_000
    assert [now_ns for now_ns, _ in control.of(ev.TurnSubmitted)] == [7_000, 7_000 + 120_000 + 5_000_000 + 7_000]
    ttfts = [[turn.first_token_ns - turn.queued_ns for turn in run.turns] for run in (world, plain)]
    assert ttfts[0] == [ttft + 7_000 for ttft in ttfts[1]]
    assert [turn.hold_ns for turn in world.turns] == [0, 0]
    alone = trace_of(*TWO_TURNS)
    solo = [ideal_time_ns(alone, EngineModel(each, pool_blocks=1000)) for each in (profile, TOY)]
    assert solo == [world.run() for world in (world_of(alone, profile=profile), world_of(alone))]
    assert solo[0] == solo[1] + 2 * 7_000
    assert ideal_time_ns(trace_of(Turn(input_tokens=999, output_tokens=1)), EngineModel(TOY, pool_blocks=9)) == 0


def test_a_turn_begins_when_the_last_one_ended_and_its_tool_returned() -> None:
    control = ControllerDouble()
    world = world_of(trace_of(*TWO_TURNS), control=control)
    end_ns = world.run()
    first_end_ns = (10 + 100 + 10) * 1000
    tool_end_ns = first_end_ns + 5_000_000
    cached = 96
    assert end_ns == tool_end_ns + (10 + 200 - cached) * 1000
    kinds = [(now_ns, type(event).__name__) for now_ns, event in control.events if event.publisher != ""]
    assert [kind for kind in kinds if "Sampled" not in kind[1]] == [
        (0, "ProgramArrived"),
        (0, "TurnQueued"),
        (0, "TurnSubmitted"),
        (110_000, "FirstToken"),
        (first_end_ns, "TurnEnded"),
        (first_end_ns, "ToolEnqueued"),
        (first_end_ns, "ToolStarted"),
        (tool_end_ns, "ToolEnded"),
        (tool_end_ns, "TurnSubmitted"),
        (end_ns, "FirstToken"),
        (end_ns, "TurnEnded"),
        (end_ns, "ProgramEnded"),
    ]
    (program,) = world.programs
    assert (program.arrived_ns, program.ended_ns, program.turns, program.failed) == (0, end_ns, 2, False)
    assert [turn.cached_tokens for turn in world.turns] == [0, cached]
    assert world.turns[1].queued_ns == tool_end_ns
    assert world.turns[1].hold_ns == 0


def test_who_was_paused_or_whose_lease_ran_out_asks_again_and_a_hold_counts_in_the_ttft() -> None:
    class Leasing(ControllerDouble):
        def tick(self, now_ns: int) -> Sequence[cmd.Command]:
            return [replace(each, ttl_ns=1_000_000) for each in super().tick(now_ns)]

    paused = ControllerDouble(ToolStarted=[cmd.Pause(program_id="p")])
    for control in (paused, Leasing()):
        world = world_of(trace_of(*TWO_TURNS), control=control, control_delay_ns=1_000_000)
        world.run()
        assert len(control.of(ev.TurnQueued)) == 2
        turn = world.turns[0]
        assert (turn.queued_ns, turn.admitted_ns, turn.hold_ns) == (0, 1_000_000, 1_000_000)
        assert turn.first_token_ns == 1_000_000 + 110_000


def test_a_turn_that_is_submitted_as_another_ends_loses_nothing() -> None:
    """b's tool returns at the very instant at which a's turn ends, 40 us after the prefill of both."""
    a = trace_of(Turn(input_tokens=100, output_tokens=41), name="a")
    b = trace_of(
        Turn(input_tokens=50, output_tokens=1, tool="bash", tool_ms=0.04),
        Turn(input_tokens=60, output_tokens=1),
        name="b",
    )
    world = world_of(b, a)
    world.run()
    assert {program.program_id: program.failed for program in world.programs} == {"a": False, "b": False}
    ends = {(turn.program_id, turn.index): turn.ended_ns for turn in world.turns}
    assert (ends["a", 0], ends["b", 0]) == (200_000, 160_000)
    assert ends["b", 1] > 200_000


def test_a_turn_that_ends_at_the_instant_of_a_command_has_ended() -> None:
    """One's tool starts at 1.12 ms and its context is discarded 1 ms later, as the other one's turn ends."""
    control = ControllerDouble(ToolStarted=[cmd.Discard(program_id="p")])
    second = trace_of(Turn(input_tokens=100, output_tokens=1), name="second")
    programs = (trace_of(*TWO_TURNS), second)
    world = world_of(*programs, control=control, arrivals_ns=[0, 1_010_000], control_delay_ns=1_000_000)
    world.run()
    (turn,) = (turn for turn in world.turns if turn.program_id == "second")
    assert (turn.admitted_ns, turn.ended_ns) == (2_010_000, 2_120_000)


def test_commands_that_cannot_take_effect_are_rejected_with_a_reason() -> None:
    control = ControllerDouble(
        ToolStarted=[
            cmd.Retain(program_id="p", ttl_ns=seconds(1), command_id=1),
            cmd.Release(program_id="p", command_id=3),
            cmd.Demote(program_id="p", command_id=4),
            cmd.Discard(program_id="p", command_id=5),
            cmd.Retain(program_id="p", ttl_ns=seconds(1), command_id=6),
            cmd.Admit(program_id="ghost", command_id=7),
            cmd.SetWindow(limit=1, window=1.0, command_id=8),
        ]
    )
    world = world_of(trace_of(*TWO_TURNS), control=control)
    world.run()
    rejected = {event.command_id: event.reason for _, event in control.of(ev.CommandRejected)}
    assert rejected == {
        4: "there is no memory below the device, unpinned only: give the engine a tier",
        6: "nothing of it is cached, or it is in use",
        7: "the program has ended",
    }
    assert world.turns[1].cached_tokens == 0  # discarded


def test_a_program_that_does_not_fit_fails_and_is_counted() -> None:
    control = ControllerDouble()
    big = trace_of(TWO_TURNS[0], Turn(input_tokens=20_000, output_tokens=1), name="big")
    world = world_of(big, trace_of(*TWO_TURNS, name="small"), control=control)
    world.run()
    records = {program.program_id: program for program in world.programs}
    assert records["big"].failed
    assert "exceed the engine's limit of 16000 tokens" in records["big"].error
    assert records["big"].turns == 1
    assert not records["small"].failed
    assert len(control.of(ev.ProgramEnded)) == 2


def test_a_controller_that_admits_nobody_is_noticed() -> None:
    with pytest.raises(ControlPlaneError, match="1 programs are held, the engine is idle"):
        world_of(trace_of(*TWO_TURNS), control=ControllerDouble(admits=False)).run()


def test_closed_arrivals_keep_their_number() -> None:
    control = ControllerDouble()
    world = world_of(
        *(trace_of(*TWO_TURNS, name=f"p{i}") for i in range(6)), control=control, arrivals_ns=None, at_once=2
    )
    world.run()
    live = peak = 0
    for _, event in control.events:
        live += isinstance(event, ev.ProgramArrived) - isinstance(event, ev.ProgramEnded)
        peak = max(peak, live)
    assert (peak, len(world.programs)) == (2, 6)


def test_samples_are_taken_every_second() -> None:
    control = ControllerDouble()
    think = Turn(input_tokens=9, output_tokens=1, tool="human", tool_ms=3500.0)
    world = world_of(trace_of(think, TWO_TURNS[1]), control=control)
    world.run()
    assert control.of(ev.ToolStarted) == [], "a person's think time is no tool"
    assert world.series.t_ns == [seconds(k) for k in range(4)]
    assert world.series.limit == [3] * 4
    assert [now_ns for now_ns, _ in control.of(ev.PoolSampled)] == world.series.t_ns
    ((_, host),) = control.of(ev.HostSampled)
    assert host.cpus == 8.0


# Whole runs, with the real controller.

FLEET = {
    "profile": replace(TOY, decode_base_ps=5_000_000_000),
    "pool_tokens": 25_000,
    "replicas": 3,
}  # 5 ms a token
SHAPES: dict[str, dict[str, Any]] = {
    "one engine": {},
    "routed": {"pool_tokens": 25_000, "replicas": 2, "routing": "round_robin"},
    "engines that come and go": FLEET | {"changes": ("die:2:20", "join:2:30", "drain:1:40")},
    "hash": FLEET | {"changes": ("die:2:20",), "routing": "hash"},
    "prefix": FLEET | {"changes": ("join:2:20",), "routing": "prefix"},
}


@pytest.mark.parametrize(("preset", "shape"), [*zip(sorted(PRESETS), cycle(SHAPES), strict=False)])
def test_every_preset_ends_every_program_and_reproduces(preset: str, shape: str) -> None:
    asked = spec(preset, **SHAPES[shape])
    ideal = IdealTimes(run_of(asked).engine.build)
    result = simulate(asked, ideal=ideal)
    assert result == simulate(asked, ideal=ideal)
    assert (result.summary.programs_ended, result.summary.turns_ended) == (12, run_of(asked).trace.turns)
    assert (result.preset, result.rate, result.label) == (preset, 0.5, f"{preset} poisson:0.5")
    assert all(program.completion_ns >= program.ideal_ns > 0 for program in result.programs)
    assert result.summary.is_routed == (shape != "one engine")


def test_a_run_may_be_longer_or_shorter_than_its_trace() -> None:
    names = [program.program_id for program in run_of(spec(programs=30)).programs]
    assert len(names) == len(set(names)) == 30
    assert names[12] == f"{names[0]}#2"
    assert names[24] == f"{names[0]}#3"
    seen: list[tuple[int, int]] = []
    result = simulate(
        spec(programs=3, arrival=Closed(2), scale_tools=0.0),
        progress=lambda ended, total, turns, now_ns: seen.append((ended, total)),
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert result.facts["scale"] == "tokens x1, outputs x1, tools x0"


def test_bad_specs_are_refused() -> None:
    with pytest.raises(ConfigError, match="cpus"):
        spec(cpus=0)
    with pytest.raises(ConfigError, match="trace: expected at least one program"):
        simulate(spec(trace=Trace(programs=(), rejected=[])))
    with pytest.raises(ConfigError, match="expected 16 <= pool_tokens, got 3"):
        spec(pool_tokens=3)
