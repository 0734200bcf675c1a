"""Runs side by side: what runs together, on which CPU, and what becomes of it when one fails."""

import sys

from ab import beside, plan
from ab.kinds import KINDS, SGLANG
from ab.systems import parse_system
from ab_rows import SCENARIO


def jobs() -> list[plan.Job]:
    systems = [parse_system(name, KINDS[SGLANG]) for name in ("stock", "static-5", "mars")]
    return plan.jobs(
        "run", SCENARIO, rates=(0.1, 0.2), seeds=(1,), systems={0.1: systems, 0.2: systems}, turning=False
    )


def test_those_of_one_rate_and_seed_run_together_and_cpus_go_round() -> None:
    found = beside.groups(jobs(), 2)
    ran = [[(job.system.name, job.cell.rate, cpu) for job, cpu in together] for together in found]
    assert ran[:2] == [[("stock", 0.1, 0), ("static-5", 0.1, 1)], [("stock", 0.2, 1), ("static-5", 0.2, 0)]]
    assert ran[2] == [("mars", 0.1, 0), ("mars", 0.2, 1)], "no CPU is left over while there is work"
    assert len(ran) == 3


def test_one_that_is_left_over_runs_alone() -> None:
    found = beside.groups(jobs()[:3], 2)
    assert [[job.system.name for job, _ in together] for together in found] == [["stock", "static-5"], ["mars"]]


def test_a_run_that_fails_ends_the_series_with_its_status() -> None:
    started = []

    def command(job: plan.Job, cpu: int) -> list[str]:
        started.append(job.system.name)
        return [sys.executable, "-c", f"raise SystemExit({7 if job.system.name == 'static-5' else 0})"]

    assert beside.run(jobs(), 2, command) == 7
    assert len(started) == 2, "the group after it has not begun"
