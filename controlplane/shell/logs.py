"""Structured logs on standard error: coloured for a terminal, JSON lines otherwise. Prompts never reach them."""

import logging
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, TextIO

import structlog

from controlplane.core.text import printable

LEVELS = ("debug", "info", "warning", "error")


class _Lossy:
    """Standard error, where a line that cannot be written is lost: a full disk or a closed pipe ends nothing."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            return self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._file.flush()


def configure(level: str = "info", *, json: bool | None = None) -> None:
    """``json`` None: JSON unless standard error is a terminal."""
    as_json = not sys.stderr.isatty() if json is None else json
    renderer: Any = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _printable,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(_Lossy(sys.stderr)),  # type: ignore[arg-type]
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
