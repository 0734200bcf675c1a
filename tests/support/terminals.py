"""Commands as a person types them: each in a terminal of its own, whose screen can be read."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyte

_COLUMNS, _LINES = 120, 40
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """One command line, run by bash on a pseudo-terminal that pyte draws."""

    def __init__(self, line: str, *, folder: Path, environment: Mapping[str, str]) -> None:
        self.line = line
        self._said = b""
        self._screen = pyte.Screen(_COLUMNS, _LINES)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            ["bash", "-euc", line],
            cwd=folder,
            env={**environment, "TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._ours = ours
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # how Linux tells that nobody has the other end open
            while chunk := os.read(self._ours, 65536):
                with self._lock:
                    self._stream.feed(chunk)
                    self._said += chunk

    @property
    def said(self) -> str:
        """All that it wrote, without colours."""
        with self._lock:
            return _ESCAPES.sub("", self._said.decode(errors="replace"))

    @property
    def screen(self) -> list[str]:
        """The lines as they stand there now."""
        with self._lock:
            return list(self._screen.display)

    def type(self, keys: str) -> None:
        """Press those keys."""
        os.write(self._ours, keys.encode())

    def until_said(self, pattern: str, timeout_s: float = 120.0) -> None:
        """Wait for a regular expression in what it says."""
        self.until(lambda: re.search(pattern, self.said) is not None, pattern, timeout_s)

    def until(self, found: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
        """Wait for something; a command that ends before that is an error."""
        deadline_s = time.monotonic() + timeout_s
        while not found():
            assert self.process.poll() is None, f"{self.line} ended with {self.process.returncode}: {self.said}"
            shown = "\n".join(line.rstrip() for line in self.screen).rstrip()
            assert time.monotonic() < deadline_s, f"{self.line}: no {what} on its screen:\n{shown}"
            time.sleep(0.05)

    def wait(self, timeout_s: float = 240.0) -> int:
        """Its exit status."""
        status = self.process.wait(timeout_s)
        self._reader.join(5)  # what is left on the pseudo-terminal
        return status

    def interrupt(self) -> int:
        """As Ctrl-C does; its exit status."""
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            os.killpg(self.process.pid, signal.SIGINT)
        return self.wait()

    def close(self) -> None:
        """End it and what it started."""
        end_group(self.process.pid)
        self.process.wait()
        self._reader.join(5)
        os.close(self._ours)


def end_group(group: int, patience_s: float = 10.0) -> None:
    """As an operator would: let them stop what they have started, and kill only who does not."""
    deadline_s = time.monotonic() + patience_s
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        while time.monotonic() < deadline_s:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-group, os.WNOHANG)  # else who has ended still is of the group
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)


class Terminals:
    """Several on one machine: what serves goes on behind what is typed next."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self._open: list[Terminal] = []

    def start(self, line: str) -> Terminal:
        """Type it, and do not wait."""
        self._open.append(Terminal(line, folder=self.folder, environment=self.environment))
        return self._open[-1]

    def run(self, line: str) -> str:
        """To its end, which must be a good one; what it said."""
        terminal = self.start(line)
        assert terminal.wait() == 0, f"{line}: {terminal.said[-2000:]}"
        assert "Traceback" not in terminal.said
        return terminal.said

    def interrupt(self) -> None:
        """Ctrl-C in each that is still at it, the last first; all end well, or say which programs failed."""
        serving = [terminal for terminal in reversed(self._open) if terminal.process.poll() is None]
        ended = {terminal.line: terminal.interrupt() for terminal in serving}
        for terminal in serving:
            if ended[terminal.line] == 1 and "programs failed" in terminal.said:
                del ended[terminal.line]
        assert set(ended.values()) <= {0}, ended

    def close(self) -> None:
        """End all at once, whatever they do."""
        while self._open:
            self._open.pop().close()  # the last first: servers outlive their clients


def with_commands_of(interpreter: str, **variables: str) -> dict[str, str]:
    """An environment in which ``penstock`` is found beside ``interpreter``."""
    path = f"{Path(interpreter).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **variables}
