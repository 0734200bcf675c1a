"""Doubles of the ranks of one engine, each in a thread of its own: they wait for each other where they compare."""

import threading

from engine_hooks.sglang.peers import Peers

STAGE_TIMEOUT_S = 30.0


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


class StageDouble:
    """A double of a stage's collective operation: whoever asks waits for all the others."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._differing: set[int] = set()

    def lowest_of(self, rank: int, differs: bool) -> int | None:
        if differs:
            self._differing.add(rank)
        self._barrier.wait(STAGE_TIMEOUT_S)
        return min(self._differing, default=None)


class PeersDouble(Peers):
    """A rank in a thread."""

    def __init__(self, rank: int, size: int, stages: list[StageDouble], store: StoreDouble) -> None:
        super().__init__(rank, size, size // len(stages), None, store)
        self._double = stages[rank // self.stage]

    def lowest_of(self, differs: bool) -> int | None:
        return self._double.lowest_of(self.rank, differs)
