"""Which runs there are to do, in an order that is balanced wherever it stops."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ab.results import Cell, Row
from ab.systems import System, code_digest, effective_digest

_SURE_S = 60.0  # what a run takes beside its arrivals, until one has shown it


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run to do."""

    cell: Cell
    system: System


def jobs(
    purpose: str,
    scenario: str,
    *,
    rates: Sequence[float],
    seeds: Sequence[int],
    systems: dict[float, list[System]],
    turning: bool = True,
) -> list[Job]:
    """All runs: seed by seed, rate by rate, and there every system, ``turning``: another one first each time."""
    planned = []
    turn = 0
    for seed in seeds:
        for rate in rates:
            here = systems[rate]
            first = turn % len(here) if turning else 0
            turn += 1
            for system in here[first:] + here[:first]:
                cell = Cell(purpose=purpose, scenario=scenario, rate=rate, seed=seed, system=system.name)
                planned.append(Job(cell=cell, system=system))
    return planned


def finished(job: Job, rows: Mapping[Cell, Row]) -> Row | None:
    """The result that is there already. One of another configuration is none."""
    row = rows.get(job.cell)
    return row if row is not None and row.toml == job.system.toml else None


def changed(job: Job, row: Row) -> bool:
    """Whether defaults or code of the system are not what they were in that run."""
    return (row.effective, row.code) != (effective_digest(job.system), code_digest(job.system))


def remaining_s(left: Sequence[Job], programs: int, rows: Sequence[Row]) -> float:
    """How long the runs that are left will take: as long as those of their rate did, by the arrivals at least."""
    total = 0.0
    for job in left:
        arrivals_s = programs / job.cell.rate
        same = [row.wall_s for row in rows if (row.cell.rate, row.programs) == (job.cell.rate, programs)]
        total += sum(same) / len(same) if same else 1.3 * arrivals_s + _SURE_S
    return total
