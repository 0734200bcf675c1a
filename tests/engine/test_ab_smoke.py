"""The A/B's commands run a whole comparison on the real engine; its smoke load takes seconds.

What that for the CPU has run, that for GPUs finds done.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_server import ROOT
from engine_versions import VLLM, every_engine, vllm_only

sys.path.insert(0, str(ROOT / "bench"))

from ab.kinds import KINDS

Run = Callable[[str], str]


def _ab(*arguments: str | Path, script: str = "ab_engine.py") -> str:
    command = [sys.executable, str(ROOT / "bench" / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ab") / "results.jsonl"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def engine(engine_version: str) -> str:
    return "vllm" if engine_version.startswith(VLLM) else "sglang"


@pytest.fixture
def run(engine: str, engine_env: Path, results: Path, kept: Path) -> Run:
    """Runs that system once, and gives what was said."""
    where = ("--engine", engine, "--environment", engine_env, "--results", results, "--keep", kept)
    return lambda system: _ab("run", "--smoke", *where, "--rates", "2", "--seeds", "1", "--systems", system)


@every_engine
def test_a_run_is_measured_kept_and_not_run_again(
    run: Run, engine: str, engine_version: str, results: Path, kept: Path
) -> None:
    assert "1 runs, 0 of them are there" in run("mars")
    (row,) = [json.loads(line) for line in results.read_text().splitlines()]
    figures = row["figures"]
    assert (row["cell"]["system"], row["programs"], figures["programs_failed"]) == ("mars", 4, 0)
    assert (figures["hook_failures"], figures["retractions"]) == (0, 0)
    assert row["versions"][engine] == engine_version.removeprefix(VLLM)
    assert sum(len(turns) for turns in row["ttft_s"]) == figures["turns"]
    assert 0.5 < figures["hit_rate"] < 1, "each turn after a program's first finds the ones before it"
    assert all(jct >= sum(turns) for jct, turns in zip(row["jct_s"], row["ttft_s"], strict=True))
    assert 0 < figures["engine_cpu_s"] < row["wall_s"] * row["cpus"]
    assert figures["tpot_mean_s"] > 0
    assert {path.suffix for path in kept.iterdir()} == {".json", ".log", ".gz"}

    written = results.read_bytes()
    assert "1 runs, 1 of them are there" in run("mars")
    assert results.read_bytes() == written
    assert "poisson:2, seeds 1" in _ab("report", "--results", results)


@every_engine
def test_the_command_for_gpus_runs_the_systems_and_writes_the_pages_rows(
    engine: str, engine_env: Path, results: Path
) -> None:
    where = (f"--{engine}", engine_env, "--results", results)
    _ab("run", "--smoke", *where, "--systems", "stock,mars", script="ab_gpu.py")
    page = results.with_suffix(".md").read_text()
    assert page.startswith(f"## {KINDS[engine].title}\n")
    assert "; 0 programs failed." in page
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    assert [row[:2] for row in rows[2:]] == [["2", "stock"], ["", "mars"]]
    assert all(float(row[2]) > 0 and float(row[9]) > 0 for row in rows[2:]), (
        "completion times, and the engine's CPU"
    )


@vllm_only
def test_an_engine_by_its_own_priorities_runs_without_a_plugin(run: Run, results: Path, kept: Path) -> None:
    run("priority")
    *_, row = [json.loads(line) for line in results.read_text().splitlines()]
    assert (row["figures"]["programs_failed"], row["toml"]) == (0, "")
    (log,) = kept.glob("*engine.log")
    assert "'scheduling_policy': 'priority'" in log.read_text()
    assert "penstock:" not in log.read_text()
