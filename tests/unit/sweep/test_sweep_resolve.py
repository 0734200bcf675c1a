"""What a sweep's file leaves to be found: loads, pools sized in programs, mixes, and telemetry as a dimension."""

import csv
from pathlib import Path

import pytest

from controlplane.core.model.errors import ConfigError
from controlplane.lab.experiment import Hardware, Workload
from controlplane.lab.simulate import engine_of, trace_of
from controlplane.lab.sweep import results
from controlplane.lab.sweep.local import run_in_process
from controlplane.lab.sweep.resolve import found, resolved, saturation_rate
from controlplane.lab.sweep.run_cell import CellOutcome, check_workloads, run_cell
from controlplane.lab.sweep.spec import SweepSpec, cells, load_sweep
from controlplane.lab.workload.arrivals import Burst, Closed, Poisson
from controlplane.lab.workload.telemetry import Telemetry

SWE = Workload(trace="synthetic:swe-bench", programs=12)
SMALL = Hardware(name="small", pool_programs=2.5)
LARGE = Hardware(name="large", pool_programs=20.0)


def read(folder: Path, text: str) -> SweepSpec:
    path = folder / "sweep.toml"
    path.write_text(text)
    return load_sweep(path)


def pool_tokens(workload: Workload, hardware: Hardware) -> int:
    return engine_of(hardware, workload.scale.apply(trace_of(workload)).programs).pool_tokens


def test_a_pool_is_sized_by_the_workloads_programs_and_holds_the_longest() -> None:
    contexts = [program.context_tokens for program in trace_of(SWE).programs]
    assert pool_tokens(SWE, LARGE) == pytest.approx(20 * sum(contexts) / len(contexts), abs=1)
    one = Hardware(pool_programs=1.0)
    assert pool_tokens(SWE, one) > max(contexts)
    scaled = Workload(trace="synthetic:swe-bench", programs=12, scale_tokens=2.0)
    assert pool_tokens(scaled, LARGE) > 1.8 * pool_tokens(SWE, LARGE)
    assert pool_tokens(SWE, Hardware(pool_tokens=5000)) == 5000


def test_a_load_is_a_share_of_what_no_order_could_sustain() -> None:
    rate = saturation_rate(SWE, SMALL)
    assert 0 < rate < saturation_rate(SWE, LARGE)
    assert resolved("load:0.5", SWE, SMALL) == Poisson(float(f"{rate / 2:.6g}"))
    assert resolved("load:2:8", SWE, SMALL) == Burst(float(f"{rate * 2:.6g}"), 8)
    slower = Hardware(name="small", pool_programs=2.5, rate_factor=0.5)
    assert resolved("load:0.5", SWE, slower) == resolved("load:0.5", SWE, SMALL)
    assert resolved("burst:1:4", SWE, slower) == Burst(0.5, 4)
    assert resolved("closed:3", SWE, slower) == Closed(3)
    assert "saturated at" in found(SWE, SMALL)


@pytest.mark.parametrize("text", ["load:", "load:x", "load:-1", "load:1:0", "load:1:2:3"])
def test_loads_that_make_no_sense_are_refused_before_any_work(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="expected load:X"):
        read(tmp_path, f'arrivals = ["{text}"]\n[[workload]]\ntrace = "x"')


def test_a_load_needs_a_program_that_fits() -> None:
    with pytest.raises(ConfigError, match="no program fits"):
        resolved("load:1", SWE, Hardware(pool_tokens=100))


def test_a_pool_has_one_size(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pool_programs: set this or pool_tokens"):
        read(tmp_path, '[[workload]]\ntrace = "x"\n[[hardware]]\npool_programs = 2.0\npool_tokens = 9')


def test_several_traces_are_a_mix_and_telemetry_is_a_dimension(tmp_path: Path) -> None:
    spec = read(
        tmp_path,
        'presets = ["fcfs", "clairvoyant"]\narrivals = ["load:1"]\nseeds = [1]\ntelemetries = ["none", "full"]\n'
        '[[workload]]\ntrace = ["synthetic:swe-bench", "synthetic:bfcl-v4"]\nprograms = 6\n'
        "[[hardware]]\npool_programs = 3.0",
    )
    assert spec.workload[0].title == "mix:synthetic:swe-bench+synthetic:bfcl-v4"
    grid = list(cells(spec))
    assert [(cell.telemetry, cell.preset) for cell in grid] == [
        (told, name) for told in (Telemetry.NONE, Telemetry.FULL) for name in ("fcfs", "clairvoyant")
    ]
    assert len({cell.digest for cell in grid}) == 2
    assert any("saturated at" in note for note in check_workloads(spec))
    rows = {(cell.telemetry, cell.preset): run_cell(spec, cell) for cell in grid}
    assert {row["programs_ended"] for row in rows.values()} == {6}
    assert all(row["bound_jct_mean_s"] <= row["jct_mean_s"] for row in rows.values())
    assert {row["saturation_rate"] for row in rows.values()} == {saturation_rate(*place(spec))}
    assert {row["kv_pool_tokens"] for row in rows.values()} == {pool_tokens(*place(spec))}


def place(spec: SweepSpec) -> tuple[Workload, Hardware]:
    return spec.workload[0], spec.hardware[0]


def test_a_trace_file_names_its_workload_whatever_its_folder() -> None:
    assert Workload(trace="../x/a.jsonl.gz").title == "a"
    assert Workload(trace=("x/a.jsonl", "b.jsonl.gz")).title == "mix:a+b"
    assert Workload(trace="change:x/a.jsonl>y/b.jsonl").title == "change:a>b"
    assert Workload(trace="synthetic:bfcl-v4").title == "synthetic:bfcl-v4"


def test_results_of_an_older_version_are_read_and_completed(tmp_path: Path) -> None:
    later = ("telemetry", *results.KNOWN)
    older = [name for name in results.COLUMNS if name not in later]
    path = tmp_path / "rows.csv"
    known = dict.fromkeys(older, "1") | {"workload": "w", "arrival": "poisson:1", "error": ""}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, older, lineterminator="\n")
        writer.writeheader()
        writer.writerow(known)
    assert results.read(path)[0]["telemetry"] == "full"
    spec = SweepSpec(workload=(SWE,), presets=("fcfs",), arrivals=("poisson:1",), seeds=(1,))
    results.append(path, next(cells(spec)), CellOutcome(error="made up"))
    first, second = results.read(path)
    assert (first["telemetry"], first["saturation_rate"], second["error"]) == ("full", "0", "made up")
    assert path.read_text().splitlines()[0].split(",") == list(results.COLUMNS)


def test_a_sweep_in_this_process_gives_the_figures_that_its_cells_give(tmp_path: Path) -> None:
    spec = read(
        tmp_path,
        'presets = ["fcfs", "mars"]\narrivals = ["load:1.5", "closed:2"]\nseeds = [3]\n'
        '[[workload]]\ntrace = "synthetic:swe-bench"\nprograms = 4\nscale_tokens = 0.5\ntelemetry = "none"\n'
        "[[hardware]]\npool_programs = 2.0\nreplicas = 2",
    )
    runs = run_in_process(spec)
    figures = {(cell.arrival, cell.preset): run_cell(spec, cell) for cell in cells(spec)}
    assert [(run.arrival, run.preset) for run in runs] == list(figures)
    for run in runs:
        found = figures[run.arrival, run.preset]
        assert {name: value or 0 for name, value in run.summary.to_json().items()}.items() <= found.items()
        assert (run.rate, run.facts["telemetry"]) == (found["rate"], "none")
        assert found["jain_index"] > 0, "without ideal times"
        assert found["turns_per_cpu_min"] > 1000
