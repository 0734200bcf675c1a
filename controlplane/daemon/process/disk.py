"""Writes that nobody waits for: a thread for each file does them in order, so that a disk that hangs stops nothing.

Heartbeats, decisions and commands go on meanwhile. What waits for the disk is bounded; what comes beyond is left
out, counted and logged.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import IO

from controlplane import clocks
from controlplane.daemon.process.logs import logger

_MOST_BYTES = 32 << 20
_AT_ONCE_BYTES = 1 << 16
_PATIENCE_S = 10.0
left_out: Counter[str] = Counter()
"""Writes that this process has left out, by file."""
_begun_s: dict[int, float] = {}  # by writer: since when one write is under way


def longest_write_s() -> float:
    """For how long a write of this process has been under way, in seconds while the machine ran."""
    return max((clocks.awake_s() - begun_s for begun_s in list(_begun_s.values())), default=0.0)


class DiskWriter:
    """A thread that writes what is named ``what`` in the log. It begins with the first write, and ends with us."""

    def __init__(self, what: str, *, most_bytes: int = _MOST_BYTES) -> None:
        self._what, self._most_bytes = what, most_bytes
        self._queue: deque[tuple[Callable[[], object], int]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._lags = False
        self._log = logger("disk")

    @property
    def waiting(self) -> int:
        """Writes that are not done yet."""
        return len(self._queue)

    def put(self, write: Callable[[], object], size: int) -> bool:
        """Have it done soon. False: too much waits already, and it is left out. It takes care of its errors.

        One write always fits, however large. Call it in one thread only.
        """
        with self._changed:
            if fits := not self._queue or self._bytes + size <= self._most_bytes:
                self._queue.append((write, size))
                self._bytes += size
                self._changed.notify_all()
        if not fits:
            left_out[self._what] += 1
        if fits == self._lags:  # the first that does not fit, or that does again
            self._lags = not fits
            if not fits:
                self._log.error("the disk does not keep up", file=self._what, waiting_bytes=self._bytes)
            else:
                self._log.warning("the disk keeps up again", file=self._what, left_out=left_out[self._what])
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_on, name=f"penstock-{self._what}", daemon=True)
            self._thread.start()
        return fits

    def settle(self, within_s: float = _PATIENCE_S) -> bool:
        """Block until all is done that was put; false if that takes longer. Not in the writer's own thread."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue, within_s)

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                write, size = self._queue[0]
            _begun_s[id(self)] = clocks.awake_s()
            try:
                write()
            except Exception as error:  # a fault of ours: what comes next is written all the same
                self._log.error("not written", file=self._what, error=repr(error))
            finally:
                del _begun_s[id(self)]
            with self._changed:
                self._queue.popleft()
                self._bytes -= size
                self._changed.notify_all()


class BackgroundFile:
    """A file for writing whose writes a ``DiskWriter`` does. It is opened there as well.

    ``write`` raises ``OSError`` once an earlier write has failed or was left out: there would be a hole.
    """

    def __init__(self, open_file: Callable[[], IO[bytes]], disk: DiskWriter) -> None:
        self._open, self._disk = open_file, disk
        self._file: IO[bytes] | None = None
        self._failure: OSError | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._closed = False
        self._put(self._begin, 0)

    def write(self, data: bytes) -> int:
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
