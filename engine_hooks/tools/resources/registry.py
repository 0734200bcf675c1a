"""The registered resources, their owners, and which of them to reclaim now.

The registry does no input or output, and time is an argument: the keeper around it reads the clock and does the
work.

**Paper**: ThunderAgent §4.4 (a program's end triggers the teardown of what it holds). Beyond the paper we have a
time to live, an owner that vanishes, retries, and a limit to them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from controlplane.core.model.types import seconds

MOST_ATTEMPTS = 8
_RETRY_FIRST_NS = seconds(0.5)
_RETRY_LAST_NS = seconds(30)


class ProviderError(Exception):
    """A resource could not be reclaimed; the text says why."""


class Provider(Protocol):
    """Measures and reclaims one kind of resource."""

    def size_bytes(self, handle: str) -> int:
        """Bytes that it takes: memory for a process, disk for other kinds; 0 if it is gone."""

    def reclaim(self, handle: str) -> None:
        """Reclaim it. Raises ``ProviderError`` if it is still there."""


@runtime_checkable
class Freezable(Protocol):
    """Freezes and thaws one kind of resource; both raise ``ProviderError`` if it did not work."""

    def memory_bytes(self, handle: str) -> int:
        """Bytes of memory that are resident; 0 if it is gone, or nobody knows."""

    def freeze(self, handle: str) -> None: ...
    def thaw(self, handle: str) -> None:
        """No failure where it is awake, or gone."""


@dataclass(slots=True, kw_only=True)
class Resource:
    """One thing that a program holds. ``kind`` names the provider, which knows the thing by ``handle``."""

    kind: str
    handle: str
    program_id: str
    expires_ns: int = 0  # 0: with its program
    freezable: bool = False
    reason: str = ""  # why it is taken back; empty: it is not
    attempts: int = 0
    due_ns: int = 0  # of the next attempt
    busy: bool = False  # an attempt is under way

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.handle


class Registry:
    """The resources of one agent's process."""

    def __init__(self) -> None:
        self._resources: dict[tuple[str, str], Resource] = {}

    def __len__(self) -> int:
        return len(self._resources)

    def held_by(self, program_id: str) -> list[Resource]:
        """The program's resources, in the order of their registration."""
        return [each for each in self._resources.values() if each.program_id == program_id]

    def freezable_of(self, program_id: str) -> list[Resource]:
        """Those of the program's resources that may be frozen, and are not being reclaimed."""
        return [each for each in self.held_by(program_id) if each.freezable and not each.reason]

    def register(
        self, kind: str, handle: str, program_id: str, expires_ns: int = 0, *, freezable: bool = False
    ) -> None:
        """Register a resource until ``expires_ns`` at most (0: until its program ends); the last call counts.

        A resource that is already being reclaimed is not kept.
        """
        known = self._resources.get((kind, handle))
        if known is None:
            self._resources[kind, handle] = Resource(
                kind=kind, handle=handle, program_id=program_id, expires_ns=expires_ns, freezable=freezable
            )
        elif not known.reason:
            known.program_id, known.expires_ns, known.freezable = program_id, expires_ns, freezable

    def release(self, kind: str, handle: str) -> Resource | None:
        """Forget a resource that the agent has disposed of. None if it is unknown or is being reclaimed."""
        known = self._resources.get((kind, handle))
        return self._resources.pop(known.key) if known is not None and not known.reason else None

    def end(self, program_id: str, reason: str, now_ns: int) -> None:
        """End a program: all its resources become due."""
        self._take_back(self.held_by(program_id), reason, now_ns)

    def end_all(self, reason: str, now_ns: int) -> None:
        self._take_back(self._resources.values(), reason, now_ns)

    def take_due(self, now_ns: int) -> list[Resource]:
        """The resources to reclaim now, for the first time or again. Each is busy until it is settled.

        A program's resources go one at a time, the last registered first: a process before the folder it works in.
        """
        expired = [each for each in self._resources.values() if 0 < each.expires_ns <= now_ns]
        self._take_back(expired, "its time is over", now_ns)
        everything = self._resources.values()
        busy = {each.program_id for each in everything if each.busy}
        due = {each.program_id: each for each in everything if each.reason and each.due_ns <= now_ns}
        taken = [each for program_id, each in due.items() if program_id not in busy]
        for each in taken:
            each.busy = True
            each.attempts += 1
        return taken

    def settle(self, resource: Resource, ok: bool, now_ns: int) -> bool:
        """Settle an attempt. False if it failed and will not be repeated."""
        resource.busy = False
        if ok or resource.attempts >= MOST_ATTEMPTS:
            self._resources.pop(resource.key, None)
            return ok
        resource.due_ns = now_ns + min(_RETRY_LAST_NS, _RETRY_FIRST_NS << (resource.attempts - 1))
        return True

    def next_ns(self) -> int | None:
        """When ``take_due`` has something to do; None if it never will."""
        busy = {each.program_id for each in self._resources.values() if each.busy}
        times = [each.due_ns for each in self._resources.values() if each.reason and each.program_id not in busy]
        times += [each.expires_ns for each in self._resources.values() if each.expires_ns and not each.reason]
        return min(times, default=None)

    def _take_back(self, resources: Iterable[Resource], reason: str, now_ns: int) -> None:
        for each in resources:
            if not each.reason:
                each.reason, each.due_ns = reason, now_ns
