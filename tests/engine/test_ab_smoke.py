"""The A/B's commands run a comparison on the real engine; its smoke load takes seconds."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_server import ROOT
from engine_versions import KIND, on

Run = Callable[[str], str]


def _ab(*arguments: str | Path) -> str:
    command = [sys.executable, str(ROOT / "bench" / "ab_engine.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def run(engine_env: Path, tmp_path: Path) -> Run:
    """Runs that system once, and gives what was said."""
    where = ("--engine", KIND.name, "--environment", engine_env)
    where = (*where, "--results", tmp_path / "results.jsonl", "--keep", tmp_path / "kept")
    return lambda system: _ab("run", "--smoke", *where, "--rates", "2", "--seeds", "1", "--systems", system)


def test_a_run_is_measured_kept_reported_and_not_run_again(run: Run, engine_version: str, tmp_path: Path) -> None:
    assert "1 runs, 0 are there" in run("mars")
    results = tmp_path / "results.jsonl"
    (row,) = [json.loads(line) for line in results.read_text().splitlines()]
    figures = row["figures"]
    assert (row["cell"]["system"], row["programs"], figures["programs_failed"]) == ("mars", 4, 0)
    assert (figures["hook_failures"], figures["retractions"]) == (0, 0)
    assert row["versions"][KIND.name] == KIND.number(engine_version)
    assert sum(len(turns) for turns in row["ttft_s"]) == figures["turns"]
    assert 0.5 < figures["hit_rate"] < 1, "each turn after a program's first finds the ones before it"
    assert all(jct >= sum(turns) for jct, turns in zip(row["jct_s"], row["ttft_s"], strict=True))
    assert 0 < figures["engine_cpu_s"] < row["wall_s"] * row["cpus"]
    assert figures["tpot_mean_s"] > 0
    assert {path.suffix for path in (tmp_path / "kept").iterdir()} == {".json", ".log", ".gz"}

    written = results.read_bytes()
    assert "1 runs, 1 are there" in run("mars")
    assert results.read_bytes() == written
    page = _ab("report", "--results", results)
    assert "; 0 programs failed." in page
    (cells,) = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if "| mars " in line]
    assert float(cells[3]) > 0
    assert float(cells[10]) > 0, "the engine's CPU"


@on("vllm")
def test_an_engine_by_its_own_priorities_runs_without_a_plugin(run: Run, tmp_path: Path) -> None:
    run("priority")
    (row,) = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert (row["figures"]["programs_failed"], row["toml"]) == (0, "")
    (log,) = (tmp_path / "kept").glob("*engine.log")
    assert "'scheduling_policy': 'priority'" in log.read_text()
    assert "penstock:" not in log.read_text()
