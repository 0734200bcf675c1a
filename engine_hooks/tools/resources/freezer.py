"""The keeper's freezer: it freezes what programs hold while the daemon says so, and thaws it whatever dies.

Each thing that is frozen is noted in a folder before it is. Who thaws what is noted, by what is gone:

    the daemon, or the agent, says nothing any more      the freezer itself, after ``LEASE_S``
    the freezer is killed                               its watchdog, a process that waits for nothing else
    both are                                            the agent, by another freezer
    all three are                                       the next freezer of that user, as it starts
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.core.model.types import seconds
from engine_hooks.tools.resources.providers import providers
from engine_hooks.tools.resources.registry import Freezable, Provider, ProviderError, Resource

LEASE_S = 1.0
"""For so long what is frozen stays so without a word of the agent."""
_AGAIN_NS = seconds(0.5)  # after a thaw that failed
_AT_ONCE = 8
_LOOK_S, _BUSY_LOOK_S = 0.2, 0.005
_LOCK = "lock"


@dataclass(slots=True, kw_only=True)
class _Program:
    """What is wanted of a program's resources, and what they are."""

    wanted: bool = False  # frozen
    frozen: bool = False
    asked_ns: int = 0
    due_ns: int = 0  # of the next attempt
    busy: bool = False
    bytes_awake: int = 0


class Freezer:
    """Call ``look`` again and again. ``tell`` is given each outcome, ``held_by`` a program's freezable resources.

    :param root: below it what is frozen is noted, in a folder for each freezer.
    """

    def __init__(
        self,
        kinds: Mapping[str, Provider],
        root: Path,
        held_by: Callable[[str], list[Resource]],
        tell: Callable[[dict[str, Any]], None],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        folder = root / f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        folder.mkdir(parents=True, mode=0o700)
        self._lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # the kernel lets it go when this process ends
        self._kinds, self._folder = _that_freeze(kinds), folder
        self._held_by, self._tell, self._now_ns = held_by, tell, now_ns
        self._programs: dict[str, _Program] = {}
        self._workers = ThreadPoolExecutor(_AT_ONCE)
        self._working: dict[Future[dict[str, Any]], str] = {}
        self._heard_ns = now_ns()
        self._watchdog = self._watch()

    def wait_s(self) -> float:
        """Seconds until ``look`` may have something to do."""
        return _BUSY_LOOK_S if self._working else _LOOK_S

    def beat(self) -> None:
        """The daemon was heard."""
        self._heard_ns = self._now_ns()

    def want(self, program: str, frozen: bool) -> None:
        """From now on the program's resources are to be frozen, or not."""
        if frozen:
            self.beat()
        elif program not in self._programs:
            self._tell({"program": program, "frozen": False, "took_ns": 0, "awake_bytes": 0, "held_bytes": 0})
            return
        state = self._programs.setdefault(program, _Program())
        if state.wanted != frozen or frozen != state.frozen:
            state.wanted, state.asked_ns, state.due_ns = frozen, self._now_ns(), 0
            self._begin(program, state)

    def thaw_all(self) -> None:
        for program in list(self._programs):
            self.want(program, False)

    def look(self) -> None:
        """Settle what has been done, begin what is due, and thaw all if nobody was heard."""
        for future in [each for each in self._working if each.done()]:
            self._settle(self._working.pop(future), future)
        if self._watchdog.poll() is not None:
            self._watchdog = self._watch()
        if self._now_ns() - self._heard_ns > seconds(LEASE_S):
            self.thaw_all()
        for program, state in list(self._programs.items()):
            if not state.busy and state.wanted == state.frozen and not state.frozen:
                del self._programs[program]
            else:
                self._begin(program, state)

    def thaw_now(self, resource: Resource) -> None:
        """Thaw what is about to be reclaimed: what is frozen cannot end in order."""
        if resource.freezable and resource.kind in self._kinds:
            self._kinds[resource.kind].thaw(resource.handle)
            self._note_of(resource).unlink(missing_ok=True)

    def close(self) -> None:
        """End. The watchdog, which ends with it, thaws what is not."""
        self._workers.shutdown()
        os.close(self._lock)
        self._watchdog.communicate()

    def _watch(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-P", "-m", "engine_hooks.tools.resources.freezer", str(self._folder)]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, bufsize=0
        )

    # One program at a time is worked on by one worker

    def _begin(self, program: str, state: _Program) -> None:
        if state.busy or state.wanted == state.frozen or state.due_ns > self._now_ns():
            return
        state.busy = True
        act = self._freeze if state.wanted else self._thaw
        self._working[self._workers.submit(act, self._held_by(program), state)] = program

    def _settle(self, program: str, future: "Future[dict[str, Any]]") -> None:
        state = self._programs[program]
        state.busy = False
        error = future.exception()
        said: dict[str, Any] = {"error": str(error)} if error is not None else future.result()
        if error is None:
            state.frozen = bool(said["frozen"])
        elif state.wanted:  # some of it may be frozen
            state.frozen, state.wanted = True, False
        else:
            state.due_ns = self._now_ns() + _AGAIN_NS
        self._tell({"program": program, **said})

    def _freeze(self, resources: list[Resource], state: _Program) -> dict[str, Any]:
        state.bytes_awake = self._size_bytes(resources)
        for each, provider in self._freezable(resources):
            note = self._note_of(each)
            note.write_text(json.dumps([each.kind, each.handle]))  # before it is: it may be our last deed
            provider.freeze(each.handle)
        return self._outcome(state, frozen=True, held_bytes=self._size_bytes(resources))

    def _thaw(self, resources: list[Resource], state: _Program) -> dict[str, Any]:
        for each, provider in self._freezable(resources):
            provider.thaw(each.handle)
            self._note_of(each).unlink(missing_ok=True)
        return self._outcome(state, frozen=False, held_bytes=state.bytes_awake)

    def _outcome(self, state: _Program, *, frozen: bool, held_bytes: int) -> dict[str, Any]:
        took_ns = max(1, self._now_ns() - state.asked_ns)
        sizes = {"awake_bytes": state.bytes_awake, "held_bytes": held_bytes}
        return {"frozen": frozen, "took_ns": took_ns, **sizes}

    def _freezable(self, resources: Iterable[Resource]) -> Iterable[tuple[Resource, Freezable]]:
        return [(each, self._kinds[each.kind]) for each in resources if each.kind in self._kinds]

    def _size_bytes(self, resources: Iterable[Resource]) -> int:
        return sum(provider.memory_bytes(each.handle) for each, provider in self._freezable(resources))

    def _note_of(self, resource: Resource) -> Path:
        return self._folder / hashlib.sha256(f"{resource.kind} {resource.handle}".encode()).hexdigest()[:32]


def _that_freeze(kinds: Mapping[str, Provider]) -> dict[str, Freezable]:
    return {kind: provider for kind, provider in kinds.items() if isinstance(provider, Freezable)}


def thaw_noted(folder: Path, kinds: Mapping[str, Provider]) -> None:
    """Thaw all that a freezer noted that is gone. What is awake, or gone too, stays as it is."""
    that_freeze = _that_freeze(kinds)
    for note in folder.glob("[0-9a-f]*"):
        with contextlib.suppress(OSError, ValueError, KeyError, ProviderError):
            kind, handle = json.loads(note.read_text())
            that_freeze[kind].thaw(handle)
            note.unlink(missing_ok=True)


def thaw_left(root: Path, kinds: Mapping[str, Provider]) -> None:
    """Thaw what freezers left below ``root`` that died with their watchdogs."""
    for folder in root.glob("*/"):
        with contextlib.suppress(OSError):
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                thaw_noted(folder, kinds)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def main() -> int:
    """Be the watchdog of the freezer whose folder is named: once it is gone, thaw what is noted there."""
    folder, kinds = Path(sys.argv[1]), providers()
    os.read(0, 1)
    thaw_noted(folder, kinds)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
