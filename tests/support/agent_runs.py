"""Runs an agent's process."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from support.daemon_process import TIMEOUT_S

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "agents" / "scripts"
NODE = "agents"


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def environment(url: str) -> dict[str, str]:
    """Of an agent's process: this checkout's code, and the bus."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return kept | {
        "PYTHONPATH": str(ROOT),
        "PENSTOCK_NATS_URL": url,
        "PENSTOCK_NODE": NODE,
        "OPENHANDS_SUPPRESS_BANNER": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


def python_of(name: str) -> str:
    """The interpreter with those frameworks. With CI=true it must be there; elsewhere its absence skips."""
    return f"{_environment_of(name)}/bin/python"


def _environment_of(name: str) -> str:
    script = [sys.executable, str(ROOT / "scripts" / "agent_env.py"), name]
    made = subprocess.run(
        [*script, *([] if os.environ.get("CI") == "true" else ["--check"])], capture_output=True, text=True
    )
    if made.returncode:
        if os.environ.get("CI") == "true":
            pytest.fail(made.stderr)
        pytest.skip(f"no agents ({name}): `make agent-env` makes it (GBs, some minutes, kept)")
    return made.stdout.strip()


def harness_folder() -> Path:
    """Where the commands of ``tests/agents/package.json`` are. With CI=true they must be there, else it skips."""
    return Path(_environment_of("harnesses")) / "node_modules" / ".bin"


def run_agent(python: str, script: str, told: dict[str, Any], url: str, **variables: str) -> dict[str, Any]:
    """Run one of ``scripts`` to its end; the JSON on its last line. ``variables``: more of its environment.

    It has long: its frameworks may be imported for the first time.
    """
    command = [python, str(SCRIPTS / script), json.dumps(told)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=3 * TIMEOUT_S, env=environment(url) | variables
    )
    return _last_line(done.returncode, done.stdout, done.stderr)


def _last_line(status: int, output: str, errors: str) -> dict[str, Any]:
    assert status == 0, output[-2000:] + errors[-6000:]
    return {**json.loads(output.splitlines()[-1]), "stderr": errors}


class ImportedOnce:
    """Runs one of ``scripts`` again and again, each time in a process that has ``modules`` imported already."""

    def __init__(self, python: str, script: str, *modules: str) -> None:
        self._script = str(SCRIPTS / script)
        command = [python, str(SCRIPTS / "imported_once.py"), *modules]
        pipe = subprocess.PIPE
        self._parent = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment(""))
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-agent-")

    def run(self, told: dict[str, Any], url: str, **variables: str) -> dict[str, Any]:
        """As ``run_agent`` does."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        output, errors = Path(self._folder.name) / "stdout", Path(self._folder.name) / "stderr"
        asked = {
            "script": self._script,
            "arguments": [json.dumps(told)],
            "environment": environment(url) | variables,
            "stdout": str(output),
            "stderr": str(errors),
        }
        self._parent.stdin.write(json.dumps(asked) + "\n")
        self._parent.stdin.flush()
        process = int(self._parent.stdout.readline())
        alarm = threading.Timer(TIMEOUT_S, os.kill, (process, signal.SIGKILL))
        alarm.start()
        status = int(self._parent.stdout.readline().split()[1])
        alarm.cancel()
        return _last_line(status, output.read_text(), errors.read_text())

    def close(self) -> None:
        """End it."""
        self._parent.kill()
        self._parent.communicate()
        self._folder.cleanup()
