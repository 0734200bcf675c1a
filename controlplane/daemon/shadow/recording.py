"""The latest stretch of what the daemon heard and decided, on disk: what the laboratory replays.

It is an event log as ``penstock up --record`` writes one, in pieces, of which the oldest go as new ones come.
"""

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.steps import run
from controlplane.daemon.pipeline import Decided, Fed, writing_down
from controlplane.daemon.process.disk import BackgroundFile, DiskWriter
from controlplane.wire.log import Header, LogWriter, create

_PIECES = 10  # that a stretch is made of
_STATE = b'{"record":"state"'  # how the line begins that only the first piece's is needed of


@dataclass(frozen=True, slots=True)
class _Piece:
    path: Path
    began_ns: int


class RollingRecording:
    """Keeps pieces in ``folder``, which is its own, together ``length_ns`` of the daemon's time or a little more.

    ``head`` tells the log's header and the controller's state when a piece begins. ``disk`` does what waits for the
    disk.
    """

    def __init__(
        self, folder: Path, length_ns: int, head: Callable[[int], tuple[Header, str]], disk: DiskWriter
    ) -> None:
        self._folder, self._length_ns, self._head = folder, length_ns, head
        self._disk = disk
        self._pieces: list[_Piece] = []
        self._writer: LogWriter | None = None
        self._made = 0
        self.failed = ""  # why nothing more is kept

    @property
    def began_ns(self) -> int:
        """When the oldest piece began; 0: there is none."""
        return self._pieces[0].began_ns if self._pieces else 0

    def write(self, fed: Fed, decided: Decided) -> None:
        if self.failed or self._writer is None:
            return
        run(writing_down(self._writer, fed, decided))
        self.failed = self._writer.failed

    def turn(self, now_ns: int) -> None:
        """Begin a piece where one is due, from how things stand now: all that happened before was written."""
        if self.failed or (self._writer and now_ns - self._pieces[-1].began_ns < self._length_ns // _PIECES):
            return
        try:
            self._begin_piece(now_ns)
        except (ConfigError, OSError) as error:
            self.failed = str(error)

    def _begin_piece(self, now_ns: int) -> None:
        if self._writer is None:
            self._empty()
        else:
            self._writer.close()
        header, state = self._head(now_ns)
        self._made += 1
        path = self._folder / f"{self._made:06}.jsonl"
        self._writer = LogWriter(path, header, BackgroundFile(partial(create, path), self._disk))
        self._writer.state(state, now_ns)
        self._pieces.append(_Piece(path, now_ns))
        while len(self._pieces) > 1 and now_ns - self._pieces[1].began_ns >= self._length_ns:
            self._disk.put(partial(_remove, self._pieces.pop(0).path), 0)

    def pieces(self) -> list[Path]:
        """The pieces, the oldest first; all that was written is in them once ``settle`` has returned."""
        if self._writer is not None:
            self._writer.flush()
        return [piece.path for piece in self._pieces]

    def settle(self) -> None:
        """Block until the disk has all that was written, for a while."""
        self._disk.settle()

    def drop(self) -> None:
        """Keep nothing of what was: there will be a hole. The next piece begins a new stretch."""
        if self._writer is not None:
            self._writer.close()
        self._writer, self._pieces = None, []
        self._empty()

    def _empty(self) -> None:
        self._disk.put(partial(shutil.rmtree, self._folder, ignore_errors=True), 0)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def join(pieces: Sequence[Path], path: Path) -> None:
    """Put pieces together into one log. In any thread; a piece that went meanwhile begins the log later.

    Raises ``OSError``.
    """
    with path.open("wb") as log:
        for piece in pieces:
            try:
                lines = piece.open("rb")
            except FileNotFoundError:
                continue
            with lines:
                if not log.tell():
                    shutil.copyfileobj(lines, log)
                else:
                    lines.readline()
                    log.writelines(line for line in lines if not line.startswith(_STATE))
