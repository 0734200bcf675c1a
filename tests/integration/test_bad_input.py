"""What a user gets wrong on the command line: one clear line, exit 1, no stack trace."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import penstock

ZERO = '{"program_id":"a","source":"x","turns":[{"input_tokens":9,"output_tokens":0,"tool":null,"tool_ms":null}]}'
GOOD = '{"program_id":"b","source":"x","turns":[{"input_tokens":900,"output_tokens":9,"tool":null,"tool_ms":null}]}'
LONG = (
    '{"program_id":"c","source":"x","turns":[{"input_tokens":90000,"output_tokens":9,"tool":null,"tool_ms":null}]}'
)
FILES = {
    "zero": ZERO,
    "missing": '{"program_id":"a"}',
    "text": "not json",
    "empty": "",
    "mixed": f"{ZERO}\n{GOOD}\n",
}


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulate", "{}/zero"], "zero:1: turns[0].output_tokens: Expected `int` >= 1"),
        (["simulate", "{}/missing"], "missing:1: Object missing required field `turns`"),
        (["simulate", "{}/text"], "text:1: JSON is malformed"),
        (["simulate", "{}/empty"], "the file is empty"),
        (["simulate", "{}/absent"], "absent: cannot read it"),
        (["simulate", "synthetic:nothing"], "built in: swe-bench"),
        (["simulate", "{}/mixed", "--preset", "nothing"], "no preset 'nothing'; there are: autellix"),
        (["simulate", "{}/mixed", "--profile", "nothing"], "built in: b200, b200-llama31-70b, h100"),
        (["simulate", "{}/mixed", "--arrival", "poisson:often"], 'expected "poisson:RATE"'),
        (["simulate", "{}/mixed", "--cpus", "-3"], "expected 0 < cpus"),
        (["replay", "{}/mixed", "--url", "http://127.0.0.1:9", "--no-bus"], "nobody answers at http://127.0.0.1:9"),
        (["replay", "{}/mixed", "--state-dir", "{}"], "Start `penstock up`"),
        (["replay", "{}/mixed", "--url", "elsewhere", "--no-bus"], "expected http://HOST:PORT"),
        (["engine-double", "--port", "99999", "--no-bus"], "port <= 65535"),
        (["engine-double", "--port", "0", "--no-bus", "--pool-tokens", "1"], "expected 16 <= pool_tokens"),
        (["up", "--preset", "nothing"], "no preset 'nothing'"),
        (["up", "--node", "a.b"], "'a-b' would do"),
        (["up", "--time-scale", "0"], "expected 0 < time_scale"),
        (["config", "check", "{}/text"], "not TOML"),
        (["config", "check", "{}/absent"], "No such file"),
        (["log", "replay", "{}/text"], "text:1: expected the header of an event log"),
        (["report", "{}/absent"], "absent: cannot read the run"),
    ],
)
def test_a_mistake_is_told_in_one_line(traces: Path, arguments: list[str], said: str) -> None:
    done = penstock(*(argument.replace("{}", str(traces)) for argument in arguments))
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_trace_with_some_bad_programs_runs_and_tells_of_them(traces: Path) -> None:
    done = penstock("simulate", str(traces / "mixed"), "--json")
    assert done.returncode == 0
    assert "rejected:" in done.stderr
    assert "turns[0].output_tokens" in done.stderr
    assert '"programs_ended": 1' in done.stdout


def test_a_context_larger_than_the_pool_fails_that_program_and_says_why(traces: Path) -> None:
    (traces / "long").write_text(f"{LONG}\n{GOOD}\n")
    done = penstock("simulate", str(traces / "long"), "--pool-tokens", "20000", "--preset", "mars")
    assert done.returncode == 0, done.stderr
    assert "1 of 2 programs failed" in done.stdout
    assert "90000" in done.stdout
    rejected = penstock("simulate", str(traces / "long"), "--max-context", "20000", "--json")
    assert "expected a prompt and output of <= 20000 tokens, got 90009" in rejected.stderr


@pytest.mark.parametrize(
    ("module", "command", "extra"),
    [
        ("typer", "up", "daemon"),
        ("grpc", "status", "daemon"),
        ("watchfiles", "up", "daemon"),
        ("matplotlib", "report x", "sim"),
    ],
)
def test_an_extra_that_is_not_installed_is_named(module: str, command: str, extra: str) -> None:
    words = ["penstock", *command.split()]
    code = f"import sys; sys.modules[{module!r}] = None; sys.argv = {words!r}\n"
    code += "from controlplane.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr == f"penstock: this needs {module}: pip install 'penstock-agents[{extra}]'\n"
