"""Keep confirmed batches for a while, since a server that has read a batch may still lose it with its stream."""

from collections import deque

from controlplane.core.events import Event, OpenTool, ToolEnqueued, ToolStarted
from controlplane.emit.batching import Packed

_MOST_BYTES = 4 << 20
_MOST_AGE_NS = 3600 * 1_000_000_000


class Said:
    """The latest confirmed batches, with the times of their confirmation."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, Packed]] = deque()
        self._bytes = 0

    def keep(self, batches: list[Packed], now_ns: int) -> None:
        """Remember these batches; drop the oldest if there are too many."""
        for packed in batches:
            self._batches.append((now_ns, packed))
            self._bytes += len(packed.data)
        kept = self._batches
        while kept and (self._bytes > _MOST_BYTES or kept[0][0] < now_ns - _MOST_AGE_NS):
            self._bytes -= len(kept.popleft()[1].data)

    def take_since(self, at_ns: int) -> list[Packed]:
        """Take the batches that were confirmed then or later, in order, to be confirmed again."""
        taken: deque[Packed] = deque()
        while self._batches and self._batches[-1][0] >= at_ns:
            packed = self._batches.pop()[1]
            self._bytes -= len(packed.data)
            taken.appendleft(packed)
        return list(taken)


def told_again(call: OpenTool) -> Event:
    """What tells of a call that is open; whoever knows of it learns nothing."""
    name, call_id, tool = call.program_id, call.call_id, call.tool
    if call.started:
        return ToolStarted(program_id=name, call_id=call_id, tool=tool)
    return ToolEnqueued(program_id=name, call_id=call_id, tool=tool)
