"""Engines that die, drain and join while a run lasts: no program is lost, and none loses its place."""

from dataclasses import replace

import pytest
from engine_operations import TOY
from msgspec.structs import replace as replaced
from worlds import spec

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.types import seconds
from controlplane.core.policies.admission.fixed import Fixed
from controlplane.core.policies.presets import PRESETS
from controlplane.lab.experiment import Experiment
from controlplane.lab.sim.changes import parse_changes
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.run import RunResult

TWO = "sim/engine-2"
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


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (("dies:1:5",), 'expected "die:ENGINE:AT_S"'),
        (("die:4:5",), "up to 3"),
        (("die:x:5",), "got 'die:x:5'"),
        (("die:1:-1",), "got"),
        (("die:1:5", "drain:1:6"), "engine 1 is not there at 6s"),
        (("die:1:5", "flush:1:6"), "engine 1 is not there at 6s"),
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
    result = simulate(changed(f"join:2:{2 * at_s}", f"die:2:{at_s}"))
    assert result.facts["changes"] == f"join:2:{2 * at_s}, die:2:{at_s}"
    cut = [turn for turn in result.turns if turn.attempts > 1]
    assert result.summary.turns_cut == len(cut) > 0
    assert result.summary.programs_ended == 12
    assert result.summary.turns_ended == whole.summary.turns_ended
    assert all(turn.routed and turn.routed.replica != TWO for turn in cut)
    away = [turn for turn in result.turns if seconds(at_s) < turn.admitted_ns < seconds(2 * at_s)]
    assert away
    assert TWO not in {turn.routed.replica for turn in away}
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


@pytest.mark.parametrize("kind", ["drain", "join"])
def test_an_engine_gets_programs_until_it_drains_or_once_it_has_joined(kind: str) -> None:
    at_s = span_s(simulate(changed())) / 4
    result = simulate(changed(f"{kind}:2:{at_s}", arrival=Poisson(12 / (3 * at_s))))
    assert result.summary.turns_cut == 0
    times = [turn.admitted_ns for turn in result.turns if turn.routed and turn.routed.replica == TWO]
    assert times
    assert max(times) <= seconds(at_s) if kind == "drain" else min(times) >= seconds(at_s)
