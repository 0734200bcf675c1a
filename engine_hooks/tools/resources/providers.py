"""Measure and reclaim each kind of resource. Reclaiming what is already gone is no failure.

A handle identifies a resource as it was when registered: process numbers and paths are reused, and their new owner
must not be hurt.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import psutil

from engine_hooks.tools.resources.cgroups import Cgroups, ancestry
from engine_hooks.tools.resources.registry import Provider, ProviderError
from engine_hooks.tools.resources.workspaces import Workspaces

COOKIE_VARIABLE = "PENSTOCK_RESOURCE"
_SAME_S = 0.05  # by how much a process's time of creation may differ from itself
_MOST_ROUNDS = 8
_GRACE_S = 2.0  # between asking a process to end and ending it


# Processes


def process_handle(pid: int, cookie: str = "") -> str:
    """A handle of the process that has this number now. Raises ``ProviderError`` if there is none.

    ``cookie`` is the value of ``PENSTOCK_RESOURCE`` that the process was started with.
    """
    try:
        return f"{pid}@{psutil.Process(pid).create_time():.2f}@{cookie}"
    except psutil.Error as error:
        raise ProviderError(str(error)) from error


class Processes:
    """A process and all that it started: its children, its session, and every process that carries its cookie.

    Once it has ended, only the cookie identifies what it started; without a cookie those are left alone.
    """

    def size_bytes(self, handle: str) -> int:
        total = 0
        for process in self._all_of(handle):
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    memory_bytes = size_bytes

    def freeze(self, handle: str) -> None:
        """Stop all of them (SIGSTOP): until no other is found, since those that run may start some."""
        stopped = set[int]()
        for _ in range(_MOST_ROUNDS):
            found = [each for each in self._all_of(handle) if each.pid not in stopped]
            if not found:
                return
            if ancestry() & {each.pid for each in found}:
                raise ProviderError("the agent itself is one of them")
            _signal(found, psutil.Process.suspend)
            stopped |= {each.pid for each in found}
        raise ProviderError("they start others faster than those can be stopped")

    def thaw(self, handle: str) -> None:
        _signal(self._all_of(handle), psutil.Process.resume)

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
        its_session = False  # its leader lives: a number whose leader has gone may be of another session by now
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
    """True unless the process has ended; one that its parent has not collected yet counts as ended."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _signal(processes: list[psutil.Process], send: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        try:
            send(process)
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied as error:
            raise ProviderError(f"process {process.pid} is another user's") from error


# Containers


class Containers:
    """Docker's containers, through its client library (``pip install penstock-agents[docker]``)."""

    def __init__(self, connect: Callable[[], Any] | None = None) -> None:
        self._connect = connect or _docker
        self._client: Any = None

    def size_bytes(self, handle: str) -> int:
        """The bytes of its writable layer."""
        details = self._ask(lambda client: client.api.inspect_container(handle, size=True))
        return int((details or {}).get("SizeRw") or 0)

    def memory_bytes(self, handle: str) -> int:
        used = self._ask(lambda client: client.api.stats(handle, stream=False, one_shot=True))
        return int((used or {}).get("memory_stats", {}).get("usage") or 0)

    def freeze(self, handle: str) -> None:
        if self._status(handle) == "running":
            self._ask(lambda client: client.api.pause(handle))

    def thaw(self, handle: str) -> None:
        if self._status(handle) == "paused":
            self._ask(lambda client: client.api.unpause(handle))

    def _status(self, handle: str) -> str:
        """As Docker and Podman have it; empty: the container is gone."""
        details = self._ask(lambda client: client.api.inspect_container(handle))
        return str((details or {}).get("State", {}).get("Status", ""))

    def reclaim(self, handle: str) -> None:
        self._ask(lambda client: client.containers.get(handle).remove(force=True, v=True))

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """Call Docker; None if the container no longer exists."""
        try:
            from docker.errors import APIError, DockerException, NotFound
        except ImportError as error:
            raise ProviderError(f"{error}: pip install penstock-agents[docker]") from error
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
    """The providers by kind."""
    kinds: dict[str, Provider] = {"process": Processes(), "workspace": Workspaces()}
    return kinds | {"container": Containers(), "cgroup": Cgroups()}
