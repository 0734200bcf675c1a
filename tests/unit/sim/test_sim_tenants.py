"""Tenants in whole simulated runs: shares by weight, a floor beside a flood, and budgets."""

from statistics import fmean

import pytest

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.tenancy import Exhausted, Tenancy, Tenant
from controlplane.core.policies.presets import PRESETS
from controlplane.core.scheduling.rules_and_state import ControlRules
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.simulate import LoadedExperiment, run_of, simulate
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.records import ProgramRecord, TurnRecord
from controlplane.lab.workload.tenants import by_tenant, jain_of, parse_owners

SEEDS = (1, 2)


def asked(
    tenants: str, rate: float, programs: int, seed: int, rules: ControlRules | None = None
) -> LoadedExperiment:
    """Programs of SWE-bench's statistics on a pool of a few of them, at a rate in programs a second."""
    return run_of(
        Experiment(
            workload=Workload(trace="synthetic:swe-bench", programs=programs, tenants=tenants, cpus=256),
            hardware=Hardware(pool_tokens=60_000),
            arrival=Poisson(rate),
            preset=PRESETS["penstock"],
            rules=rules or ControlRules(),
            seed=seed,
        )
    )


def test_two_that_flood_get_what_their_weights_say() -> None:
    found = [simulate(asked("3:1", 0.6, 140, seed)).tenants for seed in SEEDS]
    assert fmean(results[0].kv_share for results in found) == pytest.approx(0.75, abs=0.05)
    assert all(jain_of(results) > 0.97 for results in found)
    assert all(results[0].contended_s > 100 for results in found)


def test_a_budget_stops_runs_and_its_reason_is_in_the_record() -> None:
    rules = ControlRules(tenancy=Tenancy(named={"t2": Tenant(program_turns=3)}))
    run = simulate(asked("1:1", 0.6, 20, 1, rules=rules))
    stopped = [program for program in run.programs if program.tenant == "t2"]
    assert {program.turns for program in stopped if program.failed} <= {3, 4}, "one may follow before it is told"
    assert all("budget of 3 turns" in program.error for program in stopped if program.failed)
    assert not any(program.failed for program in run.programs if program.tenant == "t1")


def test_a_tenant_that_has_spent_its_window_waits_for_the_next_one() -> None:
    tables = {
        "t2": Tenant(turns=20, window_s=300),
        "t3": Tenant(turns=20, window_s=300, exhausted=Exhausted.REFUSE),
    }
    run = simulate(asked("1:1:1", 0.6, 30, 1, rules=ControlRules(tenancy=Tenancy(named=tables))))
    assert not any(program.failed for program in run.programs if program.tenant == "t2")
    began = sorted(
        turn.admitted_ns
        for turn in run.turns
        if turn.admitted_ns is not None
        and turn.program_id in {p.program_id for p in run.programs if p.tenant == "t2"}
    )
    assert began[40] - began[0] >= 300e9, "forty turns take more than one window"
    assert any("in 300 s" in program.error for program in run.programs if program.tenant == "t3")


def test_whose_programs_are_is_drawn_by_their_parts() -> None:
    owners = parse_owners("3@9:1@1%25")
    whose = owners.draw(1000, seed=1)
    assert 850 < whose.count("t1") < 950
    assert whose == owners.draw(1000, seed=1) != owners.draw(1000, seed=2)
    assert owners.tenancy.of("t2") == Tenant(weight=1, share=0.25)


@pytest.mark.parametrize("text", ["x", "3:", "3@", "0", "3@0:1@0", "1%200"])
def test_a_wrong_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Workload(trace="t", tenants=text)


def test_shares_count_only_while_all_wait() -> None:
    def turn(program: str, queued_s: float, admitted_s: float, ended_s: float, tokens: int) -> TurnRecord:
        return TurnRecord(
            program_id=program,
            index=0,
            queued_ns=round(queued_s * 1e9),
            admitted_ns=round(admitted_s * 1e9),
            ended_ns=round(ended_s * 1e9),
            hold_ns=round((admitted_s - queued_s) * 1e9),
            prompt_tokens=tokens,
        )

    def program(name: str, tenant: str, arrived_s: float) -> ProgramRecord:
        return ProgramRecord(
            program_id=name, arrived_ns=round(arrived_s * 1e9), ended_ns=round(100e9), turns=1, tenant=tenant
        )

    programs = [program("a", "t1", 0), program("b", "t2", 0), program("c", "t1", 0), program("d", "t2", 50)]
    turns = [
        turn("a", 0, 10, 60, 100),  # held until 10
        turn("b", 5, 20, 60, 300),  # held from 5 to 20
        turn("c", 8, 18, 60, 100),  # so all wait from 5 to 18
        turn("d", 50, 50, 60, 1000),
    ]
    ours, theirs = by_tenant(programs, turns, parse_owners("3:1").tenancy)
    assert ours.contended_s == pytest.approx(13)
    assert ours.kv_share == pytest.approx(1.0), "from 10 to 18 only the first one ran"
    assert (ours.fair_share, theirs.fair_share) == (0.75, 0.25)
