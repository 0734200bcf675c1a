"""Worker doubles: functions in place of ``run_cell``, importable by a spawned process."""

import os
import signal
import time
from pathlib import Path

from controlplane.core.model.errors import ControlPlaneError
from controlplane.lab.sweep.results import FIGURES
from controlplane.lab.sweep.run_cell import Figures
from controlplane.lab.sweep.spec import Cell, SweepSpec

DIES, FAILS, HAS_A_BUG = 2, 3, 4  # seeds


def goes_wrong_by_seed(spec: SweepSpec, cell: Cell) -> Figures:
    """Kill the worker, raise an error of ours, or have a bug; all is well with other seeds."""
    if cell.seed == DIES:
        os._exit(9)
    if cell.seed == FAILS:
        raise ControlPlaneError("the run is stuck")
    return dict.fromkeys(FIGURES, 1.0) | {"rate": 1.0 / (cell.seed - HAS_A_BUG), "jct_mean_s": float(cell.seed)}


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
    return dict.fromkeys(FIGURES, 1.0)
