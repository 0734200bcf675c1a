"""Doubles of the ranks of one engine, each in a thread of its own: they wait for each other where they compare."""

import threading

from engine_hooks.sglang.peers import Peers

TIMEOUT_S = 30.0


class StoreDouble:
    """A double of torch's store."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)


class GroupDouble:
    """A double of their collective operation: whoever asks waits for all the others."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._differing: set[int] = set()

    def lowest_of(self, rank: int, differs: bool) -> int | None:
        if differs:
            self._differing.add(rank)
        self._barrier.wait(TIMEOUT_S)
        return min(self._differing, default=None)


class PeersDouble(Peers):
    """A rank in a thread."""

    def __init__(self, rank: int, size: int, group: GroupDouble, store: StoreDouble) -> None:
        super().__init__(rank, size, group, store)

    def lowest_of(self, differs: bool) -> int | None:
        found: int | None = self._group.lowest_of(self.rank, differs)
        return found
