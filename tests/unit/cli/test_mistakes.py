"""What a user is told before anything runs: ranges in ``--help``, and one clear line for what cannot be."""

import re
from pathlib import Path

import pytest
import typer
from support.closed_loop import record
from typer.testing import CliRunner

from controlplane.cli.app import app
from controlplane.core.model.errors import ConfigError


def helps(command: str) -> dict[str, str]:
    """The help of each option, by its parameter's name."""
    found = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    return {parameter.name: parameter.help or "" for parameter in found.params}


@pytest.mark.parametrize(
    ("command", "option", "allowed"),
    [
        ("simulate", "programs", "[0 <= x <= 1e+07]"),
        ("simulate", "cpus", "[0 < x <= 100000]"),
        ("simulate", "scale_tokens", "[0 < x <= 1e+06]"),
        ("replay", "scale_tools", "[0 <= x <= 1e+06]"),
        ("engine-double", "pool_tokens", "[16 <= x]"),
    ],
)
def test_help_tells_the_range_that_is_checked(command: str, option: str, allowed: str) -> None:
    assert helps(command)[option].endswith(allowed)
    assert helps(command)[option].count("[") == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--pool-tokens", "1"], "expected 16 <= pool_tokens, got 1"),
        (["--scale-tokens", "0"], "expected 0 < scale_tokens <= 1e+06, got 0"),
        (["--scale-tokens", "inf"], "expected 0 < scale_tokens <= 1e+06, got inf"),
        (["--scale-tools", "nan"], "expected 0 <= scale_tools <= 1e+06, got nan"),
        (["--scale-tools", "inf"], "expected 0 <= scale_tools <= 1e+06, got inf"),
        (["-a", "laod:0.8"], '"load:X"'),
        (["-o", "/dev/null/runs"], "--out: cannot make the folder /dev/null/runs: Not a directory"),
        *((["demo", "--rate", rate], "expected 0 < rate, got") for rate in ("nan", "inf", "0", "-1")),
    ],
)
def test_a_mistake_is_told_before_anything_runs(words: list[str], expected: str) -> None:
    command = words if words[0] == "demo" else ["simulate", *words]
    result = CliRunner().invoke(app, [*command, "-n", "1"])
    assert isinstance(result.exception, ConfigError)
    assert expected in str(result.exception)


def test_a_state_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["up", "--state-dir", str(tmp_path / "file" / "state")])
    assert isinstance(result.exception, ConfigError)
    assert re.match(
        r"state_dir: cannot write .*daemon.lock: Not a directory; choose another", str(result.exception)
    )


def test_no_stretch_begins_or_ends_at_what_is_no_time(tmp_path: Path) -> None:
    log = record(tmp_path / "run.jsonl", "fcfs", programs=2, rate=0.5, seed=1)
    for option, number in (("since", "nan"), ("since", "-inf"), ("until", "nan"), ("until", "inf")):
        result = CliRunner().invoke(app, ["what-if", str(log), f"--{option}", number])
        assert isinstance(result.exception, ConfigError)
        assert f"<= {option} <=" in str(result.exception)


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_the_double_holds_no_turn_for_ever(number: str) -> None:
    assert CliRunner().invoke(app, ["engine-double", "--no-bus", "--hold-s", number]).exit_code == 2
