"""Runs the cells that are missing on all cores, and survives a worker that dies."""

import multiprocessing
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from controlplane.core.errors import ControlPlaneError
from controlplane.sweep import results
from controlplane.sweep.run_cell import Figures, run_cell
from controlplane.sweep.spec import Cell, SweepSpec

_MOST_DEATHS = 3  # of workers that had this cell in hand

Note = Callable[[Cell, str], None]


def run_missing(
    spec: SweepSpec,
    missing: Sequence[Cell],
    path: Path,
    jobs: int,
    note: Note,
    run: Callable[[SweepSpec, Cell], Figures] = run_cell,
) -> int:
    """Run ``missing`` on ``jobs`` processes; rows go into ``path`` as runs end.

    ``note(cell, error)`` is told of each. Returns how many went wrong. Ctrl-C loses what is in hand only.
    """
    left, deaths, failed = deque(missing), Counter[Cell](), 0
    while left:
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            in_hand: dict[Future[Figures], Cell] = {}
            try:
                while left or in_hand:
                    while left and len(in_hand) < jobs:
                        in_hand[pool.submit(run, spec, left[0])] = left[0]
                        left.popleft()
                    for future in wait(in_hand, return_when=FIRST_COMPLETED).done:
                        error = _finish(future, in_hand[future], path)
                        note(in_hand.pop(future), error)
                        failed += bool(error)
            except BrokenProcessPool:
                for cell in in_hand.values():
                    deaths[cell] += 1
                    if deaths[cell] < _MOST_DEATHS:
                        left.append(cell)
                        continue
                    why = f"its worker died {_MOST_DEATHS} times: is there memory enough? fewer --jobs need less"
                    results.append(path, cell, {}, why)
                    note(cell, why)
                    failed += 1
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return failed


def _finish(future: "Future[Figures]", cell: Cell, path: Path) -> str:
    """Write the run's row; why it has no figures, if it has none. Raises ``BrokenProcessPool``."""
    try:
        figures, error = future.result(), ""
    except BrokenProcessPool:
        raise
    except ControlPlaneError as problem:
        figures, error = {}, str(problem)
    results.append(path, cell, figures, error)
    return error
