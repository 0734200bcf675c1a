"""The engine's waiting queue, ordered by a priority policy."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import replace

from controlplane.core.policies.priority.fcfs import Fcfs
from controlplane.core.policies.protocols import EngineShape, PriorityPolicy, QueuedCall

_Key = tuple[int, str]


class WaitingQueue:
    """Turns that wait to be scheduled.

    First come, first served is kept sorted; every other policy is asked again whenever its order is needed,
    since it may depend on the time. ``served`` tells the tokens served to a program in its window at a time,
    ``pinned`` whether its context is pinned, ``cached`` the blocks of a turn that the cache holds.
    """

    def __init__(
        self,
        policy: PriorityPolicy,
        engine: EngineShape,
        served: Callable[[str, int], int],
        pinned: Callable[[str], bool],
        cached: Callable[[str], int],
    ) -> None:
        self._engine = engine
        self._served = served
        self._pinned = pinned
        self._cached = cached
        self._calls: dict[str, QueuedCall] = {}
        self.use(policy)

    def use(self, policy: PriorityPolicy) -> None:
        """Order by another policy from now on."""
        self._policy = policy
        calls = self._calls.values()
        self._sorted: list[_Key] | None = sorted(map(_key, calls)) if type(policy) is Fcfs else None

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def overtakes(self) -> bool:
        """Whether a turn that comes later may go first."""
        return self._sorted is None

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

    def has_program(self, program_id: str) -> bool:
        """Whether a turn of the program waits."""
        return any(call.program_id == program_id for call in self._calls.values())

    def order(self, now_ns: int) -> Iterator[str]:
        """Turn ids, the one to schedule first in front. Do not change the queue meanwhile."""
        if self._sorted is not None:
            return (key[1] for key in self._sorted)
        calls = [self._refreshed(call, now_ns) for call in self._calls.values()]
        return (call.turn_id for call in self._policy.order(calls, self._engine, now_ns))

    def _refreshed(self, call: QueuedCall, now_ns: int) -> QueuedCall:
        """The call with what has become of its program by now: its context may have been evicted while it waits."""
        tokens, pinned = self._served(call.program_id, now_ns), self._pinned(call.program_id)
        cached = self._cached(call.turn_id) if self._policy.asks_cached else 0
        if (tokens, pinned, cached) == (call.served_tokens, call.pinned, call.cached_blocks):
            return call
        return replace(call, served_tokens=tokens, pinned=pinned, cached_blocks=cached)


def _key(call: QueuedCall) -> _Key:
    return (call.queued_at_ns, call.turn_id)
