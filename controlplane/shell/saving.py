"""Saves the daemon's state to its file, one snapshot after the other, without waiting for the disk."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from anyio import move_on_after, sleep

from controlplane.files import replace_file
from controlplane.shell.disk import Disk
from controlplane.shell.logs import logger

_PATIENCE_S = 10.0
_LOOK_S = 0.02


class Saver:
    """Keeps the latest snapshot at ``path``. A full or hung disk costs snapshots, never the daemon.

    The stream has what they would have held. ``replace`` writes a file as a whole.
    """

    def __init__(
        self, path: Path, disk: Disk, replace: Callable[[Path, Iterable[bytes]], None] = replace_file
    ) -> None:
        self._path, self._disk, self._replace = path, disk, replace
        self._failure = ""  # of the last one that was written, or was to be
        self._was_logged = False
        self._log = logger("daemon")

    def save(self, pieces: Iterable[bytes]) -> bool:
        """Encode a snapshot now, and have it written; false where the one before still waits for the disk."""
        if self._disk.waiting:
            self._failure = "the disk has not taken the one before"
            self._tell()
            return False
        self._tell()
        encoded = list(pieces)
        return self._disk.put(partial(self._write, encoded), sum(map(len, encoded)))

    async def settled(self) -> None:
        """Return once it is written; after a while all the same."""
        with move_on_after(_PATIENCE_S):
            while self._disk.waiting:  # noqa: ASYNC110  a thread writes it
                await sleep(_LOOK_S)
        if self._disk.waiting:
            self._failure = "the disk has not taken it"
        self._tell()

    def _write(self, pieces: list[bytes]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._replace(self._path, pieces)
            self._failure = ""
        except OSError as error:
            self._failure = str(error)

    def _tell(self) -> None:
        """Log a failure once, until one is written again."""
        if self._failure and not self._was_logged:
            self._log.error("snapshot not written", path=str(self._path), error=self._failure)
        self._was_logged = bool(self._failure)
