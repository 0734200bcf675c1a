"""Run what is not there yet, one after another, and keep each result as soon as it is finished."""

import time
from collections.abc import Sequence
from pathlib import Path

from ab import plan, results
from ab.one_run import play
from ab.scenario import Scenario
from ab.systems import System

INTERRUPTED = 130


def run(
    purpose: str,
    scenario: Scenario,
    *,
    rates: Sequence[float],
    seeds: Sequence[int],
    systems: dict[float, list[System]],
    environment: Path,
    path: Path,
    keep: Path | None,
    redo: frozenset[str],
    redo_slow: bool = False,
) -> int:
    """The exit status: 0 when all are there, 130 after Ctrl-C.

    ``redo``: systems whose results count only if their defaults and code were today's. ``redo_slow``: those of a
    machine that somebody else slowed down are done again.
    """
    jobs = plan.jobs(purpose, scenario.digest, rates=rates, seeds=seeds, systems=systems)
    rows = [row for row in results.read(path) if row.cell.scenario == scenario.digest]
    _keep_seeds_apart(purpose, seeds, rows)
    left = pending(jobs, rows, redo, redo_slow=redo_slow)
    done = len(jobs) - len(left)
    _say(f"scenario {scenario.digest}, telemetry {scenario.telemetry}: {len(jobs)} runs, {done} of them are there")
    while left:
        number = len(jobs) - len(left) + 1
        eta_s = plan.remaining_s(left, scenario.programs, rows)
        _say(f"{number}/{len(jobs)} {_shown(left[0])}; all done in {eta_s / 3600:.1f} h, {_at(eta_s)}")
        try:
            row = play(left[0], scenario, environment, keep, results.usual_ms(rows))
        except KeyboardInterrupt:
            row = None
        if row is None:
            _say("interrupted: this run is lost, the same command goes on with it")
            return INTERRUPTED
        results.append(path, row)
        rows.append(row)
        left.pop(0)
        _say(f"  {_outcome(row)}")
    return 0


def pending(
    jobs: Sequence[plan.Job], rows: Sequence[results.Row], redo: frozenset[str], *, redo_slow: bool = False
) -> list[plan.Job]:
    """Those that are still to be run: see ``run``."""
    slow = results.of_a_slow_machine(rows) if redo_slow else set()
    done = {row.cell: row for row in rows if row.cell not in slow}
    left = []
    for job in jobs:
        row = plan.finished(job, done)
        if row is None or (job.system.name in redo and plan.changed(job, row)):
            left.append(job)
        elif plan.changed(job, row):
            _say(f"kept, though its code or defaults have changed since (--redo-changed): {_shown(job)}")
    return left


def _keep_seeds_apart(purpose: str, seeds: Sequence[int], rows: Sequence[results.Row]) -> None:
    """Raises ``SystemExit`` where a window would be tuned on the seeds that it is then compared on."""
    others = {row.cell.seed for row in rows if row.cell.purpose != purpose}
    if both := sorted(others & set(seeds)):
        raise SystemExit(f"--seeds: {both} serve the other purpose (tune, run) already: take others")


def _shown(job: plan.Job) -> str:
    return f"{job.system.name} at {job.cell.rate:g}/s, seed {job.cell.seed}"


def _outcome(row: results.Row) -> str:
    figures = row.figures
    failed = f", {figures.programs_failed} FAILED: {row.errors}" if figures.programs_failed else ""
    hooks = f", {figures.hook_failures} HOOK FAILURES" if figures.hook_failures else ""
    return (
        f"mean JCT {figures.jct_mean_s:.1f} s, p95 {figures.jct_p95_s:.1f}, TTFT p99 {figures.ttft_p99_s:.2f}, "
        f"hit rate {figures.hit_rate:.2f}, makespan {figures.makespan_s:.0f}, took {row.wall_s:.0f} s"
        f"{failed}{hooks}"
    )


def _at(seconds: float) -> str:
    return time.strftime("%a %H:%M", time.localtime(time.time() + seconds))


def _say(text: str) -> None:
    print(text, flush=True)
