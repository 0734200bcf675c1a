"""How each kind of resource is measured and taken back. Taking back what is gone already is no failure.

A handle says which one it was when it was registered: process numbers and paths are used again, and whoever has
them then must not be hurt.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import psutil

COOKIE_VARIABLE = "PENSTOCK_RESOURCE"
_SAME_S = 0.05  # by how much a process's time of creation may differ from itself
_GRACE_S = 2.0  # between asking a process to end and ending it


class ProviderError(Exception):
    """It could not be taken back, and why."""


class Provider(Protocol):
    """One kind of resource."""

    def size_bytes(self, handle: str) -> int:
        """What it takes: of memory for a process, of disk for the others; 0 for one that is gone."""

    def reclaim(self, handle: str) -> None:
        """Take it back. Raises ``ProviderError`` if it is still there."""


# Processes


def process_handle(pid: int, cookie: str = "") -> str:
    """Names the process that has this number now. Raises ``ProviderError`` without one.

    ``cookie``: the value of ``PENSTOCK_RESOURCE`` that it was started with.
    """
    try:
        return f"{pid}@{psutil.Process(pid).create_time():.2f}@{cookie}"
    except psutil.Error as error:
        raise ProviderError(str(error)) from error


class Processes:
    """A process and all that came of it: its children, its session, and whoever carries its cookie."""

    def size_bytes(self, handle: str) -> int:
        total = 0
        for process in self._all_of(handle):
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def reclaim(self, handle: str) -> None:
        processes = self._all_of(handle)
        _signal(processes, psutil.Process.terminate)
        _, left = psutil.wait_procs(processes, timeout=_GRACE_S)
        left += [process for process in self._all_of(handle) if process not in left]  # born meanwhile
        _signal(left, psutil.Process.kill)
        psutil.wait_procs(left, timeout=_GRACE_S)
        if alive := self._all_of(handle):
            raise ProviderError(f"still running: {', '.join(str(process.pid) for process in alive)}")

    def _all_of(self, handle: str) -> list[psutil.Process]:
        pid, created, cookie = _parse_process(handle)
        found: dict[int, psutil.Process] = {}
        its_session = True  # while a session has members the kernel gives its number to nobody else
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(pid)
            its_session = abs(root.create_time() - created) <= _SAME_S
            if its_session:
                found |= {each.pid: each for each in (root, *root.children(recursive=True))}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.create_time() < created - _SAME_S or process.pid == os.getpid():
                    continue
                in_session = its_session and os.getsid(process.pid) == pid
                if in_session or (cookie and process.environ().get(COOKIE_VARIABLE) == cookie):
                    found[process.pid] = process
        return [process for process in found.values() if _is_alive(process)]


def _parse_process(handle: str) -> tuple[int, float, str]:
    pid, _, rest = handle.partition("@")
    created, _, cookie = rest.partition("@")
    try:
        number, at_s = int(pid), float(created)
    except ValueError:
        raise ProviderError(f"no process: {handle!r}") from None
    if number <= 1 or number == os.getpid():
        raise ProviderError(f"process {number} is nobody's resource")
    return number, at_s, cookie


def _is_alive(process: psutil.Process) -> bool:
    """A process that has ended and that its parent has not asked about takes nothing."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _signal(processes: list[psutil.Process], send: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            send(process)


# Workspaces


def workspace_handle(path: Path) -> str:
    """Names the folder that is there now. Raises ``ProviderError`` for one that must not be deleted."""
    path = path.absolute()
    try:
        found = path.lstat()
    except OSError as error:
        raise ProviderError(f"{path}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise ProviderError(f"{path}: no folder")
    _refuse_what_matters(path)
    return f"{found.st_dev}:{found.st_ino}:{path}"


class Workspaces:
    """A folder with all that is in it. Links out of it are not followed."""

    def size_bytes(self, handle: str) -> int:
        path = _folder_of(handle)
        if path is None:
            return 0
        blocks = 0
        for each in _walk(path):
            with contextlib.suppress(OSError):
                blocks += os.lstat(each).st_blocks
        return 512 * blocks

    def reclaim(self, handle: str) -> None:
        path = _folder_of(handle)
        if path is None:
            return
        _refuse_what_matters(path)
        try:
            _open_up(path)
            shutil.rmtree(path)
        except OSError as error:  # somebody still writes there, or owns what is in it
            raise ProviderError(f"{error.filename or path}: {error.strerror}") from error


def _folder_of(handle: str) -> Path | None:
    """The folder that was registered; None if it is gone, whoever has its path now."""
    device, _, rest = handle.partition(":")
    inode, _, name = rest.partition(":")
    path = Path(name)
    if not path.is_absolute():
        raise ProviderError(f"no workspace: {handle!r}")
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProviderError(f"{path}: {error.strerror}") from error
    return path if (str(found.st_dev), str(found.st_ino)) == (device, inode) else None


def _refuse_what_matters(path: Path) -> None:
    """A folder that holds this user's home, this process's folder, or half of the machine is no workspace."""
    real = path.resolve()
    for kept in (Path.home(), Path.cwd()):
        if kept.resolve().is_relative_to(real):
            raise ProviderError(f"{path}: holds {kept}, which is not to be deleted")
    if len(real.parts) < 3:
        raise ProviderError(f"{path}: too near the root")
    if os.path.ismount(real):
        raise ProviderError(f"{path}: another file system is mounted there")


def _walk(path: Path) -> Iterator[str]:
    yield str(path)
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            yield f"{folder}/{name}"


def _open_up(path: Path) -> None:
    """Package caches are often read-only, and what is in such a folder cannot be deleted. Files stay as is."""
    path.chmod(stat.S_IRWXU)
    for folder, names, _ in os.walk(path):
        for name in names:
            each = Path(folder, name)
            if not each.is_symlink() and each.stat().st_mode & stat.S_IRWXU != stat.S_IRWXU:
                each.chmod(stat.S_IRWXU)


# Containers


class Containers:
    """Docker's, through its own client library (``pip install penstock[docker]``)."""

    def __init__(self, connect: Callable[[], Any] | None = None) -> None:
        self._connect = connect or _docker
        self._client: Any = None

    def size_bytes(self, handle: str) -> int:
        """Of its writable layer."""
        told = self._ask(lambda client: client.api.inspect_container(handle, size=True))
        return int((told or {}).get("SizeRw") or 0)

    def reclaim(self, handle: str) -> None:
        self._ask(lambda client: client.containers.get(handle).remove(force=True, v=True))

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """None where there is no such container any more."""
        try:
            from docker.errors import APIError, DockerException, NotFound
        except ImportError as error:
            raise ProviderError(f"{error}: pip install penstock[docker]") from error
        try:
            self._client = self._client or self._connect()
            return question(self._client)
        except NotFound:
            return None
        except APIError as error:
            raise ProviderError(str(error.explanation or error)) from error
        except (DockerException, OSError) as error:
            self._client = None  # a new connection next time
            raise ProviderError(str(error)) from error


def _docker() -> Any:
    import docker

    return docker.from_env()


def providers() -> dict[str, Provider]:
    """By kind."""
    return {"process": Processes(), "workspace": Workspaces(), "container": Containers()}
