"""Worker doubles: functions in place of ``run_cell``, importable by a spawned process."""

import os
import signal
import time
from pathlib import Path

from controlplane.core.errors import ControlPlaneError
from controlplane.lab.sweep.results import FIGURES
from controlplane.lab.sweep.run_cell import Figures
from controlplane.lab.sweep.spec import Cell, SweepSpec


def figures_of(spec: SweepSpec, cell: Cell) -> Figures:
    """At once."""
    return dict.fromkeys(FIGURES, 1.0) | {"rate": 0.5, "jct_mean_s": float(cell.seed)}


def dies_once(spec: SweepSpec, cell: Cell) -> Figures:
    """The first worker that gets seed 2 is killed; ``spec.workload[0].name`` is the folder for its mark."""
    mark = Path(spec.workload[0].name) / f"died-{cell.preset}"
    if cell.seed == 2 and not mark.exists():
        mark.touch()
        os._exit(9)
    return figures_of(spec, cell)


def always_dies(spec: SweepSpec, cell: Cell) -> Figures:
    """Whenever it gets seed 2."""
    if cell.seed == 2:
        os._exit(9)
    return figures_of(spec, cell)


def goes_wrong(spec: SweepSpec, cell: Cell) -> Figures:
    """Seed 2 has an error of ours."""
    if cell.seed == 2:
        raise ControlPlaneError("the run is stuck")
    return figures_of(spec, cell)


def has_a_bug(spec: SweepSpec, cell: Cell) -> Figures:
    """Seed 2 does."""
    return figures_of(spec, cell) | {"rate": 1.0 / (cell.seed - 2.0)}


def waits_for_the_other_to_be_killed(spec: SweepSpec, cell: Cell) -> Figures:
    """Seed 2 kills its own process the first time; seed 1 ends once that has happened."""
    folder = Path(spec.workload[0].name)
    with (folder / f"begun-{cell.seed}").open("a") as file:
        file.write("1")
    again = folder / "begun-2"
    if cell.seed == 2 and again.read_text() == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    deadline_s = time.monotonic() + 200
    while not again.exists() or again.read_text() != "11":
        if time.monotonic() > deadline_s:
            raise ControlPlaneError("the other was never begun again")
        time.sleep(0.02)
    return figures_of(spec, cell)
