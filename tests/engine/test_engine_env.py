"""The script that makes the engine tests' environment: what it says when it cannot."""

import os
import subprocess
import sys
from pathlib import Path

from engine_server import ROOT
from engine_versions import on

pytestmark = on("sglang")  # which the script makes where no version is named


def _script(path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The script, told to use ``path``."""
    command = [sys.executable, str(ROOT / "scripts" / "engine_env.py"), *arguments]
    environment = {**os.environ, "PENSTOCK_ENGINE_ENV": str(path)}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_an_environment_that_is_not_there_is_told_from_a_complete_one(engine_env: Path, tmp_path: Path) -> None:
    missing = _script(tmp_path / "none", "--check")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "is not there" in missing.stderr
    complete = _script(engine_env, "--check")
    assert (complete.returncode, complete.stdout) == (0, f"{engine_env}\n")


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    done = _script(tmp_path)
    assert done.returncode == 1
    assert "was not made by this script" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
