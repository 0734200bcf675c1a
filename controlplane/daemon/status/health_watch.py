"""Keeps what the daemon knows of itself up to date, and logs each finding when it begins and when it ends."""

import errno
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from anyio import sleep, to_thread

from controlplane import clocks
from controlplane.core.model.events import REFUSALS
from controlplane.daemon.process import disk
from controlplane.daemon.process.logs import logger
from controlplane.daemon.status.health import DaemonHealth, Finding, Level
from controlplane.daemon.status.status import Status
from controlplane.eventloop import task_group
from controlplane.transport.bounds import most_open_files

_LOOK_S = 1.0
_ASK_S = 5.0
LATELY_S = 600.0
"""Seconds after which what happened once is no finding any more."""
_JUMP_S = 1.0
_AGAIN_S = 60.0  # between two lines about what is found and changes, as counts do


class HealthWatch:
    """Looks once a second. ``status`` is made of ``own``, which this keeps; ``folder`` is on the disk that counts.

    ``wall_s`` and ``monotonic_s`` are the machine's two clocks; by ``awake_s`` the disk's silence is judged.
    """

    def __init__(
        self,
        own: DaemonHealth,
        status: Callable[[], Status],
        folder: Path,
        *,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
        awake_s: Callable[[], float] = clocks.awake_s,
    ) -> None:
        self._own, self._status, self._folder = own, status, folder
        self._wall_s, self._monotonic_s, self._awake_s = wall_s, monotonic_s, awake_s
        self._ahead_s = wall_s() - monotonic_s()
        self._asked_s: float | None = None  # the disk: since when it owes an answer
        self._grew: dict[str, tuple[int, int, float]] = {}  # what it was before, what it is, since when
        self._changed: dict[str, tuple[int, float]] = {}  # what it is, since when
        self._seen: set[str] = set()  # at the last look
        self._reported: dict[str, tuple[Finding, float]] = {}
        self._said: dict[str, tuple[str, float]] = {}  # of those: in which words, and when
        self._log = logger("health")

    async def keep(self) -> None:
        async with task_group() as group:
            group.start_soon(self._ask_disk)
            while True:
                self.look()
                await sleep(_LOOK_S)

    def look(self, *, is_last: bool = False) -> None:
        """Look once, and log what has begun and what is over: what is seen twice, or the last time."""
        now_s, own = self._monotonic_s(), self._own
        ahead_s = self._wall_s() - now_s
        if abs(ahead_s - self._ahead_s) > _JUMP_S:
            own.jumped_s = ahead_s - self._ahead_s
        self._ahead_s = ahead_s
        asked_s = 0.0 if self._asked_s is None else self._awake_s() - self._asked_s
        own.disk_silent_s = max(asked_s, disk.longest_write_s())  # a file system may answer and take no write
        own.frozen_s = own.frozen_s if self._is_late("frozen", round(own.frozen_s * 1e6), now_s) else 0.0
        own.jumped_s = own.jumped_s if self._is_late("jumped", round(own.jumped_s * 1e6), now_s) else 0.0
        status = self._status()
        counts = dict.fromkeys(REFUSALS, 0) | {each.code: each.turns for each in status.refusals}
        counts["connections"] = sum(row.refused for row in status.listeners)
        own.left_out = dict(disk.left_out)
        counts["left_out"] = sum(own.left_out.values())
        counts |= {"refused": status.refused, "rejected": status.rejected - status.refused}
        own.lately = {name: total - self._before(name, total, now_s) for name, total in counts.items()}
        self._report(status, now_s, is_last=is_last)

    def _is_late(self, name: str, value: int, now_s: float) -> bool:
        latest, since_s = self._changed.get(name, (0, now_s))
        if value != latest:
            since_s = now_s
        self._changed[name] = value, since_s
        return bool(value) and now_s - since_s < LATELY_S

    def _before(self, name: str, total: int, now_s: float) -> int:
        """The total before it grew last, or what it is once it has not for a while."""
        before, latest, since_s = self._grew.get(name, (total, total, now_s))
        if total != latest:
            latest, since_s = total, now_s
        elif now_s - since_s >= LATELY_S:
            before = total
        self._grew[name] = before, latest, since_s
        return before

    def _report(self, status: Status, now_s: float, *, is_last: bool) -> None:
        found = {each.name: each for each in status.findings}
        seen, self._seen = self._seen, set(found)
        for name in [name for name in self._reported if name not in found]:
            finding, since_s = self._reported.pop(name)
            self._log.info(f"{finding.title}: over", for_s=round(now_s - since_s, 1))
        for name, finding in found.items():
            said, said_s = self._said.get(name, ("", 0.0)) if name in self._reported else ("", 0.0)
            is_new = name not in self._reported and (is_last or name in seen)
            if is_new or (said and said != finding.found and now_s - said_s >= _AGAIN_S):
                self._reported.setdefault(name, (finding, now_s))
                self._said[name] = finding.found, now_s
                write = self._log.info if finding.level is Level.NOTE else self._log.warning
                write(finding.title, found=finding.found, advice=finding.advice)

    async def _ask_disk(self) -> None:
        """In a thread, which a disk that hangs may keep: then nobody asks again before it answers."""
        own = self._own
        while True:
            self._asked_s = self._awake_s()
            own.free_bytes, own.files, own.most_files = await to_thread.run_sync(
                _room, self._folder, abandon_on_cancel=True
            )
            self._asked_s = None
            await sleep(_ASK_S)


def _room(folder: Path) -> tuple[int, int, int]:
    """Free bytes of the folder's disk, open files and how many may be; negative where it is not known."""
    most = most_open_files()
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        free = -1
    try:
        return free, sum(1 for _ in Path("/proc/self/fd").iterdir()), most
    except OSError as error:
        return free, most if error.errno == errno.EMFILE else -1, most
