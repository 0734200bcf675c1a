"""Runs the cells that are missing, and survives a worker that dies."""

import functools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

from controlplane.lab.sweep import results
from controlplane.lab.sweep.executors import Executor
from controlplane.lab.sweep.run_cell import CellOutcome, Figures, attempt, run_cell
from controlplane.lab.sweep.spec import Cell, SweepSpec

Note = Callable[[Cell, str], None]
TWICE = "its worker died twice: is there memory enough? fewer --jobs need less"


def run_missing(
    spec: SweepSpec,
    missing: Sequence[Cell],
    path: Path,
    executor: Executor,
    note: Note,
    run: Callable[[SweepSpec, Cell], Figures] = run_cell,
) -> int:
    """Run ``missing`` on ``executor``; rows go into ``path`` as runs end.

    ``note(cell, error)`` is told of each. Returns how many went wrong. A cell whose worker dies is begun once more.
    """
    task = functools.partial(attempt, run, spec)
    left, lost, failed = deque(missing), set[Cell](), 0
    in_hand: dict[Future[CellOutcome], Cell] = {}
    while left or in_hand:
        while left and len(in_hand) < executor.slots:
            cell = left.popleft()
            in_hand[executor.submit(task, cell)] = cell
        for future in wait(in_hand, return_when=FIRST_COMPLETED).done:
            cell = in_hand.pop(future)
            try:
                outcome = future.result()
            except Exception as error:
                if not executor.is_loss(error):
                    raise
                if cell not in lost:
                    lost.add(cell)
                    left.append(cell)
                    continue
                outcome = CellOutcome(error=TWICE)
            results.append(path, cell, outcome)
            note(cell, outcome.error)
            failed += bool(outcome.error)
    return failed
