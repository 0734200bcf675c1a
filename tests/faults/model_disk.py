"""A model of a folder on a disk that fills up, fails, hangs and forgets: as much of it as a snapshot needs."""

import errno
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .processes import Process

_STEPS = 4  # of a replacement: the draft is written, synced, renamed; the folder is synced


class _Ended(Exception):
    """Of the process, in the middle of a replacement."""


@dataclass
class Disk:
    """Files by name. ``full``: no write fits. ``failing``: every write ends with an error of the device.

    ``hung``: none ends. What was not synced may be torn when the machine loses its power, and a name may be what it
    was before the folder was last synced.
    """

    random: Random
    full: bool = False
    failing: bool = False
    hung: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    _unsynced: set[str] = field(default_factory=set)  # content
    _before: dict[str, bytes | None] = field(default_factory=dict)  # of names that are not synced

    def replace(self, name: str, data: bytes, steps: int = _STEPS) -> None:
        """Write a file as a whole. Raises ``OSError``, or ``_Ended`` after so many steps."""
        draft = f"{name}.draft"
        self._write(draft, data)
        for step in (self._sync, self._rename, self._sync_names)[: steps - 1]:
            step(draft, name)
        if steps < _STEPS:
            raise _Ended

    def _write(self, name: str, data: bytes) -> None:
        if self.full or self.failing:
            number = errno.ENOSPC if self.full else errno.EIO
            raise OSError(number, "No space left on device" if self.full else "Input/output error", name)
        self.files[name] = data
        self._unsynced.add(name)

    def _sync(self, draft: str, _: str) -> None:
        self._unsynced.discard(draft)

    def _rename(self, draft: str, name: str) -> None:
        self._before.setdefault(name, self.files.get(name))
        self.files[name] = self.files.pop(draft)
        if draft in self._unsynced:
            self._unsynced.symmetric_difference_update((draft, name))

    def _sync_names(self, _: str, name: str) -> None:
        self._before.pop(name, None)

    def lose_power(self) -> None:
        """What was not synced may be there, in part or as it was before."""
        for name in sorted(self._unsynced & self.files.keys()):
            if self.random.random() < 0.5:
                self.files[name] = self.files[name][: self.random.randrange(len(self.files[name]) or 1)]
        for name, before in sorted(self._before.items()):
            if self.random.random() < 0.5:
                self.files.pop(name, None)
                self.files.update({name: before} if before is not None else {})
        self._unsynced.clear()
        self._before.clear()

    def tear(self, name: str) -> None:
        """A file is damaged."""
        if name in self.files:
            self.files[name] = self.files[name][: len(self.files[name]) // 2]


@dataclass(frozen=True)
class DiskPath:
    """A file on a ``Disk``."""

    disk: Disk
    name: str

    def __str__(self) -> str:
        return self.name

    def __fspath__(self) -> str:
        """It is on no real disk. So a daemon keeps no mark of the message under way, as where it may not write."""
        raise OSError(errno.ENOENT, "No such file or directory", self.name)

    @property
    def parent(self) -> "DiskPath":
        return DiskPath(self.disk, self.name.rpartition("/")[0])

    def with_suffix(self, suffix: str) -> "DiskPath":
        return DiskPath(self.disk, self.name.rpartition(".")[0] + suffix)

    def replace(self, target: "DiskPath") -> "DiskPath":
        """A rename on its own, which a loss of power may undo."""
        self.disk.files[target.name] = self.disk.files.pop(self.name)
        return target

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        if self.disk.failing:
            raise OSError(errno.EIO, "Input/output error", self.name)

    def read_bytes(self) -> bytes:
        """All of it. Raises ``FileNotFoundError``."""
        self._there()
        return self.disk.files[self.name]

    def _there(self) -> None:
        if self.name not in self.disk.files:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", self.name)


def read_bytes(path: DiskPath, most_bytes: int) -> bytes:
    """As ``controlplane.wire.files.read_bytes``, of a file that is small enough."""
    return path.read_bytes()


class WriterThread:
    """Does a process's writes, each some time after it was put; one that the process's end cuts is done in part."""

    def __init__(self, process: "Process", disk: Disk) -> None:
        self._process, self._disk = process, disk
        self._queue: deque[Callable[[], object]] = deque()
        self._steps = _STEPS

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def put(self, write: Callable[[], object], size: int) -> bool:
        self._queue.append(write)
        if len(self._queue) == 1:
            self._go_on()
        return True

    def settle(self, within_s: float = 0.0) -> bool:
        return not self._queue

    def replace(self, path: DiskPath, pieces: Iterable[bytes]) -> None:
        """As ``controlplane.files.replace_file``."""
        self._disk.replace(path.name, b"".join(pieces), self._steps)

    def cut(self) -> None:
        """The process ends, now."""
        if self._queue and not self._disk.hung and (steps := self._disk.random.randrange(_STEPS)):
            self._steps = steps
            with suppress(_Ended):
                self._queue.popleft()()
        self._queue.clear()

    def _go_on(self) -> None:
        self._process.world.scheduler.after(self._disk.random.uniform(0.001, 0.1), self._write)

    def _write(self) -> None:
        if not self._process.is_alive:
            return
        if not (self._disk.hung or self._process.is_frozen):
            self._queue[0]()
            self._queue.popleft()
        if self._queue:
            self._go_on()
