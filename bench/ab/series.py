"""Run what is not there yet, and keep each result as soon as it is finished: in turn, or one on each CPU at a time.

A machine that is shared with strangers may be half as fast a quarter of an hour later. Systems that differ by a few
percent can be compared there only while they run side by side.
"""

import itertools
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ab import results
from ab.one_run import Job, play
from ab.results import Cell, Row
from ab.scenario import Scenario
from ab.systems import System, code_digest, effective_digest

INTERRUPTED = 130
_OTHERWISE_S = 60.0  # what a run takes beside its arrivals, until one has shown it


def jobs(
    scenario: str, rates: Sequence[float], seeds: Sequence[int], systems: Sequence[System], *, turning: bool = True
) -> list[Job]:
    """List all runs: seed by seed, rate by rate, there every system; ``turning``: another one first each time."""
    planned = []
    for turn, (seed, rate) in enumerate(itertools.product(seeds, rates)):
        first = turn % len(systems) if turning else 0
        for system in [*systems[first:], *systems[:first]]:
            cell = Cell(scenario=scenario, rate=rate, seed=seed, system=system.name)
            planned.append(Job(cell=cell, system=system))
    return planned


def pending(
    planned: Sequence[Job], rows: Sequence[Row], redo: frozenset[str], *, redo_slow: bool = False
) -> list[Job]:
    """List those that are still to be run; a result of another configuration is none.

    ``redo``: systems whose results count only if their defaults and code were today's. ``redo_slow``: those of a
    machine that somebody else slowed down are done again.
    """
    slow = results.of_a_slow_machine(rows) if redo_slow else set()
    done = {row.cell: row for row in rows if row.cell not in slow}
    left = []
    for job in planned:
        row = done.get(job.cell)
        if row is None or row.toml != job.system.toml or (job.system.name in redo and changed(job, row)):
            left.append(job)
        elif changed(job, row):
            _print(f"kept, though its code or defaults have changed since (--redo-changed): {job}")
    return left


def changed(job: Job, row: Row) -> bool:
    """Whether defaults or code of the system are not what they were in that run."""
    return (row.effective, row.code) != (effective_digest(job.system), code_digest(job.system))


def run(
    scenario: Scenario, planned: Sequence[Job], left: list[Job], environment: Path, path: Path, keep: Path | None
) -> int:
    """Run what is left of the plan. The exit status: 0 when all are there, 130 after Ctrl-C."""
    rows = [row for row in results.read(path) if row.cell.scenario == scenario.digest]
    done = len(planned) - len(left)
    _print(f"scenario {scenario.digest}, telemetry {scenario.telemetry}: {len(planned)} runs, {done} are there")
    while left:
        eta_s = remaining_s(left, scenario.programs, rows)
        at = time.strftime("%a %H:%M", time.localtime(time.time() + eta_s))
        _print(f"{len(planned) - len(left) + 1}/{len(planned)} {left[0]}; all done in {eta_s / 3600:.1f} h, {at}")
        try:
            row = play(left[0], scenario, environment, keep, results.usual_ms(rows))
        except KeyboardInterrupt:
            row = None
        if row is None:
            _print("interrupted: this run is lost, the same command goes on with it")
            return INTERRUPTED
        results.append(path, row)
        rows.append(row)
        left.pop(0)
        _print(f"  {_outcome(row)}")
    return 0


def remaining_s(left: Sequence[Job], programs: int, rows: Sequence[Row]) -> float:
    """Estimate how long those runs take: as long as those of their rate did, by the arrivals at least."""
    total = 0.0
    for job in left:
        same = [row.wall_s for row in rows if (row.cell.rate, row.programs) == (job.cell.rate, programs)]
        total += sum(same) / len(same) if same else 1.3 * programs / job.cell.rate + _OTHERWISE_S
    return total


def _outcome(row: Row) -> str:
    figures = row.figures
    failed = f", {figures.programs_failed} FAILED: {row.errors}" if figures.programs_failed else ""
    hooks = f", {figures.hook_failures} HOOK FAILURES" if figures.hook_failures else ""
    return (
        f"mean JCT {figures.jct_mean_s:.1f} s, p95 {figures.jct_p95_s:.1f}, TTFT p99 {figures.ttft_p99_s:.2f}, "
        f"hit rate {figures.hit_rate:.2f}, makespan {figures.makespan_s:.0f}, took {row.wall_s:.0f} s"
        f"{failed}{hooks}"
    )


def _print(text: str) -> None:
    print(text, flush=True)


def groups(left: Sequence[Job], cpus: int) -> list[list[tuple[Job, int]]]:
    """Group what runs together, each with its CPU: those of one rate and seed; a system's CPU goes round.

    Where a CPU were left over, what is left of other rates and seeds runs there: a neighbour slows a run down too.
    """
    full: list[list[Job]] = []
    rest: list[Job] = []
    for _, same in itertools.groupby(left, key=lambda job: (job.cell.rate, job.cell.seed)):
        cell = list(same)
        fitting = len(cell) - len(cell) % cpus
        full += _parts(cell[:fitting], cpus)
        rest += cell[fitting:]
    return [
        [(job, (place + number) % cpus) for place, job in enumerate(together)]
        for number, together in enumerate(full + _parts(rest, cpus))
    ]


def _parts(left: Sequence[Job], size: int) -> list[list[Job]]:
    return [list(left[start : start + size]) for start in range(0, len(left), size)]


def run_at_once(left: Sequence[Job], cpus: int, command_of: Callable[[Job, int], Sequence[str]]) -> int:
    """Run one process a CPU. The exit status: 0 when all are done, 130 after Ctrl-C, else the first failure's."""
    for together in groups(left, cpus):
        processes = [subprocess.Popen(command_of(job, cpu)) for job, cpu in together]
        try:
            statuses = [process.wait() for process in processes]
        except KeyboardInterrupt:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()
            return INTERRUPTED
        if failed := [status for status in statuses if status]:
            return failed[0]
    return 0
