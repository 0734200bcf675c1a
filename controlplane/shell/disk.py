"""Writes that nobody waits for: a thread for each file does them in order, so that a disk that hangs stops nothing.

Heartbeats, decisions and commands go on meanwhile. What waits for the disk is bounded; what comes beyond is left
out, counted and logged.
"""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import IO, Protocol

from controlplane.shell.logs import logger

_MOST_BYTES = 32 << 20
_AT_ONCE_BYTES = 1 << 16
_PATIENCE_S = 10.0


class Disk(Protocol):
    """Who does writes (``DiskWriter``), as far as it is used elsewhere."""

    @property
    def waiting(self) -> int:
        """Writes that are not done yet."""
        ...

    def put(self, write: Callable[[], object], size: int) -> bool:
        """Have it done soon. False: too much waits already, and it is left out. It takes care of its errors."""
        ...

    def settle(self, within_s: float = _PATIENCE_S) -> bool:
        """Block until all is done that was put so far; false if that takes longer."""
        ...


class DiskWriter:
    """A thread that writes what is named ``what`` in the log. It begins with the first write, and ends with us."""

    def __init__(self, what: str, *, most_bytes: int = _MOST_BYTES) -> None:
        self.left_out = 0  # writes, since the start
        self._what, self._most_bytes = what, most_bytes
        self._queue: deque[tuple[Callable[[], object], int]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._lags = False
        self._log = logger("disk")

    @property
    def waiting(self) -> int:
        """Writes that are not done yet, with the one that is being done."""
        return len(self._queue)

    def put(self, write: Callable[[], object], size: int) -> bool:
        """As ``Disk`` says. One write always fits, however large. Call it in one thread only."""
        with self._changed:
            if fits := not self._queue or self._bytes + size <= self._most_bytes:
                self._queue.append((write, size))
                self._bytes += size
                self._changed.notify_all()
        if not fits:
            self.left_out += 1
        if fits == self._lags:  # the first that does not fit, or that does again
            self._lags = not fits
            if not fits:
                self._log.error("the disk does not keep up", file=self._what, waiting_bytes=self._bytes)
            else:
                self._log.warning("the disk keeps up again", file=self._what, left_out=self.left_out)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_on, name=f"penstock-{self._what}", daemon=True)
            self._thread.start()
        return fits

    def settle(self, within_s: float = _PATIENCE_S) -> bool:
        """As ``Disk`` says. In any thread but the writer's own."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue, within_s)

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                write, size = self._queue[0]
            try:
                write()
            except Exception as error:  # a fault of ours: what comes next is written all the same
                self._log.error("not written", file=self._what, error=repr(error))
            with self._changed:
                self._queue.popleft()
                self._bytes -= size
                self._changed.notify_all()


class FileBehind:
    """A file for writing whose writes a ``Disk`` does. It is opened there as well.

    ``write`` raises ``OSError`` once an earlier write has failed or was left out: there would be a hole.
    """

    def __init__(self, open_file: Callable[[], IO[bytes]], disk: Disk) -> None:
        self._open, self._disk = open_file, disk
        self._file: IO[bytes] | None = None
        self._failure: OSError | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._closed = False
        self._put(self._begin, 0)

    def write(self, data: bytes) -> int:
        """Have it written; the number of its bytes."""
        if self._failure is not None:
            raise self._failure
        self._pieces.append(data)
        self._size += len(data)
        if self._size >= _AT_ONCE_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Hand over what was written; raises as ``write`` does, of writes before."""
        if self._pieces:
            pieces, size, self._pieces, self._size = self._pieces, self._size, [], 0
            self._put(partial(self._append, pieces), size)
        if self._failure is not None:
            raise self._failure

    def settle(self) -> None:
        """Block until the operating system has all of it, for a while."""
        self.flush()
        self._disk.settle()

    def close(self) -> None:
        """Have the rest written, and the file closed then. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self.flush()
        finally:
            self._disk.put(self._end, 0)

    def _put(self, write: Callable[[], object], size: int) -> None:
        if not self._disk.put(write, size):
            self._failure = self._failure or OSError("the disk does not keep up")

    def _begin(self) -> None:
        try:
            self._file = self._open()
        except OSError as error:
            self._failure = error

    def _append(self, pieces: list[bytes]) -> None:
        try:
            if self._file is not None and self._failure is None:
                self._file.writelines(pieces)
                self._file.flush()
        except OSError as error:
            self._failure = error

    def _end(self) -> None:
        try:
            if self._file is not None:
                self._file.close()
        except OSError as error:
            self._failure = error
