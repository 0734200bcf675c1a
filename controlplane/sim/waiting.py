"""The engine's waiting queue, ordered by a priority policy."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any

from controlplane.core.policies import PriorityPolicy, QueuedCall
from controlplane.core.priority.fcfs import Fcfs

_Key = tuple[int, int, str]


class WaitingQueue:
    """Turns that wait to be scheduled.

    First come, first served is kept sorted; every other policy is asked again whenever its order is needed,
    since it may depend on the time.
    """

    def __init__(self, policy: PriorityPolicy[Any]) -> None:
        self._policy = policy
        self._state = policy.initial()
        self._calls: dict[str, QueuedCall] = {}
        self._sorted: list[_Key] | None = [] if type(policy) is Fcfs else None

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: QueuedCall) -> None:
        """Put a turn in. Its ``turn_id`` is not in the queue."""
        self._calls[call.turn_id] = call
        if self._sorted is not None:
            insort(self._sorted, _key(call))

    def remove(self, turn_id: str) -> QueuedCall | None:
        """Take a turn out, if it is there."""
        call = self._calls.pop(turn_id, None)
        if call is not None and self._sorted is not None:
            del self._sorted[bisect_left(self._sorted, _key(call))]
        return call

    def of_program(self, program_id: str) -> list[QueuedCall]:
        """The program's waiting turns."""
        return [call for call in self._calls.values() if call.program_id == program_id]

    def order(self, now_ns: int) -> Iterator[str]:
        """Turn ids, the one to schedule first in front. Do not change the queue meanwhile."""
        if self._sorted is not None:
            return (key[2] for key in self._sorted)
        self._state, ordered = self._policy.order(self._state, list(self._calls.values()), now_ns)
        return (call.turn_id for call in ordered)


def _key(call: QueuedCall) -> _Key:
    return (call.priority, call.queued_at_ns, call.turn_id)
