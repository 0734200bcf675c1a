"""Structured logs on standard error: coloured for a terminal, JSON lines otherwise. Prompts never reach them."""

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, TextIO

import structlog

from controlplane import clocks
from controlplane.core.model.text import printable

_MOST_LINES = 100  # of one kind
_WITHIN_S = 10.0
_MOST_KINDS = 1000
LEVELS = ("debug", "info", "warning", "error")
_MOST_BYTES = 1 << 20  # of lines that wait
_PATIENCE_S = 0.02


class _Lossy:
    """Standard error, where a line that cannot be written is lost: a full disk or a closed pipe ends nothing.

    A thread writes, and whoever logs waits a moment for it: nobody may read the pipe, or the disk may hang. What
    waits then is bounded, and how many lines were left out is logged behind it. Each write is a line.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._queue: deque[bytes] = deque()
        self._bytes = self._left_out = 0
        self._lags = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> int:
        data = text.encode(errors="backslashreplace")
        with self._changed:
            if self._bytes + len(data) > _MOST_BYTES:
                self._left_out += 1
                return len(text)
            self._queue.append(data)
            self._bytes += len(data)
            self._changed.notify_all()
            if self._thread is None or not self._thread.is_alive():  # none is in a child after a fork
                self._thread = threading.Thread(target=self._write_on, name="penstock-log", daemon=True)
                self._thread.start()
        return len(text)

    def flush(self) -> None:
        """Return once all is written, or after a moment; at once where the moment was too short before."""
        with self._changed:
            if not self._lags and threading.current_thread() is not self._thread:
                self._lags = not self._changed.wait_for(lambda: not self._queue, _PATIENCE_S)

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                data = self._queue[0]
            self._put(data)
            with self._changed:
                self._queue.popleft()
                self._bytes -= len(data)
                left_out, self._lags = self._left_out, self._lags and bool(self._queue)
                if not self._queue:
                    self._left_out = 0
                self._changed.notify_all()
            if left_out and not self._lags:
                logger("log").warning("lines left out", count=left_out)

    def _put(self, data: bytes) -> None:
        """By the descriptor: whoever hangs in the file itself holds its lock, and the process could not end."""
        with suppress(OSError, ValueError):
            try:
                number = self._file.fileno()
            except OSError:  # a buffer in memory
                self._file.write(data.decode())
                return
            while data:
                data = data[os.write(number, data) :]


class _Few:
    """Leaves out lines of a kind that come too often: what strangers bring about could fill the disk.

    The next line of the kind says how many were left out. Debugging shows all.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[object, object], tuple[float, int]] = {}  # since when, how many

    def __call__(self, _: Any, level: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if level == "debug":
            return entry
        kind, now_s = (entry.get("part"), entry["event"]), clocks.awake_s()
        since_s, count = self._kinds.get(kind, (now_s, 0))
        if now_s - since_s >= _WITHIN_S:
            if count > _MOST_LINES:
                entry["left_out"] = count - _MOST_LINES
            since_s, count = now_s, 0
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        self._kinds[kind] = since_s, count + 1
        if count >= _MOST_LINES:
            raise structlog.DropEvent
        return entry


def configure(level: str = "info", *, json: bool | None = None) -> None:
    """``json`` None: JSON unless standard error is a terminal."""
    as_json = not sys.stderr.isatty() if json is None else json
    renderer: Any = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _Few(),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _printable,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(_Lossy(sys.stderr)),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    # nats-py logs each failed reconnect with its stack; the bus says the same in one line.
    logging.getLogger("nats").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # warns of nothing when nats-py hangs up with TLS


def _printable(_: Any, __: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace what a terminal would obey: much of a line was chosen by agents."""
    for name, value in entry.items():
        if isinstance(value, str):
            entry[name] = "\n".join(map(printable, value.split("\n"))) if name == "exception" else printable(value)
    return entry


def logger(room: str) -> Any:
    """A logger that names the part of the program it speaks for."""
    return structlog.get_logger(part=room)
