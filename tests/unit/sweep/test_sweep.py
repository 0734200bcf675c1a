"""A sweep: its file, its grid, its results, and workers that die."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sweep_workers
from typer.testing import CliRunner

from controlplane.cli.app import app
from controlplane.cli.sweep import EXAMPLE
from controlplane.core.model.errors import ConfigError, UnknownPolicy
from controlplane.core.policies.presets import PRESETS
from controlplane.lab.experiment import Workload
from controlplane.lab.sweep import results
from controlplane.lab.sweep.command import run_sweep
from controlplane.lab.sweep.executors import executor
from controlplane.lab.sweep.run_cell import CellOutcome, check_workloads, code, run_cell
from controlplane.lab.sweep.runner import TWICE, run_missing
from controlplane.lab.sweep.spec import Cell, SweepSpec, cells, load_sweep
from controlplane.lab.workload.synthetic import synthesize
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.tool_fits import fit_tools
from controlplane.lab.workload.trace import ProgramTrace

SMALL = """
presets = ["fcfs", "mars"]
arrivals = ["poisson:0.5"]
seeds = [1, 2]
[[workload]]
trace = "synthetic:swe-like"
programs = 4
[[hardware]]
profile = "h200-llama31-8b"
pool_tokens = 100000
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


def read(folder: Path, text: str) -> SweepSpec:
    return load_sweep(written(folder, text))


# The file


def test_the_example_is_a_sweep(tmp_path: Path) -> None:
    spec = read(tmp_path, EXAMPLE)
    assert len(list(cells(spec))) == (4 + 1) * 2 * 3


def test_a_workload_is_enough(tmp_path: Path) -> None:
    spec = read(tmp_path, '[[workload]]\ntrace = "synthetic:swe-bench"')
    assert spec.presets == tuple(PRESETS)
    assert {cell.hardware for cell in cells(spec)} == {"h200-llama31-8b"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seeds = [1]", "workload"),
        ("[[workload]]", "trace"),
        ("= 1", "not TOML"),
        (SMALL + "spread = 2", "unknown field `spread`"),
        ('presets = ["marz"]\n[[workload]]\ntrace = "x"', "no preset 'marz'"),
        ('presets = []\n[[workload]]\ntrace = "x"', "presets: expected at least one"),
        ('presets = ["mars", "mars"]\n[[workload]]\ntrace = "x"', "mars: named twice"),
        (SMALL + '[variants.mars]\npreset = "fcfs"', "variants.mars: is a preset"),
        (SMALL + '[variants.x]\npreset = "marz"', "variants.x: .*no preset 'marz'"),
        (SMALL + "[variants.x]\nadmission.waste = 2.0", "variants.x: .*waste"),
        ('arrivals = ["poisson:-1"]\n[[workload]]\ntrace = "x"', "poisson"),
        ('seeds = [-1]\n[[workload]]\ntrace = "x"', "expected 0 <= seeds, got -1"),
        ('seeds = ["one"]\n[[workload]]\ntrace = "x"', r"\$.seeds\[0\]"),
        ('[[workload]]\ntrace = "x"\n[[workload]]\ntrace = "x"', "x: named twice; give each its own name"),
        ('[[workload]]\ntrace = "x"\n[[hardware]]\nprofile = "tpu"', "tpu"),
        ('[[workload]]\ntrace = "x"\n[[hardware]]\nrate_factor = 0.0', "rate_factor"),
        ('[[workload]]\ntrace = "x"\ntools = "none.json"', "none.json: cannot read the tool times"),
        ('[[workload]]\ntrace = "x"\ncontention = true\ncpu_shares = ["make=x"]', "TOOL=SHARE"),
        ('[[workload]]\ntrace = "x"\ncpu_shares = ["0.5"]', "expected contention to be on"),
        ('[[workload]]\ntrace = "x"\n[[hardware]]\nreplicas = 0', "replicas"),
        ('[[workload]]\ntrace = "x"\n[[hardware]]\nlink_gb_per_s = -1.0', "link_gb_per_s"),
        (
            '[[workload]]\ntrace = "x"\n[[hardware]]\nrouting = "randomly"',
            "no placement policy 'randomly'; there are: single, round_robin, least_loaded, hash, prefix, session",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said_before_any_work(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises((ConfigError, UnknownPolicy), match=said):
        read(tmp_path, text)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the sweep"):
        load_sweep(tmp_path / "none.toml")


# The grid


def test_the_grid_goes_seed_by_seed(tmp_path: Path) -> None:
    found = [(cell.seed, cell.preset) for cell in cells(read(tmp_path, SMALL))]
    assert found == [(1, "fcfs"), (1, "mars"), (2, "fcfs"), (2, "mars")]


def test_variants_run_beside_the_presets(tmp_path: Path) -> None:
    one = '[variants."one at a time"]\npreset = "fcfs"\nadmission.policy = "fixed"\nadmission.window = 1\n'
    spec = read(tmp_path, SMALL.replace("[1, 2]", "[1]").replace("poisson:0.5", "poisson:50") + one)
    found = {cell.preset: cell for cell in cells(spec)}
    assert list(found) == ["fcfs", "mars", "one at a time"]
    assert len({cell.digest for cell in found.values()}) == 3
    holds = {name: run_cell(spec, cell)["longest_hold_s"] for name, cell in found.items()}
    assert holds["fcfs"] < 0.1 < 10 < holds["one at a time"]
    only = read(tmp_path, SMALL.replace('["fcfs", "mars"]', "[]") + one)
    assert {cell.preset for cell in cells(only)} == {"one at a time"}


def test_rates_are_scaled_for_other_hardware_and_a_workload_may_have_its_own(tmp_path: Path) -> None:
    text = SMALL + 'rate_factor = 3.0\nname = "fast"\n[[hardware]]\nname = "slow"\n'
    assert {(c.hardware, c.arrival) for c in cells(read(tmp_path, text))} == {
        ("fast", "poisson:1.5"),
        ("slow", "poisson:0.5"),
    }
    own = SMALL.replace("programs = 4", 'programs = 4\narrivals = ["closed:3"]') + "rate_factor = 3.0"
    assert {c.arrival for c in cells(read(tmp_path, own))} == {"closed:3"}


def test_a_cell_is_known_by_all_that_its_result_depends_on(tmp_path: Path) -> None:
    def digests(text: str) -> set[str]:
        return {cell.digest for cell in cells(read(tmp_path, text))}

    def more(text: str) -> str:
        return SMALL.replace("programs = 4", f"programs = 4\n{text}")

    def fitted(programs: Sequence[ProgramTrace]) -> set[str]:
        fit_tools(programs, "t").save(tmp_path / "tools.json")
        return digests(more(f'tools = "{tmp_path}/tools.json"'))

    two, programs = SMALL + "replicas = 2\n", synthesize("swe-like", programs=9).programs
    texts = [SMALL, SMALL.replace("programs = 4", "programs = 5"), SMALL.replace("100000", "200000")]
    texts += [more("contention = true"), more('contention = true\ncpu_shares = ["0.5"]')]
    texts += [two, two + 'routing = "round_robin"', two + "link_gb_per_s = 1.0"]
    found = [*map(digests, texts), fitted(programs), fitted(programs[1:])]
    assert len(set.union(*found)) == 2 * len(found)
    assert fitted(programs) == found[-2], "what is in the file counts"
    assert digests(SMALL) == digests(SMALL.replace("seeds = [1, 2]", "seeds = [3]"))


@pytest.mark.parametrize("telemetry", Telemetry)
def test_what_a_cells_programs_tell_is_no_part_of_its_digest(tmp_path: Path, telemetry: Telemetry) -> None:
    told = SMALL.replace("programs = 4", f'programs = 4\ntelemetry = "{telemetry}"')
    plain, found = (list(cells(read(tmp_path, text))) for text in (SMALL, told))
    assert {cell.telemetry for cell in found} == {telemetry}
    assert [cell.digest for cell in found] == [cell.digest for cell in plain]


def test_a_cell_runs_with_its_tools(tmp_path: Path) -> None:
    fits = tmp_path / "tools.json"
    fit_tools(synthesize("swe-like", programs=9).programs, "t").save(fits)
    more = f'tools = "{fits}"\ncontention = true\ncpus = 0.5\ncpu_shares = ["bash=1"]\nscale_tools = 3.0'
    spec = read(tmp_path, SMALL.replace("programs = 4", f"programs = 4\n{more}"))
    plain = read(tmp_path, SMALL)
    crowded, alone = (run_cell(s, next(iter(cells(s)))) for s in (spec, plain))
    assert crowded["tool_slowdown_ratio"] > 1.0
    assert alone["tool_slowdown_ratio"] == 0.0
    assert crowded["jct_mean_s"] > alone["jct_mean_s"]


def test_workloads_are_read_before_any_work(tmp_path: Path) -> None:
    fits = tmp_path / "tools.json"
    fit_tools(synthesize("swe-like", programs=9).programs, "t").save(fits)
    text = SMALL.replace("programs = 4", f'programs = 4\ntools = "{fits}"').replace("swe-like", "bfcl-v4")
    spec = read(tmp_path, text)
    (note,) = check_workloads(spec)
    assert note.startswith("synthetic:bfcl-v4: ")
    assert f"{fits} has no times of edit, search, test: " in note
    plain = read(tmp_path, SMALL)
    assert list(check_workloads(plain)) == []
    nowhere = read(tmp_path, SMALL.replace("synthetic:swe-like", "nowhere.jsonl"))
    with pytest.raises(ConfigError, match="nowhere"):
        list(check_workloads(nowhere))


# Results


def outcome(**figures: float) -> CellOutcome:
    return CellOutcome(figures=dict.fromkeys(results.FIGURES, 1.0) | figures, code="new code")


def cell(seed: int = 1, preset: str = "mars", **more: str) -> Cell:
    fields = {"workload": "w", "hardware": "h", "arrival": "poisson:0.5", "digest": "d"} | more
    return Cell(preset=preset, seed=seed, **fields)


def test_rows_come_back_and_errors_do_not_count_as_done(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.csv"
    assert results.read(path) == []
    results.append(path, cell(1), outcome(jct_mean_s=12.3456789))
    results.append(path, cell(2), CellOutcome(error='stuck,\n"badly"'))
    rows = results.read(path)
    assert [(row["seed"], row["jct_mean_s"], row["error"]) for row in rows] == [
        ("1", "12.3457", ""),
        ("2", "", 'stuck, "badly"'),
    ]
    wanted = [cell(1), cell(2), cell(3), cell(1, digest="other")]
    assert results.done(rows, wanted) == results.done(rows, wanted, "new code") == {cell(1)}
    assert results.done(rows, wanted, "newer code") == set()


def test_a_later_row_of_the_same_run_replaces_the_first(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    for found in (CellOutcome(error="stuck"), outcome(jct_mean_s=1.0), outcome(jct_mean_s=2.0)):
        results.append(path, cell(1), found)
    assert [(row["jct_mean_s"], row["error"]) for row in results.read(path)] == [("2", "")]


@pytest.mark.parametrize("left", ["w,h,mars,poi", "", 'w,h,"broken'])
def test_a_line_that_broke_off_is_dropped_and_overwritten(tmp_path: Path, left: str) -> None:
    path = tmp_path / "out.csv"
    results.append(path, cell(1), outcome())
    with path.open("a") as file:
        file.write(left)
    assert len(results.read(path)) == 1
    results.append(path, cell(2), outcome())
    assert [row["seed"] for row in results.read(path)] == ["1", "2"]


def test_a_file_of_something_else_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(
        ConfigError, match=r"no column workload, hardware, preset, arrival, seed, \.\.\.; give another"
    ):
        results.read(path)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda text: "", "it has no runs yet"),
        (lambda text: text.splitlines()[0] + "\n", "it has no runs yet"),
        (lambda text: text.replace("jct_p99_s", "p99"), "no column jct_p99_s"),
        (lambda text: text.replace("12.5", "fast"), r"out.csv:2: jct_mean_s: expected a number, got 'fast'"),
        (lambda text: text.replace("w,h,mars", "w,mars"), r"out.csv:2: expected \d+ columns"),
        (lambda text: text.replace("w,h,mars", "w,h,h,mars"), r"out.csv:2: expected \d+ columns"),
    ],
)
def test_a_file_that_is_spoilt_is_told(tmp_path: Path, spoil: Callable[[str], str], said: str) -> None:
    path = tmp_path / "out.csv"
    with pytest.raises(ConfigError, match="no such file"):
        results.read_all(path)
    results.append(path, cell(1), outcome(jct_mean_s=12.5))
    path.write_text(spoil(path.read_text()))
    with pytest.raises(ConfigError, match=said):
        results.read_all(path)


# Running


def ran(
    folder: Path, run: Callable[..., Any], seeds: tuple[int, ...]
) -> tuple[int, dict[int, str], list[tuple[str, str]]]:
    spec = SweepSpec(
        workload=(Workload(trace="synthetic:swe-like", name=str(folder)),), presets=("mars",), seeds=seeds
    )
    notes: dict[int, str] = {}
    path = folder / "out.csv"
    with executor("local", 2, 9) as workers:
        failed = run_missing(
            spec, list(cells(spec)), path, workers, lambda cell, error: notes.__setitem__(cell.seed, error), run
        )
    return failed, notes, [(row["seed"], row["error"]) for row in results.read(path)]


def test_each_cell_is_told_whatever_happens_to_others(tmp_path: Path) -> None:
    failed, notes, rows = ran(tmp_path, sweep_workers.goes_wrong_by_seed, seeds=(2, 1, 3, 4, 5))
    assert (failed, notes[1], notes[2], notes[3], notes[5]) == (3, "", TWICE, "the run is stuck", "")
    assert re.fullmatch(r"ZeroDivisionError: float division by zero \(sweep_workers.py:\d+\)", notes[4])
    assert dict(rows) == {str(seed): error for seed, error in notes.items()}


def test_a_process_that_is_killed_takes_nothing_else_with_it(tmp_path: Path) -> None:
    """Seed 1 ends only after the process of seed 2 has been killed: in a pool of both it would have died too."""
    failed, notes, rows = ran(tmp_path, sweep_workers.waits_for_the_other_to_be_killed, seeds=(1, 2))
    assert (failed, notes) == (0, {1: "", 2: ""})
    assert sorted(rows) == [("1", ""), ("2", "")]
    assert (tmp_path / "begun-1").read_text() == "1"
    assert (tmp_path / "begun-2").read_text() == "11"


def test_where_to_run_is_checked() -> None:
    with pytest.raises(ConfigError, match="--on: expected local, ray or ray://HOST:PORT, got 'cloud'"):
        executor("cloud", 1, 1)


def test_without_ray_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'penstock-agents\[ray\]'"):
        executor("ray", 1, 1)


# The command


def penstock(*arguments: str | Path, cwd: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "controlplane", *map(str, arguments)]
    return subprocess.Popen(
        command,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
    )


def test_a_sweep_from_the_command_line_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    spec = written(tmp_path, SMALL.replace("programs = 4", "programs = 60").replace("[1, 2]", "[1, 2, 3]"))
    first = penstock("sweep", spec, "--jobs", "1", cwd=tmp_path)
    out = tmp_path / "sweep.csv"
    deadline_s = time.monotonic() + 200
    while not out.exists() or len(results.read(out)) < 1:
        assert first.poll() is None, first.communicate()[1]
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=200)
    assert first.returncode == 130, said
    assert "the same command goes on" in said
    there = len(results.read(out))
    assert 1 <= there < 6
    second = penstock("sweep", spec, "--jobs", "2", cwd=tmp_path)
    shown, said = second.communicate(timeout=200)
    assert second.returncode == 0, said
    assert f"6 runs, {there} of them in" in said.replace("\\n", " ")
    assert len(results.read(out)) == 6
    assert "JCT mean (s): synthetic:swe-like on h200-llama31-8b" in shown
    assert "over fcfs's" in shown
    assert "penstock sweep-report" in said


def test_its_help_and_example_teach() -> None:
    assert CliRunner().invoke(app, ["sweep", "--example"]).output == EXAMPLE
    nothing = CliRunner().invoke(app, ["sweep"])
    assert nothing.exit_code == 2
    assert "--example" in nothing.output


def test_rows_of_older_code_are_run_anew_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    spec, path = written(tmp_path, SMALL), tmp_path / "out.csv"
    for number, wanted in enumerate(cells(load_sweep(spec))):
        results.append(path, wanted, CellOutcome(figures=outcome().figures, code=code() if number else "older"))
    for redo, there in ((False, 4), (True, 3)):
        assert run_sweep(spec, out=path, redo=redo, dry=True) == 0
        assert f"4 runs, {there} of them in" in capsys.readouterr().err
