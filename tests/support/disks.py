"""Disks that tests write to: one that does at once what the daemon's does in a thread, and real ones."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

_DISK_BYTES = 256 << 20
_BLOCK_BYTES = 4096
_FILLER = "filler"


class PromptDisk:
    """A ``DiskWriter`` that has done each write when ``put`` returns."""

    waiting = 0

    def put(self, write: Callable[[], object], size: int) -> bool:
        write()
        return True

    def settle(self, within_s: float = 0.0) -> bool:
        return True


class LoopDisk:
    """A disk of its own, with ext4, on which it shows what was synced: nothing is written out by itself.

    Raises ``OSError`` where this machine may mount none.
    """

    def __init__(self, image: Path, folder: Path, *, is_new: bool = True, size: int = _DISK_BYTES) -> None:
        self.image, self.folder = image, folder
        folder.mkdir()
        if is_new:
            with image.open("wb") as file:
                file.truncate(size)
            _run("mkfs.ext4", "-q", "-F", str(image))
        options = "loop,data=writeback,noauto_da_alloc,commit=300"
        _run("mount", "-o", options, str(image), str(folder))
        self._is_frozen = False

    def lose_power(self, folder: Path) -> "LoopDisk":
        """The disk as a machine finds it that lost its power now. Nobody writes to it meanwhile."""
        image = self.image.with_name(f"{folder.name}.img")
        shutil.copyfile(self.image, image)
        return LoopDisk(image, folder, is_new=False)

    def hang(self) -> None:
        """No write ends until ``go_on``."""
        _run("fsfreeze", "--freeze", str(self.folder))
        self._is_frozen = True

    def go_on(self) -> None:
        if self._is_frozen:
            self._is_frozen = False
            _run("fsfreeze", "--unfreeze", str(self.folder))

    def fill(self) -> None:
        """No room is left, not for root either, until ``make_room``."""
        step = 1 << 32
        with (self.folder / _FILLER).open("ab") as file:
            while step >= _BLOCK_BYTES:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step >>= 1

    def make_room(self) -> None:
        (self.folder / _FILLER).unlink(missing_ok=True)
        _run("sync", "--file-system", str(self.folder))  # else it may be used only after the next commit

    def close(self) -> None:
        self.go_on()
        _run("umount", "--lazy", str(self.folder))


def _run(*command: str) -> None:
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        raise OSError(f"{' '.join(command)}: {made.stderr.strip()}")
