"""What a user is told before anything runs: ranges in ``--help``, and one clear line for what cannot be."""

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from controlplane.cli.app import app
from controlplane.core.errors import ConfigError


def helps(command: str) -> dict[str, str]:
    """The help of each option, by its parameter's name."""
    found = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    return {parameter.name: parameter.help or "" for parameter in found.params}


@pytest.mark.parametrize(
    ("command", "option", "allowed"),
    [
        ("simulate", "programs", "[0 <= x <= 1e+07]"),
        ("simulate", "cpus", "[0 < x <= 100000]"),
        ("simulate", "scale_tokens", "[0 < x]"),
        ("simulate", "max_running", "[1 <= x]"),
        ("replay", "scale_tools", "[0 <= x]"),
        ("engine-double", "pool_tokens", "[16 <= x]"),
    ],
)
def test_help_tells_the_range_that_is_checked(command: str, option: str, allowed: str) -> None:
    assert helps(command)[option].endswith(allowed)
    assert helps(command)[option].count("[") == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--chunk-tokens", "0"], "expected 16 <= chunk_tokens, got 0"),
        (["--max-running", "0"], "expected 1 <= max_running, got 0"),
        (["--scale-tokens", "0"], "expected 0 < scale_tokens, got 0"),
        (["-a", "laod:0.8"], '"load:X"'),
        (["-o", "/dev/null/runs"], "--out: cannot make the folder /dev/null/runs: Not a directory"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(words: list[str], expected: str) -> None:
    result = CliRunner().invoke(app, ["simulate", "-n", "1", *words])
    assert isinstance(result.exception, ConfigError)
    assert expected in str(result.exception)


def test_a_state_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["up", "--state-dir", str(tmp_path / "file" / "state")])
    assert isinstance(result.exception, ConfigError)
    assert re.match(
        r"state_dir: cannot write .*daemon.lock: Not a directory; choose another", str(result.exception)
    )
