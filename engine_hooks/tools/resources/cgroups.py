"""Control groups (v2): all that runs in one is frozen, thawed, measured and ended by the kernel at once.

Whoever registers a group must be able to write to its files: root, or the user that it was delegated to.
"""

import os
import time
from pathlib import Path

import psutil

from engine_hooks.tools.resources.registry import ProviderError

_MOST_S = 5.0
_LOOK_S = 0.002


def cgroup_handle(path: Path) -> str:
    """A handle of the group that is there now. Raises ``ProviderError`` if its files cannot be written."""
    path = path.resolve()
    if not os.access(path / "cgroup.freeze", os.W_OK):
        raise ProviderError(f"{path}: expected a cgroup (v2, not the root one) whose cgroup.freeze may be written")
    return f"{path.stat().st_ino}:{path}"


class Cgroups:
    """A group and those below it."""

    def size_bytes(self, handle: str) -> int:
        """Resident memory: by the kernel's account, else by the processes', in which shared pages count often."""
        path = _find(handle)
        if path is None:
            return 0
        try:
            return int((path / "memory.current").read_text())
        except OSError:
            return sum(map(_resident_bytes, _processes(path)))

    memory_bytes = size_bytes

    def freeze(self, handle: str) -> None:
        path = _require(handle)
        if _holds_us(path):
            raise ProviderError(f"{path}: the agent itself is in it")
        _write(path / "cgroup.freeze", "1")
        _await(path, "frozen 1")
        try:
            (path / "memory.reclaim").write_text((path / "memory.current").read_text())
        except OSError:
            return  # no memory controller here, or less could be reclaimed than all

    def thaw(self, handle: str) -> None:
        if (path := _find(handle)) is not None:
            _write(path / "cgroup.freeze", "0")
            _await(path, "frozen 0")

    def reclaim(self, handle: str) -> None:
        path = _find(handle)
        if path is None:
            return
        if _holds_us(path):
            raise ProviderError(f"{path}: the agent itself is in it")
        _write(path / "cgroup.kill", "1")
        _await(path, "populated 0")
        for folder, _, _ in os.walk(path, topdown=False):
            Path(folder).rmdir()


def _find(handle: str) -> Path | None:
    """None: it is gone, whoever has its path now."""
    number, _, name = handle.partition(":")
    try:
        path = Path(name)
        return path if str(path.stat().st_ino) == number else None
    except OSError:
        return None


def _require(handle: str) -> Path:
    if (path := _find(handle)) is None:
        raise ProviderError(f"no such cgroup any more: {handle}")
    return path


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ProviderError(f"{path}: {error.strerror}") from error


def _await(path: Path, line: str) -> None:
    deadline_s = time.monotonic() + _MOST_S
    while line not in (path / "cgroup.events").read_text().splitlines():
        if time.monotonic() > deadline_s:
            raise ProviderError(f"{path}: not {line!r} within {_MOST_S:g} s")
        time.sleep(_LOOK_S)


def _processes(path: Path) -> set[int]:
    found = set[int]()
    for folder, _, _ in os.walk(path):
        try:
            found |= set(map(int, (Path(folder) / "cgroup.procs").read_text().split()))
        except OSError:
            continue
    return found


def _holds_us(path: Path) -> bool:
    return bool(_processes(path) & ancestry())


def ancestry() -> set[int]:
    """This process and those that it descends from: the agent is one of them."""
    with psutil.Process().oneshot():
        return {os.getpid(), *(each.pid for each in psutil.Process().parents())}


def _resident_bytes(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
