"""How a daemon that starts reads what the stream holds beyond its snapshot.

A message may kill the process outright, and would be read at each start again. Whoever ended twice at the same one
goes on without it.
"""

import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from types import TracebackType

from controlplane import clocks
from controlplane.daemon.bus.connection import Delivery, Inbox
from controlplane.daemon.process.logs import logger

_RECORD = Struct("<QQ")  # a position in the stream, and how often a process ended there
_MOST_ENDS = 2
_WAIT_S = 0.5
_STALLED_S = 30.0  # so long nothing of what the stream has: its last messages may have been deleted


async def backlog(inbox: Inbox, position: int, last: int) -> AsyncIterator[list[Delivery]]:
    """What comes after ``position`` until ``last`` came, or no more does; an empty list now and then meanwhile."""
    last_seen_s = clocks.awake_s()
    while position < last:
        deliveries = await inbox.take(_WAIT_S)
        yield deliveries
        if deliveries:
            last_seen_s, position = clocks.awake_s(), deliveries[-1].sequence
        elif clocks.awake_s() - last_seen_s >= _STALLED_S:
            logger("daemon").warning("the stream says no more", sequence=position, of=last)
            return


class RecoveryMark:
    """A file that names the message under way; closed, it names none. Without the file nothing is left out."""

    def __init__(self, path: Path) -> None:
        self._file, self._ended_at = -1, (0, 0)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            found = os.pread(self._file, _RECORD.size, 0)
            self._ended_at = _RECORD.unpack(found) if len(found) == _RECORD.size else (0, 0)

    def __enter__(self) -> "RecoveryMark":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._file >= 0:
            self._write(0, 0)
            os.close(self._file)
            self._file = -1

    def begin(self, sequence: int) -> bool:
        """Tell which message comes next; false: it is to be left out."""
        position, ends = self._ended_at
        here = ends if sequence == position else 0
        if here >= _MOST_ENDS:
            return False
        self._write(sequence, here + 1)
        return True

    def _write(self, sequence: int, ends: int) -> None:
        with suppress(OSError):
            os.pwrite(self._file, _RECORD.pack(sequence, ends), 0)
