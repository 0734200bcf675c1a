"""Keep confirmed batches for a while, since a server that has read a batch may still lose it with its stream."""

from collections import deque

from controlplane.core.model.events import Event, OpenTool, ToolEnqueued, ToolStarted
from controlplane.emit.batching import Packed

_MOST_BYTES = 4 << 20
_MOST_AGE_NS = 3600 * 1_000_000_000


class ResendBuffer:
    """The latest confirmed batches, with the times of their confirmation."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, Packed]] = deque()
        self._bytes = 0

    def add(self, batches: list[Packed], now_ns: int) -> None:
        """Remember these batches; drop the oldest if there are too many."""
        for packed in batches:
            self._batches.append((now_ns, packed))
            self._bytes += len(packed.data)
        retained = self._batches
        while retained and (self._bytes > _MOST_BYTES or retained[0][0] < now_ns - _MOST_AGE_NS):
            self._bytes -= len(retained.popleft()[1].data)

    def take_since(self, at_ns: int) -> list[Packed]:
        """Take the batches that were confirmed then or later, in order, to be confirmed again."""
        taken: deque[Packed] = deque()
        while self._batches and self._batches[-1][0] >= at_ns:
            packed = self._batches.pop()[1]
            self._bytes -= len(packed.data)
            taken.appendleft(packed)
        return list(taken)


def restated(call: OpenTool) -> Event:
    """What tells of a call that is open; whoever knows of it learns nothing."""
    kind = ToolStarted if call.started else ToolEnqueued
    return kind(program_id=call.program_id, call_id=call.call_id, tool=call.tool)
