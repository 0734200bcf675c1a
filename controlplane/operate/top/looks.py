"""Asks the daemon in a thread, once a second of wall time however fast its clock runs: no screen waits for it."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from controlplane.core.model.errors import ControlPlaneError
from controlplane.operate.client import ControlClient
from controlplane.operate.tables import has_engines
from controlplane.operate.top.screen import Look

Connect = Callable[[], AbstractContextManager[ControlClient]]
_EVERY_S = 1.0
_PATIENCE_S = 0.5


class Looks:
    """Each is told to ``tell``; where there is none, why. What they ask for may change meanwhile."""

    def __init__(self, connect: Connect, tell: Callable[[Look | ControlPlaneError], object]) -> None:
        self.contains = ""  # only programs with this
        self.engines = 2  # at most
        self.after_ms = 0  # only samples after this
        self._connect, self._tell = connect, tell
        self._at_once, self._is_over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="looks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def at_once(self) -> None:
        """Do not wait for the second to end: the user wants something else."""
        self._at_once.set()

    def stop(self) -> None:
        """A daemon that is frozen keeps nobody."""
        self._is_over.set()
        self._at_once.set()
        self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                with self._connect() as client:  # anew each time: a daemon that was restarted is another process
                    while not self._is_over.is_set():
                        began_s = time.monotonic()
                        self._tell(self.look(client))
                        self._at_once.wait(max(0.0, began_s + _EVERY_S - time.monotonic()))
                        self._at_once.clear()
            except ControlPlaneError as error:
                self._tell(error)
                self._is_over.wait(_EVERY_S)

    def look(self, client: ControlClient) -> Look:
        """Once. Raises ``EngineUnavailable`` where nobody answers."""
        status = client.call("GetStatus")
        return Look(
            status=status,
            listed=client.call("ListPrograms", contains=self.contains),
            samples=client.call("ListSamples", after_ms=self.after_ms).samples,
            engines=client.call("ListEngines", limit=self.engines) if has_engines(status) else None,
        )
