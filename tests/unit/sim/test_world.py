"""Programs in the simulator: the turn barrier, tools, the gate, commands, and what is recorded."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_operations import TOY
from experiments import experiment

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.controller import Controller
from controlplane.core.errors import ConfigError, ControlPlaneError
from controlplane.core.policies import Window
from controlplane.core.presets import PRESETS
from controlplane.core.types import Pressure, seconds
from controlplane.lab.experiment import Experiment
from controlplane.lab.sim.engine_model import EngineModel
from controlplane.lab.sim.fleet import Fleet, Site
from controlplane.lab.sim.hardware import Profile
from controlplane.lab.sim.kernel import Kernel
from controlplane.lab.sim.publisher import Publisher
from controlplane.lab.sim.session import Session
from controlplane.lab.sim.solo import IdealTimes, solo_ns
from controlplane.lab.sim.world import World
from controlplane.lab.simulate import run_of, simulate
from controlplane.lab.workload.arrivals import Closed
from controlplane.lab.workload.synthetic import synthesize
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.trace import ProgramTrace, Trace, Turn
from controlplane.wire.log import CommandRecord, EventRecord, Header, LogWriter, TickRecord, read_log


class ControllerDouble:
    """Admits everybody, or nobody; answers events with scripted commands."""

    def __init__(self, *, admits: bool = True, **answers: list[cmd.Command]) -> None:
        self.window = Window(limit=3, window=3.5, reason="")
        self.pressure = Pressure()
        self.events: list[tuple[int, ev.Event]] = []
        self._admits = admits
        self._answers = answers
        self._due: list[cmd.Command] = []

    def receive(self, event: ev.Event, now_ns: int) -> None:
        self.events.append((now_ns, event))
        if isinstance(event, ev.TurnQueued) and self._admits:
            self._due.append(cmd.Admit(program_id=event.program_id))
        self._due += self._answers.get(type(event).__name__, [])

    def next_deadline_ns(self) -> int | None:
        return 0 if self._due else None

    def tick(self, now_ns: int) -> Sequence[cmd.Command]:
        due, self._due = self._due, []
        return due

    def of(self, kind: type[ev.Event]) -> list[tuple[int, Any]]:
        return [(now_ns, event) for now_ns, event in self.events if type(event) is kind]


def trace_of(*turns: Turn, name: str = "p") -> ProgramTrace:
    return ProgramTrace(program_id=name, source="test", turns=turns)


def world_of(
    *programs: ProgramTrace,
    control: Any = None,
    pool_blocks: int = 1000,
    profile: Profile = TOY,
    telemetry: Telemetry = Telemetry.FULL,
    **options: Any,
) -> World:
    publisher = Publisher("sim/engine/1")
    engine = EngineModel(profile, pool_blocks=pool_blocks, publisher=publisher)
    options = {"arrivals_ns": [0] * len(programs), "control_delay_ns": 0} | options
    return World(
        Kernel(),
        Fleet([Site(engine, publisher)]),
        control or ControllerDouble(),
        [Session(program, telemetry=telemetry) for program in programs],
        **options,
    )


TWO_TURNS = (
    Turn(input_tokens=100, output_tokens=11, tool="bash", tool_ms=5.0),
    Turn(input_tokens=200, output_tokens=1),
)


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
    solo = [solo_ns(alone, EngineModel(each, pool_blocks=1000)) for each in (profile, TOY)]
    assert solo[0] == solo[1] + 2 * 7_000


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


def test_every_publisher_counts_its_events_without_gaps() -> None:
    control = ControllerDouble()
    world_of(*(trace_of(*TWO_TURNS, name=f"p{i}") for i in range(5)), control=control).run()
    sequences: dict[str, list[int]] = {}
    for _, event in control.events:
        sequences.setdefault(event.publisher, []).append(event.sequence)
    assert set(sequences) == {"sim/gate/1", "sim/engine/1", "sim/tool/1"}
    for numbers in sequences.values():
        assert numbers == list(range(1, len(numbers) + 1))


def test_a_turn_that_ends_at_the_instant_at_which_another_comes_has_ended() -> None:
    """The second program's turn takes 110 us and ends just when the tool of the first returns."""
    tool_end_ns = (10 + 100 + 10) * 1000 + 5_000_000
    second = trace_of(Turn(input_tokens=100, output_tokens=1), name="second")
    world = world_of(trace_of(*TWO_TURNS), second, arrivals_ns=[0, tool_end_ns - 110_000])
    world.run()
    assert {program.program_id: program.failed for program in world.programs} == {"p": False, "second": False}
    (turn,) = (turn for turn in world.turns if turn.program_id == "second")
    assert (turn.first_token_ns, turn.ended_ns) == (tool_end_ns, tool_end_ns)


def test_a_turn_that_ends_at_the_instant_of_a_command_has_ended() -> None:
    """One's tool starts at 1.12 ms and its context is discarded 1 ms later, as the other one's turn ends."""
    control = ControllerDouble(ToolStarted=[cmd.Discard(program_id="p")])
    second = trace_of(Turn(input_tokens=100, output_tokens=1), name="second")
    programs = (trace_of(*TWO_TURNS), second)
    world = world_of(*programs, control=control, arrivals_ns=[0, 1_010_000], control_delay_ns=1_000_000)
    world.run()
    (turn,) = (turn for turn in world.turns if turn.program_id == "second")
    assert (turn.admitted_ns, turn.ended_ns) == (2_010_000, 2_120_000)


def test_a_hold_counts_in_the_time_to_first_token() -> None:
    world = world_of(trace_of(TWO_TURNS[1]), control_delay_ns=1_000_000)
    world.run()
    (turn,) = world.turns
    assert (turn.queued_ns, turn.admitted_ns, turn.hold_ns) == (0, 1_000_000, 1_000_000)
    assert turn.first_token_ns == 1_000_000 + 210_000


def test_think_time_is_a_gap_without_tool_events() -> None:
    control = ControllerDouble()
    turns = (Turn(input_tokens=9, output_tokens=1, tool="human", tool_ms=60_000.0), TWO_TURNS[1])
    assert world_of(trace_of(*turns), control=control).run() > seconds(60)
    assert control.of(ev.ToolStarted) == []


def test_tools_wait_for_a_slot() -> None:
    control = ControllerDouble()
    world_of(*(trace_of(*TWO_TURNS, name=f"p{i}") for i in range(3)), control=control, tool_slots=1).run()
    starts = [now_ns for now_ns, _ in control.of(ev.ToolStarted)]
    ends = [now_ns for now_ns, _ in control.of(ev.ToolEnded)]
    assert starts[1:] == ends[:-1]
    assert len(control.of(ev.ToolEnqueued)) == 3


def test_a_paused_program_asks_again() -> None:
    control = ControllerDouble(ToolStarted=[cmd.Pause(program_id="p")])
    world_of(trace_of(*TWO_TURNS), control=control).run()
    assert len(control.of(ev.TurnQueued)) == 2


def test_a_lease_that_ran_out_is_asked_for_again() -> None:
    class Leasing(ControllerDouble):
        def tick(self, now_ns: int) -> Sequence[cmd.Command]:
            return [
                cmd.Admit(program_id=c.program_id, ttl_ns=1_000_000)
                for c in super().tick(now_ns)
                if isinstance(c, cmd.Admit)
            ]

    control = Leasing()
    world_of(trace_of(*TWO_TURNS), control=control).run()
    assert len(control.of(ev.TurnQueued)) == 2


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
    world = world_of(
        trace_of(Turn(input_tokens=9, output_tokens=1, tool="t", tool_ms=3500.0), TWO_TURNS[1]), control=control
    )
    world.run()
    assert world.series.t_ns == [seconds(k) for k in range(4)]
    assert world.series.limit == [3] * 4
    assert [now_ns for now_ns, _ in control.of(ev.PoolSampled)] == world.series.t_ns
    ((_, host),) = control.of(ev.HostSampled)
    assert host.cpus == 8.0


# Whole runs, with the real controller.


def spec(preset: str = "mars", **changes: Any) -> Experiment:
    # A prefix that others left warm may beat the ideal time.
    return experiment(**{"pool_tokens": 40_000, "shared_prefix": 0, "preset": PRESETS[preset], **changes})


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_ends_every_program_and_reproduces(preset: str) -> None:
    ideal = IdealTimes(run_of(spec()).engine.build)
    result = simulate(spec(preset), ideal=ideal)
    again = simulate(spec(preset), ideal=ideal)
    assert result == again
    assert result.summary.programs_ended == 12
    assert result.summary.turns_ended == run_of(spec()).trace.turns
    assert (result.preset, result.rate, result.label) == (preset, 0.5, f"{preset} poisson:0.5")
    assert result.facts["profile"] == "toy"
    for program in result.programs:
        assert program.completion_ns >= program.ideal_ns > 0


def test_alone_a_program_takes_its_ideal_time() -> None:
    program = synthesize("swe-bench", programs=1).programs[0]
    world = world_of(program, pool_blocks=10_000)
    engine = EngineModel(TOY, pool_blocks=10_000)
    assert world.run() == solo_ns(program, engine)
    assert solo_ns(trace_of(Turn(input_tokens=999, output_tokens=1)), EngineModel(TOY, pool_blocks=9)) == 0


def test_a_run_can_be_recorded_and_replays_to_the_same_commands(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with LogWriter(path, Header(node="sim", preset="mars")) as log:
        simulate(spec(), recorder=log)
    controller = Controller(PRESETS["mars"], spec().rules)
    replayed: list[cmd.Command] = []
    recorded: list[cmd.Command] = []
    for record in read_log(path):
        if isinstance(record, EventRecord):
            controller.receive(record.event, record.now_ns)
        elif isinstance(record, TickRecord):
            replayed += controller.tick(record.now_ns)
        elif isinstance(record, CommandRecord):
            recorded.append(record.command)
    assert replayed == recorded
    assert any(isinstance(command, cmd.Admit) for command in recorded)


def test_a_run_may_be_longer_or_shorter_than_its_trace() -> None:
    names = [program.program_id for program in run_of(spec(programs=30)).programs]
    assert len(names) == len(set(names)) == 30
    assert names[12] == f"{names[0]}#2"
    assert names[24] == f"{names[0]}#3"
    assert simulate(spec(programs=3, arrival=Closed(2))).summary.programs_ended == 3


def test_progress_is_reported() -> None:
    seen: list[tuple[int, int]] = []
    simulate(spec(), progress=lambda ended, total, turns, now_ns: seen.append((ended, total)))
    assert seen == [(k, 12) for k in range(1, 13)]


def test_scale_is_applied_and_reported() -> None:
    small = simulate(spec(scale_tokens=0.1, scale_outputs=0.1, scale_tools=0.0))
    assert small.facts["scale"] == "tokens x0.1, outputs x0.1, tools x0"
    assert small.summary.jct_mean_s < simulate(spec()).summary.jct_mean_s / 5


def test_bad_specs_are_refused() -> None:
    with pytest.raises(ConfigError, match="cpus"):
        spec(cpus=0)
    with pytest.raises(ConfigError, match="trace: expected at least one program"):
        simulate(spec(trace=Trace(programs=(), rejected=[])))
    with pytest.raises(ConfigError, match="expected 16 <= pool_tokens, got 3"):
        spec(pool_tokens=3)
