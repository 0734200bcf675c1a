"""Pack numbered events into batches that the server accepts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from controlplane.core.errors import LocalEventError
from controlplane.core.events import Event

Numbered = tuple[int, int, Event]  # (sequence, at_ns, event)
Encode = Callable[[str, int, Sequence[tuple[int, Event]]], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """One encoded batch of ``events`` events."""

    data: bytes
    events: int


def runs(items: Iterable[Numbered], limit: int) -> Iterator[list[Numbered]]:
    """Cut events into runs of at most ``limit`` events without a gap in their sequence."""
    run: list[Numbered] = []
    for item in items:
        if run and (len(run) >= limit or item[0] != run[-1][0] + 1):
            yield run
            run = []
        run.append(item)
    if run:
        yield run


@dataclass(frozen=True, slots=True, kw_only=True)
class Packer:
    """Encode runs of events, none larger than ``max_bytes``."""

    publisher: str
    encode: Encode
    max_bytes: int

    def pack(self, run: Sequence[Numbered]) -> tuple[list[Packed], list[str]]:
        """The batches, and the problem of each event that fits in none."""
        packed: list[Packed] = []
        rejected: list[str] = []
        self._pack(run, packed, rejected)
        return packed, rejected

    def _pack(self, run: Sequence[Numbered], packed: list[Packed], rejected: list[str]) -> None:
        try:
            data = self.encode(self.publisher, run[0][0], [item[1:] for item in run])
            if len(data) <= self.max_bytes:
                packed.append(Packed(data=data, events=len(run)))
                return
            problem = f"{type(run[0][2]).__name__} of {len(data)} bytes: the server takes {self.max_bytes}"
        except LocalEventError as error:
            problem = str(error)
        if len(run) == 1:
            rejected.append(problem)
            return
        middle = len(run) // 2
        self._pack(run[:middle], packed, rejected)
        self._pack(run[middle:], packed, rejected)
