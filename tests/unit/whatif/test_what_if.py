"""A recorded run, again: the replay is near what was measured, and an alternative's figures near those of its run.

The runs are the simulator's, so that what is off is what a log does not tell.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import mkdtemp

import pytest
from rich.console import Console
from support.closed_loop import POOL_TOKENS, record

from controlplane.config import show
from controlplane.config.model import Config
from controlplane.core.model import events as ev
from controlplane.core.model.errors import ConfigError
from controlplane.core.model.types import seconds
from controlplane.core.policies.presets import PRESETS
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.simulate import simulate
from controlplane.lab.whatif.answer import Answer
from controlplane.lab.whatif.figures import NAMES, RunFigures, change, changes, expected
from controlplane.lab.whatif.observed import observe
from controlplane.lab.whatif.question import Question, amount
from controlplane.lab.whatif.recorded import read_recorded
from controlplane.lab.whatif.replays import Replays, TraceWindow
from controlplane.lab.whatif.show import show_answer
from controlplane.lab.whatif.worlds import World, shifted, with_agents
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.records import ProgramRecord, TurnRecord
from controlplane.lab.workload.synthetic import synthesize
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.wire.log import Header, LogWriter

PROGRAMS = 24


@cache
def recorded(preset: str, pool_tokens: int = POOL_TOKENS, telemetry: Telemetry = Telemetry.FULL) -> Path:
    """The log of a simulated run."""
    run = {"programs": PROGRAMS, "rate": 0.5, "seed": 3, "pool_tokens": pool_tokens, "telemetry": telemetry}
    return record(Path(mkdtemp()) / "run.jsonl", preset, **run)


@cache
def replays(preset: str, telemetry: Telemetry = Telemetry.FULL) -> Replays:
    return Replays(TraceWindow(log=recorded(preset, telemetry=telemetry), repeat=2))


@cache
def answer(preset: str, question: Question) -> Answer:
    return replays(preset).ask(question)


def test_what_is_expected_of_twice_the_pool_is_near_what_a_run_with_it_does() -> None:
    asked = answer("fcfs", Question(pool_tokens="2x"))
    predicted = asked.predicted
    assert asked.change["hit_rate"].low > 0.0 and asked.change["mean_jct_s"].high < 0.0
    none = answer("fcfs", Question()).change
    assert all(none[name].value == 0.0 and not none[name].excludes(0.0) for name in NAMES)
    found = Replays(TraceWindow(log=recorded("fcfs", 2 * POOL_TOKENS), repeat=1)).measured.figures()
    assert abs(change("mean_jct_s", found["mean_jct_s"], predicted["mean_jct_s"])) < 0.15
    assert abs(predicted["hit_rate"] - found["hit_rate"]) < 0.08


def test_silent_programs_replay_as_well() -> None:
    silent = replays("fcfs", Telemetry.NONE)
    assert {program.telemetry for program in silent.observed.programs} == {Telemetry.NONE}
    assert len(silent.observed.whole) >= PROGRAMS - 8  # who was last may yet come back
    assert abs(silent.ask(Question()).replay_error["mean_jct_s"]) < 0.1


def test_what_a_stretch_cuts_is_load_and_in_no_jct() -> None:
    log = recorded("fcfs")
    lasted_s = (read_recorded(log).end_ns - read_recorded(log).begin_ns) / 1e9
    cut = Replays(TraceWindow(log=log, since_s=0.1 * lasted_s, until_s=-0.1 * lasted_s, repeat=1))
    found = cut.ask(Question())
    assert found.stretch["cut_at_start"] > 0
    assert found.stretch["cut_at_end"] > 0
    assert 0 < found.programs[0] < PROGRAMS
    assert len(cut.observed.programs) > found.programs[0]
    assert any("cut by the stretch's edges" in note for note in found.notes)


@pytest.mark.parametrize(
    ("stretch", "said"),
    [({"since_s": 100_000.0}, "no turn was served between"), ({"until_s": 15.0}, "longer stretch")],
    ids=["without a turn", "of parts"],
)
def test_a_stretch_that_tells_too_little_is_refused(stretch: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Replays(TraceWindow(log=recorded("fcfs"), **stretch))


def test_more_agents_wait_longer_and_a_second_engine_helps() -> None:
    found = answer("fcfs", Question(agents="2x"))
    assert found.programs == (PROGRAMS, PROGRAMS, 2 * PROGRAMS)
    assert found.change["mean_jct_s"].low > 0.0
    assert any("arrivals are those" in note for note in found.notes)
    found = answer("fcfs", Question(engines="+1"))
    assert found.runs[2].facts["engines"] == "2"
    assert found.change["mean_jct_s"].high < 0.0


def test_who_would_have_been_turned_away_is_counted() -> None:
    found = Replays(TraceWindow(log=recorded("fcfs"), repeat=1))
    assert found.recorded.timeout_ns == 0, "nobody said for how long he waits: so he waits for ever"
    found.recorded.timeout_ns = seconds(20)
    notes = found.ask(Question(agents="4x", settings=("admission.window=1",))).notes
    assert any(f"of {4 * PROGRAMS} programs would have been turned" in note for note in notes), notes


def test_json_holds_what_is_promised() -> None:
    said = json.loads(json.dumps(answer("fcfs", Question(preset="penstock")).to_json(), allow_nan=False))
    for side in ("actual", "replayed", "alternative", "predicted"):
        assert said[side].keys() == {"preset", *NAMES, "programs"}
    assert said["actual"]["preset"] == "fcfs"
    assert said["alternative"]["preset"] == "penstock"
    assert all(said["change"][name].keys() == {"value", "low", "high"} for name in NAMES)
    assert said["expected"].keys() == set(NAMES)
    assert said["replay_error"].keys() == set(NAMES)


def test_no_interval_is_narrower_than_what_the_replay_is_off_by_or_than_the_means() -> None:
    found = answer("penstock", Question(preset="fcfs"))
    for name in NAMES:
        mean, one, off = found.change[name], found.expected[name], abs(found.replay_error[name])
        assert one.value == mean.value
        assert one.low <= mean.low
        assert one.high >= mean.high
        if name == "hit_rate":
            measured = found.measured[name]
            assert one.low <= max(mean.value - off, -measured)
            assert one.high >= min(mean.value + off, 1 - measured)
        else:  # a factor, as no time is below 0
            assert one.low <= (1 + mean.value) / (1 + off) - 1
            assert one.high >= (1 + mean.value) * (1 + off) - 1


def test_no_interval_reaches_where_its_figure_cannot_be() -> None:
    """A replay that is off by three times says nothing of a TTFT below 0, or of a hit rate above 1."""
    found = answer("penstock", Question(preset="fcfs"))
    for error in (3.0, -0.95):
        errors = dict.fromkeys(NAMES, error)
        runs = [outcome(10), outcome(20)]
        one = expected(runs, runs, 1, changes(runs, runs, 1), errors, dict.fromkeys(NAMES, 0.5))
        wide = replace(found, expected=one)
        for name in NAMES:
            low, high = wide.bounds(name)
            assert 0 <= low <= high, name
        assert wide.bounds("hit_rate")[1] <= 1


def test_a_few_programs_are_not_judged() -> None:
    found = answer("fcfs", Question(preset="penstock"))
    few = replace(found, programs=(3, 3, 3))
    assert shown(few).count("too few to judge (3 programs)") == len(NAMES)
    assert few.to_json()["notes"][0] == "too few to judge (3 programs)"
    assert "too few" not in shown(found)


def outcome(jct_s: float) -> RunFigures:
    """One program of one turn."""
    ended_ns = seconds(jct_s)
    turn = TurnRecord(
        program_id="p",
        index=0,
        queued_ns=0,
        admitted_ns=0,
        first_token_ns=ended_ns // 2,
        ended_ns=ended_ns,
        prompt_tokens=10,
        output_tokens=10,
        cached_tokens=5,
        hold_ns=0,
    )
    program = ProgramRecord(program_id="p", arrived_ns=0, ended_ns=ended_ns, turns=1)
    return RunFigures([program], [turn], names=["p"], whole={"p"}, warm=())


def test_one_run_differs_by_more_than_the_mean_of_several() -> None:
    """Runs come out at 10 or 20 whatever is decided: each pair says that nothing changes, two runs may not."""
    runs = [outcome(10), outcome(20)]
    mean = changes(runs, runs, 1)
    assert (mean["mean_jct_s"].low, mean["mean_jct_s"].high) == (0, 0)
    measured = dict.fromkeys(NAMES, 0.5)
    one = expected(runs, runs, 1, mean, dict.fromkeys(NAMES, 0.0), measured)
    assert (one["mean_jct_s"].low, one["mean_jct_s"].high) == (-0.5, 1.0)
    off = expected(runs, runs, 1, mean, dict.fromkeys(NAMES, 3.0), measured)
    assert (off["mean_jct_s"].low, off["mean_jct_s"].high) == (-0.75, 3.0)


def test_a_figure_that_the_replay_misses_is_said_to_be_so() -> None:
    found = answer("fcfs", Question(preset="penstock"))
    missed = replace(found, replayed={**found.replayed, "p95_ttft_s": 2 * found.measured["p95_ttft_s"]})
    text = shown(missed)
    assert "Recorded: fcfs; what if: penstock" in text
    assert "The replay misses what was measured: TTFT p95 (s) by +100.0%" in text
    assert "misses" not in shown(replace(found, replayed=found.measured))


def shown(found: Answer) -> str:
    console = Console(record=True, width=200, file=StringIO())
    show_answer(found, console)
    return console.export_text()


def test_a_wrong_setting_is_refused_with_its_path() -> None:
    with pytest.raises(ConfigError, match=r"\$\.admission\.bta: unknown key; did you mean 'beta'"):
        replays("penstock").ask(Question(settings=("admission.bta=0.5",)))


def test_amounts_are_numbers_or_changes() -> None:
    amounts = {"300": 300, "+20%": 120, "-50%": 50, "150%": 150, "2x": 200, "x0.5": 50, "+1": 101, "-1": 99}
    assert {text: amount(text, 100.0, "engines") for text in amounts} == pytest.approx(amounts)
    for text in ("many", "", "-100%", "0", "20 %x"):
        with pytest.raises(ConfigError, match="expected a number, or a change"):
            amount(text, 100.0, "engines")


# Worlds


def world() -> World:
    trace = synthesize("swe-bench", programs=6, seed=1)
    return World(trace.programs, (0, 0, seconds(5), seconds(7), seconds(7), seconds(30)))


def test_a_shifted_world_keeps_its_beginning_its_end_and_who_came_together() -> None:
    was, found = world(), shifted(world(), 1)
    times = found.arrivals_ns
    assert times != was.arrivals_ns
    assert times[0] == times[1] == 0
    assert times[3] == times[4]
    assert times[5] == pytest.approx(seconds(30), abs=2)
    assert found == shifted(was, 1)
    assert shifted(was, 0) is was


@pytest.mark.parametrize("factor", [0.5, 1.5, 2.0, 3.0])
def test_so_many_agents(factor: float) -> None:
    found = with_agents(world(), factor, 0)
    names = [program.program_id for program in found.programs]
    assert len(names) == len(set(names)) == round(6 * factor)
    assert list(found.arrivals_ns) == sorted(found.arrivals_ns)


# What a log tells


def log_of(tmp_path: Path, events: Sequence[tuple[float, ev.Event]]) -> Path:
    log = tmp_path / "told.jsonl"
    with LogWriter(log, Header(node="n", preset="fcfs")) as writer:
        for at_s, event in events:
            writer.event(replace(event, publisher=_publisher(event)), seconds(at_s))
    return log


def _publisher(event: ev.Event) -> str:
    engine = isinstance(event, ev.TurnSubmitted | ev.FirstToken | ev.TurnEnded | ev.PoolSampled)
    return "n/engine/1" if engine else "n/gate/1"


def turn(name: str, begin_s: float, end_s: float, *, program: str = "p") -> list[tuple[float, ev.Event]]:
    """A turn as its engine tells of it."""
    return [
        (begin_s, ev.TurnSubmitted(program_id=program, turn_id=name, projected_blocks=1)),
        (
            begin_s + 0.5,
            ev.FirstToken(program_id=program, turn_id=name, prefill_ns=seconds(0.5), prompt_tokens=100),
        ),
        (end_s, ev.TurnEnded(program_id=program, turn_id=name, prompt_tokens=100, output_tokens=10)),
    ]


def test_a_tools_wait_for_a_slot_is_no_time_of_its_own(tmp_path: Path) -> None:
    tool = {"program_id": "p", "call_id": "c", "tool": "bash"}
    events = [
        *turn("1", 0, 2),
        (2.0, ev.ToolEnqueued(**tool, wants_slot=True)),
        (5.0, ev.ToolStarted(**tool)),
        (6.0, ev.ToolEnded(**tool, duration_ns=seconds(1))),
        *turn("2", 7, 9),
    ]
    (program,) = observe(read_recorded(log_of(tmp_path, events))).programs
    assert program.turns[0].tool == "bash"
    assert program.turns[0].tool_ms == pytest.approx(2000)  # one second of the tool and one of the agent


def test_a_turn_beside_another_is_a_program_of_its_own(tmp_path: Path) -> None:
    events = sorted([*turn("1", 0, 6), *turn("2", 2, 4), *turn("3", 8, 9)], key=lambda each: each[0])
    found = observe(read_recorded(log_of(tmp_path, events)))
    assert [program.program_id for program in found.programs] == ["p", "p~1"]
    assert found.overlapping == 1
    assert found.whole <= {"p"}


def test_who_was_turned_away_waited_since_the_first_attempt(tmp_path: Path) -> None:
    asked = ev.TurnQueued(program_id="p", turn_id="1")
    events = [
        (0.0, asked),
        (3.0, ev.TurnAbandoned(program_id="p", turn_id="1", reason="no slot")),
        (4.0, ev.TurnQueued(program_id="p", turn_id="2")),
        *turn("2", 6, 8),
        (8.0, ev.ProgramEnded(program_id="p")),
    ]
    found = observe(read_recorded(log_of(tmp_path, events)))
    assert found.measured_turns[0].queued_ns == 0
    assert found.measured_programs[0].completion_ns == seconds(8)
    assert found.whole == {"p"}


def test_a_person_thinks_where_a_reply_calls_nothing(tmp_path: Path) -> None:
    read = ev.ReplyRead(program_id="p", turn_id="1", tool_calls=0)
    events = [*turn("1", 0, 2), (2.0, read), *turn("2", 30, 32)]
    (program,) = observe(read_recorded(log_of(tmp_path, events))).programs
    assert program.turns[0].tool == "human"
    assert program.telemetry is Telemetry.TURNS


def test_programs_that_found_all_they_could_of_one_prefix_begin_alike() -> None:
    """The first one found nothing, as nobody had brought it, and short ones found no more than they have."""
    observed = replays("fcfs").observed
    found = {turn.cached_tokens for turn in observed.measured_turns if turn.index == 0}
    assert 0 in found
    assert len(found) > 2
    assert {program.shared_tokens for program in observed.programs} == {2000}


@pytest.mark.parametrize(
    ("found", "shares"),
    [
        ((0, 60, 60, 40, 60, 60), {60}),  # one of them came before somebody had brought it all
        ((0, 10, 60, 20, 35), {10, 20, 35, 60, 28}),  # no two of them found the same
        ((0, 0, 0, 60, 60), {0, 60}),
    ],
    ids=["one prefix", "each its own", "few"],
)
def test_what_programs_share_is_told_by_their_first_turns(
    tmp_path: Path, found: Sequence[int], shares: set[int]
) -> None:
    events = []
    for number, cached in enumerate(found):
        program, at_s = f"p{number}", 10.0 * number
        submitted, first, ended = turn("1", at_s, at_s + 2, program=program)
        events += [submitted, (first[0], replace(first[1], cached_tokens=cached)), ended]
    observed = observe(read_recorded(log_of(tmp_path, events)))
    assert {program.shared_tokens for program in observed.programs} == shares


CALM_S = 10


def test_the_host_is_as_busy_as_it_was() -> None:
    """A host that becomes busy once tools run decides how many may run; a replay's tools do not make it so."""
    log = Path(mkdtemp()) / "busy.jsonl"
    calm = ev.HostSampled(cpus=2.0, cpu_use_ratio=0.1)
    busy = replace(calm, cpu_use_ratio=1.0, cpu_stall_ratio=0.99)
    asked = Experiment(
        workload=Workload(trace="in hand"),
        hardware=Hardware(pool_tokens=4 * POOL_TOKENS),
        arrival=Poisson(0.5),
        preset=PRESETS["mars"],
        trace=synthesize("swe-bench", programs=PROGRAMS, seed=3),
        host_samples=tuple((seconds(at), busy if at > CALM_S else calm) for at in range(400)),
    )
    config = show(Config(preset="mars", policies=PRESETS["mars"]))
    with LogWriter(log, Header(node="sim", preset="mars", config=config)) as writer:
        held_s = simulate(asked, recorder=writer).summary.hold_mean_s
    assert held_s > 5.0
    again = Replays(TraceWindow(log=log, repeat=1))
    (found,) = again.replayed
    assert found.summary.hold_mean_s == pytest.approx(held_s, rel=0.4)
