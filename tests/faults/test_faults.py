"""Seeds of the simulator, its power to find what was wrong, and that everything follows from a seed."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from .faults import KINDS
from .flaws import FLAWS
from .shrink import shrunk
from .world import plan_of, simulate

ROOT = Path(__file__).parents[2]
SEEDS = range(10)
MOST_SEEDS = 25  # until a flaw must be found


def test_nothing_is_broken_where_nothing_fails() -> None:
    for seed in range(3):
        result = simulate(replace(plan_of(seed), faults=()))
        assert not result.violations
        assert result.entries >= result.plan.programs


@pytest.mark.parametrize("seed", SEEDS)
def test_no_promise_is_broken(seed: int) -> None:
    result = simulate(plan_of(seed))
    assert not result.violations, f"python -m tests.faults --seed {seed}\n{result.violations[0]}"
    assert result.entries > 0


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_alone_and_again(kind: str) -> None:
    result = simulate(plan_of(1000, kinds=[kind], horizon_s=40.0))
    assert not result.violations
    assert result.counts[kind] >= 1


@pytest.mark.parametrize("name", FLAWS)
def test_the_simulator_finds_known_flaws(name: str) -> None:
    """Each by what it breaks, in a run that is clean without it."""
    flaw = FLAWS[name]

    def shows(seed: int) -> bool:
        with flaw.put_back():
            broken = simulate(flaw.plan(seed)).violations
        return any(flaw.breaks in rule for rule in broken) and not simulate(flaw.plan(seed)).violations

    assert any(shows(seed) for seed in (flaw.soonest, *range(MOST_SEEDS))), (
        f"{MOST_SEEDS} seeds did not find: {name}"
    )


def test_a_pause_that_a_gate_missed_is_made_up_for() -> None:
    """The gate went on to tell of its grant, and the program that had ended was taken for active."""
    plan = replace(plan_of(35, kinds=["messages are lost", "daemon is killed"]), longest_gap_s=3.0)
    assert not simulate(plan).violations


DENSE = {
    (115, 60): (
        "disk is full",
        "daemon is killed",
        "snapshots do not fit",
        "power is lost",
        "NATS is restarted",
        "snapshot is damaged",
    ),
    (202, 40): ("NATS is replaced", "agents are cut off", "clock is stepped at a restart", "messages are lost"),
    (9, 200): ("daemon is killed", "NATS is restarted", "server is killed", "second daemon", "daemon is replaced"),
    (3, 80): (),
}


@pytest.mark.parametrize(("seed", "most_faults"), DENSE)
def test_dense_faults_break_no_promise(seed: int, most_faults: int) -> None:
    """A disk that fills while the daemon recovers, empty servers, a storm of restarts, everything at once."""
    plan = plan_of(seed, kinds=DENSE[seed, most_faults], most_faults=most_faults)
    assert not simulate(replace(plan, longest_gap_s=3.0, settle_s=500.0)).violations


def test_a_failing_history_is_shrunk() -> None:
    with FLAWS["D4: a full disk ends the decisions"].put_back():
        failed = next(result for seed in range(MOST_SEEDS) if (result := simulate(plan_of(seed))).violations)
        short = shrunk(failed, simulate)
    assert short.violations
    assert len(short.plan.faults) == 1
    assert short.plan.programs <= failed.plan.programs


def test_everything_follows_from_the_seed() -> None:
    """Also in another process, where sets of names have another order."""
    code = "from tests.faults.world import plan_of, simulate; print(simulate(plan_of(3)).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert digests == {simulate(plan_of(3)).digest + "\n"}
