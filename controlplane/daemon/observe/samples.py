"""An hour of a node's life: a sample each second, and of ten of them one that is kept for longer.

Whoever opens the page or ``penstock top`` sees what was before he came. It is in memory: a restart begins anew.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from anyio import sleep

from controlplane.core.estimators.prompt_size import UNNAMED
from controlplane.core.model.types import NANOSECONDS_PER_SECOND
from controlplane.daemon.observe.journal import History, Turn, View
from controlplane.daemon.status.health import TurnCounts
from controlplane.daemon.status.status import Status

_EVERY_S = 1.0
_HALF_LIFE = 900
_FINE, _OF_ONE, _COARSE = 300, 10, 360  # five minutes of seconds, and an hour of ten each


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Of ``span_s`` seconds of the daemon's clock. States are their means in it, counts what came in it."""

    at_ms: int  # its end, in Unix time
    span_s: float
    limit: float = 0.0  # of the window; 0: none
    active: float = 0.0
    waiting: float = 0.0
    kv_use_ratio: float = 0.0  # of the pool, that is wanted; may exceed 1
    cpu_use_ratio: float = 0.0
    cpu_stall_ratio: float = 0.0
    turns: int = 0  # that ended
    anonymous_turns: int = 0  # of these, whose requests named no program
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of these
    output_tokens: int = 0
    refused: int = 0  # turns that gates did not serve


_COUNTS = tuple(field.name for field in fields(Sample) if field.type is int and field.name != "at_ms")
_STATES = tuple(field.name for field in fields(Sample) if field.type is float and field.name != "span_s")


class Samples(View):
    """Takes them. ``status`` tells the states; it hears the turns as a view of the journal."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._fine: deque[Sample] = deque(maxlen=_FINE)
        self._coarse: deque[Sample] = deque(maxlen=_COARSE)
        self._counts: Counter[str] = Counter()
        self.named = TurnCounts()
        self._refused: int | None = None  # turns that the ledger had counted at the last look
        self._now_ns = 0
        self._taken = 0

    def turn_ended(self, history: History, turn: Turn, now_ns: int, *, is_known: bool) -> None:
        if is_known:
            return
        counts = self._counts
        counts["turns"] += 1
        is_unnamed = history.program_id.startswith(UNNAMED)
        self.named.add(turn.prompt_tokens, turn.cached_tokens, is_unnamed=is_unnamed)
        counts["anonymous_turns"] += is_unnamed
        counts["prompt_tokens"] += turn.prompt_tokens
        counts["cached_tokens"] += turn.cached_tokens
        counts["output_tokens"] += turn.output_tokens

    async def keep(self) -> None:
        """Take one a second, for ever."""
        while True:
            self.take(round(time.time() * 1000))
            await sleep(_EVERY_S)

    def take(self, at_ms: int) -> None:
        status = self._status()
        refused = sum(each.turns for each in status.refusals)
        span_ns, self._now_ns = status.now_ns - self._now_ns if self._now_ns else 0, status.now_ns
        came = refused - self._refused if self._refused is not None else 0
        self._refused = refused
        pressure = status.pressure
        self._fine.append(
            Sample(
                at_ms=at_ms,
                span_s=max(0, span_ns) / NANOSECONDS_PER_SECOND,
                limit=status.window.limit,
                active=pressure.programs_active,
                waiting=pressure.queue_length,
                kv_use_ratio=pressure.kv_use_ratio,
                cpu_use_ratio=pressure.cpu_use_ratio,
                cpu_stall_ratio=pressure.cpu_stall_ratio,
                refused=max(0, came),
                **self._counts,
            )
        )
        self._counts.clear()
        self._taken += 1
        if self._taken % _HALF_LIFE == 0:
            self.named.halve()
        if self._taken % _OF_ONE == 0:
            self._coarse.append(_joined(list(self._fine)[-_OF_ONE:]))

    def since(self, at_ms: int = 0) -> Sequence[Sample]:
        """Those that end later, the oldest first: of ten seconds each, then of one."""
        fine = [each for each in self._fine if each.at_ms > at_ms]
        begins_ms = self._fine[0].at_ms if self._fine else 0
        return [each for each in self._coarse if at_ms < each.at_ms < begins_ms] + fine


def _joined(samples: Sequence[Sample]) -> Sample:
    counts = {name: sum(getattr(each, name) for each in samples) for name in _COUNTS}
    states = {name: sum(getattr(each, name) for each in samples) / len(samples) for name in _STATES}
    return Sample(at_ms=samples[-1].at_ms, span_s=sum(each.span_s for each in samples), **counts, **states)
