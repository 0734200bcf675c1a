"""The preset that knows the future: it beats those that do not, and no daemon gets it."""

from dataclasses import replace
from pathlib import Path

import pytest
from engine_operations import TOY
from experiments import experiment

from controlplane.config import parse
from controlplane.core.model.errors import ConfigError, UnknownPolicy
from controlplane.core.model.types import Program, Status, seconds
from controlplane.core.policies.presets import PRESETS
from controlplane.core.policies.protocols import Resident
from controlplane.lab.experiment import Hardware, Workload
from controlplane.lab.sim.clairvoyant import LABORATORY, Belady, Decision, simulated_preset
from controlplane.lab.sim.foresight import Foresight, Plan
from controlplane.lab.sim.session import Session
from controlplane.lab.simulate import engine_of, simulate
from controlplane.lab.sweep.local import run_in_process
from controlplane.lab.sweep.spec import SweepSpec
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.summary import Summary
from controlplane.lab.workload.synthetic import synthesize
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.trace import ProgramTrace, Turn

CLAIRVOYANT = "clairvoyant"


def summary(name: str, *, rate: float = 0.8, telemetry: Telemetry = Telemetry.FULL, replicas: int = 1) -> Summary:
    return simulate(
        experiment(
            trace=synthesize("swe-bench", programs=40, seed=3),
            arrival=Poisson(rate),
            profile=None,
            pool_tokens=60_000,
            replicas=replicas,
            preset=simulated_preset(name),
            seed=1,
            telemetry=telemetry,
        )
    ).summary


def test_in_a_pool_that_is_too_small_it_is_ahead_of_all_presets_whatever_it_is_told() -> None:
    best = min(summary(name).jct_mean_s for name in ("thunderagent", "mars", "concur", "penstock"))
    for telemetry in (Telemetry.FULL, Telemetry.NONE):
        told = summary(CLAIRVOYANT, telemetry=telemetry)
        assert told.programs_ended == 40
        assert told.jct_mean_s < 0.95 * best
    assert summary(CLAIRVOYANT, replicas=2).jct_mean_s < told.jct_mean_s


def test_a_program_that_fills_the_pool_runs_alone() -> None:
    trace = synthesize("swe-bench", programs=12, seed=3)
    assert max(program.context_tokens for program in trace.programs) > 0.93 * 14_000
    spec = experiment(
        trace=trace,
        arrival=Poisson(2.0),
        profile=None,
        pool_tokens=14_000,
        preset=simulated_preset(CLAIRVOYANT),
    )
    assert simulate(spec).summary.programs_ended == 12


def test_a_daemon_does_not_get_it() -> None:
    with pytest.raises(UnknownPolicy, match="knows the future: only simulate and sweep"):
        parse({"preset": CLAIRVOYANT})
    assert not set(LABORATORY) & set(PRESETS)
    with pytest.raises(UnknownPolicy, match="no preset 'oracle'"):
        simulated_preset("oracle")


def test_a_run_of_it_is_not_recorded(tmp_path: Path) -> None:
    workload = Workload(trace="synthetic:swe-bench", programs=2)
    spec = SweepSpec(workload=(workload,), presets=(CLAIRVOYANT,), arrivals=("poisson:1",), seeds=(1,))
    with pytest.raises(ConfigError, match="could not replay clairvoyant"):
        run_in_process(spec, record=tmp_path / "x.log")


def program(name: str, *gaps_s: float, prompt: int = 100) -> ProgramTrace:
    turns = [Turn(input_tokens=prompt, output_tokens=10, tool="t", tool_ms=1e3 * gap) for gap in gaps_s]
    return ProgramTrace(program_id=name, source="", turns=(*turns, Turn(input_tokens=prompt, output_tokens=10)))


def test_what_is_left_shrinks_with_each_turn_and_counts_long_tools_only_while_they_are_worth_it() -> None:
    plan = Plan(program("p", 1.0, 1.0), TOY, 1000, 1.0)
    assert plan.costs_ns == sorted(plan.costs_ns, reverse=True)
    long, longer = (Plan(program("p", gap_s), TOY, 1000, 1.0) for gap_s in (1e5, 2e5))
    assert long.costs_ns == longer.costs_ns
    assert Plan(program("p", 1e5), TOY, 1000, 2.0).keep_ns > long.keep_ns


def test_a_tree_is_ranked_by_what_is_left_of_all_of_it() -> None:
    root, alone = program("root", 1.0), program("alone", 1.0)
    child = replace(program("child", 1.0), parent_id="root")
    parent = Session(root)
    sessions = [parent, Session(child, parent=parent), Session(alone)]
    foresight = Foresight(sessions, [root, child, alone], engine_of(Hardware(pool_tokens=1000), profile=TOY), 0)
    whole_ns, own_ns = foresight.cost_ns(sessions[0]), foresight.cost_ns(sessions[2])
    assert foresight.cost_ns(sessions[1]) == whole_ns == 2 * own_ns
    sessions[1].ended = True
    assert foresight.cost_ns(sessions[0]) == own_ns


def test_the_context_goes_that_is_needed_last() -> None:
    programs = [program("soon", 1.0), program("late", 9.0), program("over", 1.0), program("slotless", 1.0)]
    sessions = {each.program_id: Session(each) for each in programs}
    for session in sessions.values():
        session.turn_ended_ns = seconds(5)
    sessions["over"].ended = True
    foresight = Foresight(list(sessions.values()), programs, engine_of(Hardware(pool_tokens=1000), profile=TOY), 0)
    assert foresight.due_ns(sessions["late"]) == seconds(14)
    residents = [Resident(program_id=name, blocks=2, last_used_ns=0) for name in ("\0prefix:system", *sessions)]
    records = {name: Program(program_id=name, status=Status.ACTIVE) for name in sessions}
    records["slotless"].status = Status.PAUSED
    belady = Belady(foresight, Decision(programs=records))
    fit = belady.fit(8, 8, 8, residents, 0)
    assert [name for name, _ in fit.victims] == ["over", "slotless", "late", "soon"]
