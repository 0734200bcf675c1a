"""A model of a folder on a disk that fills up, fails and tears writes: as much of ``Path`` as a snapshot needs."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from random import Random


@dataclass
class Disk:
    """Files by name. ``full``: no write fits. ``failing``: every write ends with an error of the device.

    What was written and not synced is torn when the machine loses its power, also under the name that the file was
    given since.
    """

    random: Random
    full: bool = False
    failing: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    writes: int = 0
    _unsynced: dict[str, int] = field(default_factory=dict)  # files, by the number of their last write

    def write(self, name: str, data: bytes) -> None:
        """Raises ``OSError``; a part of the data may be there then."""
        self.writes += 1
        if self.full or self.failing:
            self.files[name] = data[: self.random.randrange(len(data) or 1)]
            number = errno.ENOSPC if self.full else errno.EIO
            raise OSError(number, "No space left on device" if self.full else "Input/output error", name)
        self.files[name] = data
        self._unsynced[name] = self.writes

    def rename(self, old: str, new: str) -> None:
        if old not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", old)
        self.files[new] = self.files.pop(old)
        self._unsynced[new] = self._unsynced.pop(old, 0)

    def lose_power(self) -> None:
        """The latest write to each file may be there in part only, or not at all."""
        for name in list(self._unsynced):
            if name in self.files and self.random.random() < 0.5:
                self.files[name] = self.files[name][: self.random.randrange(len(self.files[name]) or 1)]
        self._unsynced.clear()

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

    @property
    def parent(self) -> "DiskPath":
        return DiskPath(self.disk, self.name.rpartition("/")[0])

    def with_suffix(self, suffix: str) -> "DiskPath":
        return DiskPath(self.disk, self.name.rpartition(".")[0] + suffix)

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        if self.disk.failing:
            raise OSError(errno.EIO, "Input/output error", self.name)

    def read_bytes(self) -> bytes:
        if self.name not in self.disk.files:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", self.name)
        return self.disk.files[self.name]

    @contextmanager
    def open(self, mode: str) -> Iterator[BytesIO]:
        """For writing; what was written is on its way to the disk once the block ends."""
        assert mode == "wb"
        held = BytesIO()
        yield held
        self.disk.write(self.name, held.getvalue())

    def replace(self, target: "DiskPath") -> "DiskPath":
        self.disk.rename(self.name, target.name)
        return target

    def unlink(self) -> None:
        if self.disk.files.pop(self.name, None) is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", self.name)
