"""Runs an agent's process, and hears what it tells the bus."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
import pytest

from controlplane.core.events import Event
from controlplane.wire.codec import decode_events
from controlplane.wire.delivery import delivered
from controlplane.wire.subjects import all_events_subject

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "agents" / "scripts"
NODE = "agents"
TIMEOUT_S = 240.0  # where a prompt gets lost, a terminal waits for half a minute


class Heard:
    """The events of the node, on a thread of its own."""

    def __init__(self, url: str) -> None:
        self.events: list[Event] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._client = self._do(self._connect(url))

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    async def _connect(self, url: str) -> Any:
        client = await nats.connect(url)

        async def hear(message: Any) -> None:
            self.events += decode_events(message.data).events

        await client.subscribe(all_events_subject(NODE), cb=hear)
        await delivered(client)
        return client

    def of(self, kind: type[Event], **fields: object) -> list[Any]:
        """Those of that kind with these fields, in order."""
        return [
            event
            for event in list(self.events)
            if type(event) is kind and all(getattr(event, name) == value for name, value in fields.items())
        ]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            wait_for(condition, what)
        except AssertionError as error:
            raise AssertionError(f"{error} among:\n" + "\n".join(map(str, self.events))) from None

    def close(self) -> None:
        self._do(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"no {what}"
        time.sleep(0.01)


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
    script = [sys.executable, str(ROOT / "scripts" / "agent_env.py"), name]
    made = subprocess.run(
        [*script, *([] if os.environ.get("CI") == "true" else ["--check"])], capture_output=True, text=True
    )
    if made.returncode:
        if os.environ.get("CI") == "true":
            pytest.fail(made.stderr)
        pytest.skip("no agent frameworks: make agent-env makes their environment (a GB, two minutes)")
    return f"{made.stdout.strip()}/bin/python"


def run_agent(python: str, script: str, told: dict[str, Any], url: str, **variables: str) -> dict[str, Any]:
    """Run one of ``scripts`` to its end; the JSON on its last line. ``variables``: more of its environment."""
    command = [python, str(SCRIPTS / script), json.dumps(told)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment(url) | variables
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
        status = int(self._parent.stdout.readline())
        alarm.cancel()
        return _last_line(status, output.read_text(), errors.read_text())

    def close(self) -> None:
        """End it."""
        self._parent.kill()
        self._parent.communicate()
        self._folder.cleanup()
