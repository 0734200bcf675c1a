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


@pytest.fixture(autouse=True)
def workers_find_this_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they run is imported there by its name."""
    monkeypatch.setenv("PYTHONPATH", str(Path(sweep_workers.__file__).parent), prepend=os.pathsep)


def ran(
    folder: Path,
    on: Executor,
    run: Callable[..., Any],
    name: str = "",
    seeds: tuple[int, ...] = (1, 2, 3),
    replicas: int = 1,
) -> dict[str, results.Row]:
    spec = SweepSpec(
        workload=(Workload(trace="synthetic:swe-like", name=name or str(folder), programs=4),),
        hardware=(Hardware(pool_tokens=100_000, replicas=replicas),),
        presets=("mars",),
        seeds=seeds,
    )
    path = folder / f"{type(on).__name__}.csv"
    with on:
        run_missing(spec, list(cells(spec)), path, on, lambda cell, error: None, run)
    return {row["seed"]: row for row in results.read(path)}


def test_results_are_those_of_local_processes(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="pip install 'penstock[ray]'")
    local, there = (ran(tmp_path, executor(on, 2, 9), run_cell, "w", replicas=3) for on in ("local", "ray"))
    assert len(local) == 3
    for seed, row in local.items():
        assert {name: there[seed][name] for name in row if name not in results.COSTS} == {
            name: value for name, value in row.items() if name not in results.COSTS
        }


def test_a_worker_that_is_killed_loses_its_cell_only(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="pip install 'penstock[ray]'")
    rows = ran(tmp_path, executor("ray", 2, 9), sweep_workers.waits_for_the_other_to_be_killed, seeds=(1, 2))
    assert {seed: row["error"] for seed, row in rows.items()} == {"1": "", "2": ""}
    assert ((tmp_path / "begun-1").read_text(), (tmp_path / "begun-2").read_text()) == ("1", "11")


def test_a_cell_that_kills_its_workers_is_given_up(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="pip install 'penstock[ray]'")
    rows = ran(tmp_path, executor("ray", 2, 9), sweep_workers.always_dies)
    assert {seed: row["error"] for seed, row in rows.items()} == {"1": "", "2": TWICE, "3": ""}
