"""Pack numbered events into batches that the server accepts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from controlplane.core.model.errors import LocalEventError
from controlplane.core.model.events import Event

Numbered = tuple[int, int, Event]  # (sequence, at_ns, event)
Encode = Callable[[int, Sequence[tuple[int, Event]]], bytes]  # of the first sequence, and (at_ns, event)


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


def pack(run: Sequence[Numbered], encode: Encode, max_bytes: int) -> tuple[list[Packed], list[str]]:
    """The batches of a run, none larger than ``max_bytes``, and the problem of each event that fits in none."""
    try:
        data = encode(run[0][0], [item[1:] for item in run])
        if len(data) <= max_bytes:
            return [Packed(data=data, events=len(run))], []
        problem = f"{type(run[0][2]).__name__} of {len(data)} bytes: the server takes {max_bytes}"
    except LocalEventError as error:
        problem = str(error)
    if len(run) == 1:
        return [], [problem]
    middle = len(run) // 2
    first, second = pack(run[:middle], encode, max_bytes), pack(run[middle:], encode, max_bytes)
    return first[0] + second[0], first[1] + second[1]
