"""Batches of rollouts and new weights in the simulator."""

from collections import defaultdict
from itertools import pairwise

import pytest

from controlplane.core.policies.presets import PRESETS
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.arrivals import parse_arrival
from controlplane.lab.workload.records import TurnRecord
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.synthetic import synthesize

GROUPS, SIZE = 4, 4


def rollouts(preset: str, *changes: str) -> Experiment:
    """Two batches of two groups on two engines."""
    return Experiment(
        workload=Workload(trace=f"synthetic:rollouts-like-{SIZE}", programs=GROUPS * SIZE, shared_prefix=0),
        hardware=Hardware(profile="h100-qwen3-coder-30b", replicas=2, changes=changes),
        arrival=parse_arrival(f"batch:{GROUPS * SIZE // 2}"),
        preset=PRESETS[preset],
    )


def first_turns(result: RunResult) -> dict[str, list[TurnRecord]]:
    """By group."""
    found = defaultdict(list)
    for turn in result.turns:
        if not turn.index:
            found[turn.program_id.rpartition("-")[0]].append(turn)
    return found


def test_a_group_begins_alike_and_its_tasks_have_stragglers() -> None:
    programs = synthesize("rollouts-like-8", programs=800, seed=3).programs
    assert len({each.group for each in programs}) == 100
    assert len({(each.group, each.turns[0].input_tokens) for each in programs}) == 100
    turns = sorted(len(each.turns) for each in programs)
    assert turns[-40] > 3 * turns[400], "a twentieth takes three times as long as the median"


@pytest.mark.parametrize(("preset", "prefills"), [("penstock", {1}), ("fcfs", {4, 3, 2})])
def test_a_group_is_prefilled_once_and_on_one_engine_by_whom_knows_groups(preset: str, prefills: set[int]) -> None:
    result = simulate(rollouts(preset))
    for turns in first_turns(result).values():
        assert len(turns) == SIZE
        assert sum(turn.cached_tokens == 0 for turn in turns) in prefills
        if preset == "penstock":
            assert len({turn.routed.replica for turn in turns if turn.routed}) == 1


def test_a_run_of_several_engines_tells_how_far_apart_they_were() -> None:
    result = simulate(rollouts("fcfs"))
    apart, told = result.series.kv_imbalance_ratio, result.summary
    assert 0 < told.kv_imbalance_mean_ratio < told.kv_imbalance_max_ratio == max(apart) <= 1
    assert told.kv_imbalance_over_20_ratio == sum(each > 0.2 for each in apart) / len(apart)


def test_a_batch_begins_when_the_last_of_the_one_before_has_ended() -> None:
    programs = sorted(simulate(rollouts("fcfs")).programs, key=lambda each: each.arrived_ns)
    half = len(programs) // 2
    assert {each.arrived_ns for each in programs[:half]} == {0}
    assert {each.arrived_ns for each in programs[half:]} == {max(each.ended_ns for each in programs[:half])}


@pytest.mark.parametrize("preset", ["fcfs", "penstock", "thunderagent", "mori"])
def test_with_new_weights_nothing_of_ones_own_is_found_and_every_program_ends(preset: str) -> None:
    whole = simulate(rollouts(preset))
    at_ns = whole.turns[len(whole.turns) // 4].ended_ns + 1_000_000
    result = simulate(rollouts(preset, f"flush:1:{at_ns / 1e9}", f"flush:2:{at_ns / 1e9}"))
    assert len(result.programs) == len(whole.programs)
    turns = defaultdict(list)
    for turn in sorted(result.turns, key=lambda each: each.index):
        turns[turn.program_id].append(turn)
    spanning = [
        (of[0], after)
        for of in turns.values()
        for before, after in pairwise(of)
        if before.ended_ns <= at_ns < (after.admitted_ns or 0)
    ]
    assert spanning, "some acted as the weights came"
    for first, after in spanning:
        assert after.cached_tokens <= first.prompt_tokens, "no more than siblings that ran have kept of the prompt"
