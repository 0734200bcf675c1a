"""Processes of one run, ended with it: engine doubles, Envoy, NATS, a fleet daemon."""

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

_PATIENCE_S = 60.0


def until(condition: Callable[[], bool], what: str) -> None:
    """Poll. Raises ``TimeoutError`` after a minute."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"after {_PATIENCE_S:g} s still not: {what}")
        time.sleep(0.05)


def answers(url: str) -> bool:
    """Whether that URL answers with 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class Started:
    """A process and its output, which is kept in ``log``."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.command = list(command)
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, or start it again."""
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(self.command, stdout=out, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        """SIGKILL, as when its machine dies."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that does not help."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def __enter__(self) -> "Started":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def last_words(self) -> str:
        """The end of its output, for an error."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-5:])


def penstock(*arguments: str) -> list[str]:
    """A command of this checkout."""
    return [sys.executable, "-m", "controlplane", *arguments]
