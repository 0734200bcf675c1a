"""Saves the daemon's state to its file, one snapshot after the other, without waiting for the disk."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from anyio import move_on_after, sleep

from controlplane.core.model.steps import Steps
from controlplane.daemon.process.disk import DiskWriter
from controlplane.daemon.process.set_aside import write_messages
from controlplane.daemon.process.tasks import described
from controlplane.files import replace_file

_PATIENCE_S = 10.0
_LOOK_S = 0.02


class Saver:
    """Keeps the latest snapshot at ``path``. A full or hung disk costs snapshots, never the daemon.

    The stream has what they would have held. ``replace`` writes a file as a whole.
    """

    def __init__(
        self, path: Path, disk: DiskWriter, replace: Callable[[Path, Iterable[bytes]], None] = replace_file
    ) -> None:
        self._path, self._disk, self._replace = path, disk, replace
        self.failure = ""  # why the last one was not written

    def saving(self, pieces: Iterable[bytes]) -> Steps[None]:
        """Encode a snapshot, with pauses, and have it written; none where the one before waits for the disk."""
        if self._disk.waiting:
            self.failure = "the disk has not taken the one before"
            return
        encoded = []
        try:
            for piece in pieces:
                encoded.append(piece)
                yield
        except Exception as error:  # its records may contradict each other in any way
            self.failure = described(error)
            return
        self._disk.put(partial(self._write, encoded), sum(map(len, encoded)))

    async def settled(self) -> None:
        """Return once it is written; after a while all the same."""
        with move_on_after(_PATIENCE_S):
            while self._disk.waiting:  # noqa: ASYNC110  a thread writes it
                await sleep(_LOOK_S)
        if self._disk.waiting:
            self.failure = "the disk has not taken it"

    def set_aside(self, messages: list[bytes]) -> None:
        if messages:
            self._disk.put(partial(write_messages, self._path.parent, messages), sum(map(len, messages)))

    def _write(self, pieces: list[bytes]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._replace(self._path, pieces)
            self.failure = ""
        except OSError as error:
            self.failure = f"{self._path}: {error.strerror or error}"
