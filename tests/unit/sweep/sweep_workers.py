"""Worker doubles: functions in place of ``run_cell``, importable by a spawned process."""

import os
from pathlib import Path

from controlplane.core.errors import ControlPlaneError
from controlplane.sweep.run_cell import Figures
from controlplane.sweep.spec import Cell, SweepSpec


def figures_of(spec: SweepSpec, cell: Cell) -> Figures:
    """At once."""
    return {"rate": 0.5, "jct_mean_s": float(cell.seed)}


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
