"""A notice board: what the scheduler's process tells of itself, for the health page of the HTTP process.

It is a piece of memory that belongs to the HTTP process and ends with it. The scheduler's process, its child, finds
it by an environment variable and writes on it once a second, from a thread of its own.
"""

import json
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from controlplane.emit.emitter import Emitter
from engine_hooks.guard import Guard, log

VARIABLE = "PENSTOCK_PLUGIN_BOARD"
_SIZE_BYTES = 1 << 16
_READS = 3  # one that meets a write in progress makes no sense
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+(?=@)")


class HealthFile:
    """The board, as the HTTP process has it; as each of several has that of their parent, with ``shared``."""

    def __init__(self, *, shared: bool = False) -> None:
        if shared:
            self._file = os.open(os.environ[VARIABLE], os.O_RDONLY)
            return
        self._file = os.memfd_create("penstock-board")
        os.environ[VARIABLE] = f"/proc/{os.getpid()}/fd/{self._file}"

    def read(self, slot: int = 0) -> Any:
        """What was written there last; None if that is nothing. Each of several schedulers has a slot."""
        for _ in range(_READS):
            data = os.pread(self._file, _SIZE_BYTES, slot * _SIZE_BYTES)
            try:
                return json.loads(data)
            except ValueError:
                continue
        return None


def post(
    source: Callable[[], object], *, slot: Callable[[], int] = lambda: 0, every_s: float = 1.0
) -> threading.Thread | None:
    """Write what ``source`` says on the parent's board, now and then again; None where there is no board.

    Nothing is written while it says None. An error is logged once, and the next word is written all the same.
    """
    path = os.environ.get(VARIABLE, "")
    if not path:
        return None
    thread = threading.Thread(target=_post, args=(path, source, slot, every_s), name="penstock-board", daemon=True)
    thread.start()
    return thread


def _post(path: str, source: Callable[[], object], slot: Callable[[], int], every_s: float) -> None:
    failed = False
    while True:
        try:
            _write(path, source(), slot())
            failed = False
        except Exception as error:
            if not failed:
                log.warning("penstock: the health page says nothing new of the scheduler: %s", error)
            failed = True
        time.sleep(every_s)


def _write(path: str, report: object, slot: int) -> None:
    text = json.dumps(report).encode()
    if report is None or len(text) > _SIZE_BYTES:
        return
    file = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(file, text.ljust(_SIZE_BYTES), slot * _SIZE_BYTES)
    finally:
        os.close(file)


def account(guard: Guard, emitter: Emitter | None) -> dict[str, object]:
    """What a health page shows of one process. No password of the bus is in it."""
    report: dict[str, object] = {"hook_failures": dict(guard.failures), "emitter": None}
    if guard.times:
        report["hook_times"] = {name: asdict(spent) for name, spent in list(guard.times.items())}
    if emitter is not None:
        stats = asdict(emitter.stats)
        stats["last_error"] = _PASSWORD.sub("***", stats["last_error"])
        report["emitter"] = stats
    return report
