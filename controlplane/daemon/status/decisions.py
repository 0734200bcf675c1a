"""Whoever watches decisions gets each as it is made; who reads too slowly misses the oldest, and is told so."""

from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from anyio import Event

from controlplane.core.model.commands import Command

MOST_WAITING = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A command, and when it was sent on the daemon's clock."""

    at_ns: int
    command: Command
    missed: int = 0


@dataclass(slots=True, eq=False)
class _Watcher:
    program_id: str
    waiting: deque[Decision] = field(default_factory=lambda: deque(maxlen=MOST_WAITING))
    missed: int = 0
    arrived: Event = field(default_factory=Event)


class Decisions:
    """Passes decisions on."""

    def __init__(self) -> None:
        self._watchers: set[_Watcher] = set()

    def record(self, commands: Sequence[Command], at_ns: int) -> None:
        for watcher in self._watchers:
            for command in commands:
                if watcher.program_id not in ("", getattr(command, "program_id", None)):
                    continue
                watcher.missed += len(watcher.waiting) == MOST_WAITING
                watcher.waiting.append(Decision(at_ns=at_ns, command=command))  # the oldest makes room
                watcher.arrived.set()

    async def watch(self, program_id: str = "") -> AsyncIterator[Decision]:
        """From now on; only about ``program_id`` unless that is empty."""
        with self._watching(program_id) as watcher:
            while True:
                await watcher.arrived.wait()
                watcher.arrived = Event()
                while watcher.waiting:
                    decision = watcher.waiting.popleft()
                    missed, watcher.missed = watcher.missed, 0
                    yield Decision(at_ns=decision.at_ns, command=decision.command, missed=missed)

    @contextmanager
    def _watching(self, program_id: str) -> Iterator[_Watcher]:
        watcher = _Watcher(program_id)
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
