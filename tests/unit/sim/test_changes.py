"""Engines that die, drain and join while a run lasts: no program is lost, and none loses its place."""

from dataclasses import replace

import pytest
from engine_operations import TOY
from msgspec.structs import replace as replaced
from test_world import spec

from controlplane.core.admission.fixed import Fixed
from controlplane.core.errors import ConfigError
from controlplane.core.presets import PRESETS
from controlplane.core.types import seconds
from controlplane.lab.experiment import Experiment
from controlplane.lab.sim.changes import Change, parse_changes, serving_at_first
from controlplane.lab.simulate import run_of, simulate
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.run import RunResult

TWO = "sim/engine-2"
CHANGES = ("die:2:20", "join:2:30", "drain:1:40")
SLOW = replace(TOY, decode_base_ps=5_000_000_000)  # a token in 5 ms, so that there are turns to cut off


def changed(*changes: str, preset: str = "fcfs", window: int = 0, **options: object) -> Experiment:
    """Three small engines; ``window`` > 0: so many programs at once."""
    asked = spec(preset, **({"profile": SLOW, "pool_tokens": 25_000, "replicas": 3} | options))
    asked = with_changes(asked, *changes)
    return replace(asked, preset=replace(PRESETS[preset], admission=Fixed(window=window))) if window else asked


def with_changes(asked: Experiment, *changes: str) -> Experiment:
    return replace(asked, hardware=replaced(asked.hardware, changes=changes))


def span_s(result: RunResult) -> float:
    return result.summary.makespan_s


def test_changes_are_read_in_the_order_of_time() -> None:
    found = parse_changes(("join:3:20", "die:2:10.5"), 3)
    assert found == (
        Change(kind="die", engine=2, at_ns=seconds(10.5)),
        Change(kind="join", engine=3, at_ns=seconds(20)),
    )
    assert serving_at_first(found, 3) == {1, 2}


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (("dies:1:5",), 'expected "die:ENGINE:AT_S"'),
        (("die:1",), "expected"),
        (("die:4:5",), "up to 3"),
        (("die:x:5",), "got 'die:x:5'"),
        (("die:1:-1",), "got"),
        (("die:1:5", "drain:1:6"), "engine 1 is not there at 6s"),
        (("die:1:5", "join:1:6", "join:1:7"), "engine 1 is there already at 7s"),
        (("die:1:5", "drain:2:6", "die:3:7"), "no engine takes programs after 7s"),
        (("join:1:5", "join:2:5", "join:3:5"), "no engine is there at the start"),
    ],
)
def test_changes_that_cannot_be_are_refused(texts: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as e:
        parse_changes(texts, 3)
    assert e.value.field == "changes"


def test_turns_of_an_engine_that_dies_are_sent_again_and_end_elsewhere() -> None:
    whole = simulate(changed())
    at_s = span_s(whole) / 4
    result = simulate(changed(f"die:2:{at_s}"))
    cut = [turn for turn in result.turns if turn.attempts > 1]
    assert result.summary.turns_cut == len(cut) > 0
    assert result.summary.programs_ended == 12
    assert result.summary.turns_ended == whole.summary.turns_ended
    assert all(turn.routed and turn.routed.replica != TWO for turn in cut)
    late = [turn for turn in result.turns if turn.routed and turn.admitted_ns and turn.admitted_ns > seconds(at_s)]
    assert late
    assert TWO not in {turn.routed.replica for turn in late if turn.routed}
    assert all(turn.hold_ns == 0 for turn in cut), "what the dead engine took of it is no hold"
    assert all(turn.ended_ns - turn.queued_ns > seconds(1) for turn in cut), "its client has waited all the same"


def test_programs_of_an_engine_that_dies_keep_their_slots_and_their_place_in_the_queue() -> None:
    """Six are in, six wait. Of those that were in none waits again, and nobody is overtaken."""
    plain = changed(window=6, arrival=Poisson(20.0))
    at_s = span_s(simulate(plain)) / 3
    result = simulate(with_changes(plain, f"die:2:{at_s}"))
    assert result.summary.turns_cut > 0
    firsts = sorted((turn for turn in result.turns if not turn.index), key=lambda turn: turn.queued_ns)
    admitted = [turn.admitted_ns for turn in firsts if turn.attempts == 1]
    assert admitted == sorted(admitted), "newcomers in the order in which they came"
    again = [turn for turn in result.turns if turn.attempts > 1 or turn.index]
    assert max(turn.hold_ns for turn in again) == 0, "who had a slot has it still"


def test_an_engine_that_drains_ends_its_turns_and_gets_no_more() -> None:
    at_s = span_s(simulate(changed())) / 4
    result = simulate(changed(f"drain:2:{at_s}"))
    assert result.summary.turns_cut == 0
    on_it = [turn for turn in result.turns if turn.routed and turn.routed.replica == TWO]
    assert on_it
    assert all(turn.admitted_ns is not None and turn.admitted_ns <= seconds(at_s) for turn in on_it)


def test_an_engine_that_joins_takes_programs() -> None:
    at_s = span_s(simulate(changed())) / 4
    asked = changed(f"join:2:{at_s}", arrival=Poisson(12 / (3 * at_s)))
    result = simulate(asked)
    on_it = [turn for turn in result.turns if turn.routed and turn.routed.replica == TWO]
    assert on_it
    assert all(turn.admitted_ns is not None and turn.admitted_ns >= seconds(at_s) for turn in on_it)


def test_an_engine_that_died_may_come_back_with_nothing() -> None:
    at_s = span_s(simulate(changed())) / 4
    result = simulate(changed(f"die:2:{at_s}", f"join:2:{1.2 * at_s}"))
    assert result.summary.programs_ended == 12
    assert result.facts["changes"] == f"die:2:{at_s}, join:2:{1.2 * at_s}"


@pytest.mark.parametrize(
    ("preset", "routing"),
    [(preset, "") for preset in sorted(PRESETS)]
    + [("penstock", routing) for routing in ("round_robin", "least_loaded", "hash", "prefix")],
)
def test_every_preset_ends_every_program_whatever_comes_and_goes(preset: str, routing: str) -> None:
    asked = changed(*CHANGES, preset=preset, routing=routing)
    result = simulate(asked)
    assert result == simulate(asked)
    assert (result.summary.programs_ended, result.summary.turns_ended) == (12, run_of(asked).trace.turns)
