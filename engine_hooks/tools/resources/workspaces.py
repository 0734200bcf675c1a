"""Agents' folders: identified so that no other is mistaken for one, and deleted so that nothing else goes too.

Paths and inode numbers are reused, but the time of birth is not. Deletion opens everything from the folder itself
downwards, follows no links, and enters nothing on another mount: what an agent bound into its workspace does not
belong to the workspace.
"""

import contextlib
import ctypes
import errno
import functools
import os
import re
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from engine_hooks.tools.resources.registry import ProviderError

ROOTS_VARIABLE = "PENSTOCK_WORKSPACES"
"""Folders, parted by colons, below which a folder that was there already may be registered."""

_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(rb"\\([0-7]{3})")  # a space in a path there
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_EMPTY_PATH = 0x1000  # of statx(2): the file descriptor itself
_BIRTH, _MOUNT = 0x800, 0x1000  # bits of its mask


def workspace_handle(path: Path, *, made: bool = False) -> str:
    """A handle of the folder that is there now. With ``made`` we have just made it, so it may be anywhere.

    Raises ``ProviderError`` for a folder that must not be deleted.
    """
    path = path.absolute()
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise ProviderError(f"{path}: not a folder")
        with _placed(path) as place:
            identity = _identity(place)
    except OSError as error:
        raise ProviderError(f"{path}: {error.strerror}") from error
    _refuse_what_matters(path)
    if not made:
        _refuse_elsewhere(path)
    return f"{identity}:{path}"


class Workspaces:
    """A folder with all that is in it. Links out of it are not followed."""

    def size_bytes(self, handle: str) -> int:
        identity, path = _parse(handle)
        if _identity_at(path) != identity:
            return 0
        blocks = 0
        for each in _walk(path):
            with contextlib.suppress(OSError):
                blocks += os.lstat(each).st_blocks
        return 512 * blocks

    def reclaim(self, handle: str) -> None:
        identity, path = _parse(handle)
        if _identity_at(path) != identity:
            return  # it is gone, whoever has its path now
        _refuse_what_matters(path)
        try:
            with _placed(path) as place:
                if _identity(place) == identity:
                    _empty(place, _look(place).mount)
            if _identity_at(path) == identity:
                path.rmdir()
        except RecursionError:
            raise ProviderError(f"{path}: too deep") from None
        except OSError as error:  # somebody still writes there, or owns what is in it
            raise ProviderError(f"{error.filename or path}: {error.strerror}") from error


def _parse(handle: str) -> tuple[str, Path]:
    device, _, rest = handle.partition(":")
    inode, _, rest = rest.partition(":")
    born, _, name = rest.partition(":")
    path = Path(name)
    if not path.is_absolute():
        raise ProviderError(f"not a workspace: {handle!r}")
    return f"{device}:{inode}:{born}", path


def _identity_at(path: Path) -> str:
    """The identity of the folder that is there; empty if there is none."""
    try:
        with _placed(path) as place:
            return _identity(place)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link has its path now
            return ""
        raise ProviderError(f"{path}: {error.strerror}") from error


def _identity(place: int) -> str:
    found = os.fstat(place)
    return f"{found.st_dev}:{found.st_ino}:{_look(place).born_ns}"


def _refuse_what_matters(path: Path) -> None:
    """Refuse a folder that contains this user's home, this process's folder, or half of the machine."""
    real = path.resolve()
    for protected in (Path.home(), Path.cwd()):
        if protected.resolve().is_relative_to(real):
            raise ProviderError(f"{path}: contains {protected}, which must not be deleted")
    if len(real.parts) < 3:
        raise ProviderError(f"{path}: too near the root")
    for mount in _mounts():
        if mount == real:
            raise ProviderError(f"{path}: another file system is mounted there")
        if mount.is_relative_to(real):
            raise ProviderError(f"{path}: something else is mounted in it, at {mount}")


def _refuse_elsewhere(path: Path) -> None:
    """Refuse a folder that we did not make, unless it is temporary or where people keep their own files."""
    named = [Path(each) for each in os.environ.get(ROOTS_VARIABLE, "").split(os.pathsep) if each]
    roots = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"), Path.home(), *named]
    real = path.resolve()
    if not any(root.resolve() in real.parents and root.resolve() != Path("/") for root in roots):
        raise ProviderError(
            f"{path}: neither temporary nor below your home; to allow it, set {ROOTS_VARIABLE} to a folder above it"
        )


def _mounts() -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for line in _MOUNTS.read_bytes().splitlines():
            yield Path(os.fsdecode(_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), line.split()[4])))


def _walk(path: Path) -> Iterator[str]:
    yield str(path)
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            yield f"{folder}/{name}"


# Deleting


def _empty(place: int, mount: int) -> None:
    """Delete everything in the folder. Raises ``OSError`` at anything on another mount."""
    with _entered(place) as folder:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for name, is_folder in found:
            if not is_folder:
                os.unlink(name, dir_fd=folder)
                continue
            with _placed(name, folder) as inner:
                if _look(inner).mount != mount:
                    raise OSError(errno.EXDEV, "something else is mounted there", name)
                _empty(inner, mount)
            os.rmdir(name, dir_fd=folder)


@contextlib.contextmanager
def _placed(name: str | Path, above: int | None = None) -> Iterator[int]:
    """Open the folder of that name to look at it; a link does not count."""
    place = os.open(name, os.O_PATH | _FOLDER, dir_fd=above)
    try:
        yield place
    finally:
        os.close(place)


@contextlib.contextmanager
def _entered(place: int) -> Iterator[int]:
    """Open the folder to read and empty it. Package caches are often read-only: those are made writable."""
    if os.fstat(place).st_mode & stat.S_IRWXU != stat.S_IRWXU:
        Path(f"/proc/self/fd/{place}").chmod(stat.S_IRWXU)
    folder = os.open(".", os.O_RDONLY | _FOLDER, dir_fd=place)
    try:
        yield folder
    finally:
        os.close(folder)


class _Look(NamedTuple):
    """What Python's own ``stat`` lacks; both are 0 if the kernel lacks them too."""

    born_ns: int
    mount: int


def _look(place: int) -> _Look:
    statx = _statx()
    buffer = ctypes.create_string_buffer(256)
    if statx is None or statx(place, b"", _EMPTY_PATH, _BIRTH | _MOUNT, buffer) != 0:
        return _Look(0, 0)
    (mask,) = struct.unpack_from("=I", buffer, 0)
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, 80)
    (mount,) = struct.unpack_from("=Q", buffer, 144)
    born_ns = seconds * 1_000_000_000 + nanoseconds if mask & _BIRTH else 0
    return _Look(born_ns, mount if mask & _MOUNT else os.fstat(place).st_dev)


@functools.cache
def _statx() -> Any:
    """The C library's ``statx``; None if it has none."""
    return getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
