"""``make test`` runs the tests of the real SGLang beside the others, and CI cannot leave them out."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def make(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """make, with no more than ``variables`` of what decides on the engine tests."""
    decides = ("CI", "PENSTOCK_NO_ENGINE", "ENGINES", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    environment = {name: value for name, value in os.environ.items() if name not in decides} | variables
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("variables", [{}, {"CI": "true"}], ids=["by hand", "CI"])
def test_the_engine_tests_are_among_all(variables: dict[str, str]) -> None:
    planned = make("--dry-run", "test", **variables)
    assert planned.returncode == 0, planned.stderr
    for expected in ("engine_env.py", "pytest tests/engine", "tests/unit/core", "--ignore=tests/engine"):
        assert expected in planned.stdout


def test_they_can_be_left_out_by_hand() -> None:
    planned = make("--dry-run", "test", PENSTOCK_NO_ENGINE="1")
    assert "left out, as PENSTOCK_NO_ENGINE asks" in planned.stdout
    assert "engine_env.py" not in planned.stdout
    assert make("engine-choice", PENSTOCK_NO_ENGINE="1").returncode == 0


def test_ci_cannot_leave_them_out() -> None:
    refused = make("engine-choice", CI="true", PENSTOCK_NO_ENGINE="1")
    assert refused.returncode != 0
    assert "CI does not leave" in refused.stderr
