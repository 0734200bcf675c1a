"""The A/B's command runs a whole comparison on the real engine; its smoke load takes seconds."""

import json
import subprocess
import sys
from pathlib import Path

from engine_server import ROOT


def _ab(*arguments: str | Path) -> str:
    command = [sys.executable, str(ROOT / "bench" / "ab_engine.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_is_measured_kept_and_not_run_again(engine_env: Path, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    kept = tmp_path / "kept"
    asked = ("run", "--smoke", "--environment", engine_env, "--results", results, "--keep", kept)
    asked += ("--systems", "mars", "--rates", "2", "--seeds", "1")
    assert "1 runs, 0 of them are there" in _ab(*asked)
    (row,) = [json.loads(line) for line in results.read_text().splitlines()]
    figures = row["figures"]
    assert (row["cell"]["system"], row["programs"], figures["programs_failed"]) == ("mars", 4, 0)
    assert (figures["hook_failures"], figures["retractions"]) == (0, 0)
    assert sum(len(turns) for turns in row["ttft_s"]) == figures["turns"]
    assert 0.5 < figures["hit_rate"] < 1, "each turn after a program's first finds the ones before it"
    assert all(jct >= sum(turns) for jct, turns in zip(row["jct_s"], row["ttft_s"], strict=True))
    assert {path.suffix for path in kept.iterdir()} == {".json", ".log", ".gz"}

    written = results.read_bytes()
    assert "1 runs, 1 of them are there" in _ab(*asked)
    assert results.read_bytes() == written
    assert "poisson:2, seeds 1" in _ab("report", "--results", results)
