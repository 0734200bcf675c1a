"""One process of a fleet: started, killed and frozen on purpose, and known by its name."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from math import inf
from pathlib import Path
from threading import Lock

from controlplane.core.model.errors import EngineUnavailable
from controlplane.lab.surroundings import own_environment

_POLL_S = 0.02
_ENDS_WITHIN_S = 30.0


class Kind(StrEnum):
    """What a process is."""

    NATS = "nats-server"
    ENGINE = "engine"
    DAEMON = "fleet daemon"
    ENVOY = "Envoy"


class Process:
    """``command`` in a process of its own; ``port`` is where it listens once it is ready. It stays the same.

    What it starts itself belongs to it, and is killed with it. ``is_ready`` looks at the port; ``ready_within_s``:
    how long its start may take.
    """

    def __init__(
        self,
        name: str,
        kind: Kind,
        command: Sequence[str],
        *,
        port: int,
        log: Path,
        environment: Mapping[str, str],
        is_ready: Callable[[int], bool] | None = None,
        ready_within_s: float = 90.0,
    ) -> None:
        self.name, self.kind, self.port, self.log = name, kind, port, log
        self._is_ready, self._ready_within_s = is_ready or listens, ready_within_s
        self.kills = 0
        self.ends = 0  # times that it ended by itself
        self.frozen = False
        self.back_s = 0.0  # when it was last there again, by the monotonic clock; infinite while it is away
        self._command, self._environment = list(command), dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted = False
        self._starting = Lock()  # who waits for it looks after it too, in a thread

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """0 while it does not run."""
        return self._process.pid if self._process is not None and self.alive else 0

    def start(self) -> None:
        """Begin; ``wait`` says when it is ready."""
        with self._starting:
            self._wanted = True
            self._begin()

    def _begin(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=own_environment(**self._environment),
                start_new_session=True,  # a Ctrl-C is for whoever started it, and a kill for all that it starts
            )

    def wait(self, most_ends: float = inf) -> None:
        """Until it is ready; started again if it ends before, so many times. Raises ``EngineUnavailable``."""
        until_s, ended = time.monotonic() + self._ready_within_s, self.ends
        while not self._is_ready(self.port):
            late, failing = time.monotonic() > until_s, self.ends - ended > most_ends
            if late or failing:
                what = (
                    "ends whenever it is started" if failing else f"is not ready after {self._ready_within_s:g} s"
                )
                raise EngineUnavailable(f"{self.name} {what}; it says: {self.last_line()} ({self.log})")
            self.keep()
            time.sleep(_POLL_S)
        self.back_s = time.monotonic()

    def keep(self) -> None:
        """Start it again if it ended by itself, as a supervisor does."""
        with self._starting:
            if self._wanted and not self.alive:
                self.ends += 1
                self._kill_what_it_started()
                self._begin()

    def kill(self) -> None:
        """As a crash: nothing is said, nothing is written."""
        with self._starting:
            self._wanted = False
        self.kills, self.back_s = self.kills + 1, float("inf")
        self._signal(signal.SIGKILL)
        self._reap()
        self._kill_what_it_started()
        self.frozen = False

    def freeze(self) -> None:
        """It keeps its connections and does nothing."""
        self._signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)
        self.frozen = False

    def stop(self) -> None:
        """End it in order; a crash if it takes too long."""
        with self._starting:
            self._wanted = False
        if self.frozen:
            self.thaw()
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._reap(_ENDS_WITHIN_S)
        if self.alive:
            self.kill()
        self._kill_what_it_started()

    def last_line(self) -> str:
        try:
            return (self.log.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1]
        except OSError:
            return "nothing"

    def resident_bytes(self) -> int:
        """Memory that it holds now; 0 while it does not run."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.alive:
            self._process.send_signal(number)

    def _kill_what_it_started(self) -> None:
        """Of an engine this is the larger part: its schedulers hold the memory."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process = None  # its number may be another's from now on

    def _reap(self, timeout_s: float | None = None) -> None:
        if self._process is not None:
            self._process.wait(timeout_s)


def listens(port: int) -> bool:
    """Whether somebody listens on that port of this machine."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
