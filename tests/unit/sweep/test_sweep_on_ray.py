"""The same sweep on a real Ray cluster of this machine, where Ray is installed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sweep_workers

from controlplane.lab.experiment import Hardware, Workload
from controlplane.lab.sweep import results
from controlplane.lab.sweep.executors import Executor, executor
from controlplane.lab.sweep.run_cell import run_cell
from controlplane.lab.sweep.runner import TWICE, run_missing
from controlplane.lab.sweep.spec import SweepSpec, cells

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own are not ours to mend


def ran(
    path: Path,
    on: Executor,
    run: Callable[..., Any] = run_cell,
    name: str = "w",
    seeds: tuple[int, ...] = (1, 2, 3),
) -> dict[str, results.Row]:
    spec = SweepSpec(
        workload=(Workload(trace="synthetic:swe-like", name=name, programs=4),),
        hardware=(Hardware(pool_tokens=100_000, replicas=3),),
        presets=("mars",),
        seeds=(1, 2),
    )
    run_missing(spec, list(cells(spec)), path, on, lambda cell, error: None, run)
    rows = {row["seed"]: row for row in results.read(path)}
    return {seed: {name: row[name] for name in row if name not in results.COSTS} for seed, row in rows.items()}


def test_results_are_those_of_local_processes_and_a_worker_that_dies_loses_its_cell_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="pip install 'penstock-agents[ray]'")
    monkeypatch.setenv("PYTHONPATH", str(Path(sweep_workers.__file__).parent), prepend=os.pathsep)
    with executor("local", 2, 9) as on:
        local = ran(tmp_path / "local.csv", on)
    with executor("ray", 2, 9) as on:
        assert ran(tmp_path / "ray.csv", on) == local and len(local) == 2
        waits = sweep_workers.waits_for_the_other_to_be_killed
        rows = ran(tmp_path / "killed.csv", on, waits, str(tmp_path))
        assert {seed: row["error"] for seed, row in rows.items()} == {"1": "", "2": ""}
        assert ((tmp_path / "begun-1").read_text(), (tmp_path / "begun-2").read_text()) == ("1", "11")
        rows = ran(tmp_path / "dies.csv", on, sweep_workers.goes_wrong_by_seed)
        assert {seed: row["error"] for seed, row in rows.items()} == {"1": "", "2": TWICE}
