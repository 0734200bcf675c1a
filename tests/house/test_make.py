"""``make test`` runs the tests of the real SGLang beside the others, and CI cannot leave them out."""

import os
import subprocess
from pathlib import Path

import pytest
from support.documents import PAGES, ROOT, blocks, words


def make(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """make, with no more than ``variables`` of what decides on the engine tests."""
    decides = ("CI", "PENSTOCK_NO_ENGINE", "ENGINES", "ENGINE", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    environment = {name: value for name, value in os.environ.items() if name not in decides} | variables
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("variables", [{}, {"CI": "true"}], ids=["by hand", "CI"])
def test_the_engine_tests_are_among_all(variables: dict[str, str]) -> None:
    planned = make("--dry-run", "test", **variables)
    assert planned.returncode == 0, planned.stderr
    for expected in ("engine_env.py", "pytest tests/engine", "engine_env.py --version vllm", "tests/unit/core"):
        assert expected in planned.stdout


@pytest.mark.parametrize("target", ["demo", "engine"])
def test_what_runs_penstock_installs_no_more_than_that(target: str, tmp_path: Path) -> None:
    planned = make("--dry-run", target, f"VENV={tmp_path}").stdout
    assert "'.[demo]'" in planned
    assert "'.[dev]'" not in planned
    (tmp_path / ".installed").touch()
    assert "pip install" not in make("--dry-run", target, f"VENV={tmp_path}").stdout


def test_every_folder_of_tests_is_run() -> None:
    planned = make("--dry-run", "test").stdout
    run = {word for line in planned.splitlines() if "pytest " in line for word in line.split() if "tests/" in word}
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "tests").glob("*/**/test_*.py")}
    assert [str(folder) for folder in folders if not any(folder.is_relative_to(each) for each in run)] == []


def test_they_can_be_left_out_by_hand() -> None:
    planned = make("--dry-run", "test", PENSTOCK_NO_ENGINE="1")
    assert "left out, as PENSTOCK_NO_ENGINE asks" in planned.stdout
    assert "engine_env.py" not in planned.stdout
    assert make("engine-choice", PENSTOCK_NO_ENGINE="1").returncode == 0


def test_ci_cannot_leave_them_out() -> None:
    refused = make("engine-choice", CI="true", PENSTOCK_NO_ENGINE="1")
    assert refused.returncode != 0
    assert "CI does not leave" in refused.stderr


def documented() -> list[str]:
    """Lines of the documents that make something."""
    lines = [line for page in PAGES for block in blocks(page) for line in block.commands]
    return sorted({line.partition("#")[0].strip() for line in lines if line.startswith("make ")})


@pytest.mark.parametrize("line", documented())
def test_what_the_documents_make_can_be_made(line: str) -> None:
    planned = make("--dry-run", *words(line.partition("&&")[0])[1:])
    assert planned.returncode == 0, planned.stderr
