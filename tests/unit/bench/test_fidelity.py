"""The fidelity tables: each can be run, and counts what was done."""

import tomllib

import fidelity
import msgspec
import pytest

from controlplane.core.model import commands as cmd
from controlplane.lab.experiment import Hardware, Workload
from controlplane.lab.sweep.spec import SweepSpec, cells

DECLARED = tomllib.loads(fidelity.TABLES.read_text())


@pytest.mark.parametrize("name", DECLARED)
def test_every_table_is_a_few_sweeps(name: str) -> None:
    variants = DECLARED[name].get("variants", {})
    for sweep in DECLARED[name]["sweep"]:
        assert list(cells(msgspec.convert(sweep | {"variants": variants}, SweepSpec)))


def test_a_row_is_the_mean_of_its_seeds() -> None:
    spec = SweepSpec(
        workload=(Workload(trace="synthetic:swe-bench", programs=6),),
        hardware=(Hardware(pool_tokens=16_000),),
        presets=("thunderagent",),
        arrivals=("poisson:1",),
        seeds=(1, 2),
    )
    found = [fidelity.run(spec, cell) for cell in cells(spec)]
    assert all(counts[cmd.Pause] for _, counts in found)
    mean_s = sum(figures[0] for figures, _ in found) / 2
    assert fidelity.line(found).split()[0] == f"{mean_s:.1f}"
