"""Programs that have been served least so far go first, in classes that double.

**Paper**: Autellix, program-level attained service (PLAS): a call's priority is the service that its program's
earlier calls attained, in discrete classes, so that programs of like service do not overtake each other for ever,
with promotion of who starves. Here service is counted in tokens (uncached prefill and output), starving is a call's
own wait, and a running call is never preempted: docs/explanation/presets.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.model.errors import require
from controlplane.core.model.types import seconds
from controlplane.core.policies.protocols import EngineShape, PriorityPolicy, QueuedCall

_FOR_EVER_NS = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Plas(PriorityPolicy):
    """Class 0: programs served up to ``quantum_chunks`` prefill chunks' worth of tokens; class k: up to 2^k times.

    Whoever has waited ``starve_s`` goes before all classes.
    """

    quantum_chunks: float = 1.0
    classes: int = 8
    starve_s: float = 60.0

    def __post_init__(self) -> None:
        require("quantum_chunks", self.quantum_chunks, low=0, high=1_000_000, ends="(]")
        require("classes", self.classes, low=1, high=62)
        require("starve_s", self.starve_s, low=0, high=86_400, ends="(]")

    @property
    def window_ns(self) -> int:
        return _FOR_EVER_NS

    def order(self, calls: Sequence[QueuedCall], engine: EngineShape, now_ns: int) -> Sequence[QueuedCall]:
        starved_ns = now_ns - seconds(self.starve_s)

        def key(call: QueuedCall) -> tuple[int, int, str]:
            starves = call.queued_at_ns <= starved_ns
            level = -1 if starves else self.level(call.footprint_blocks, call.served_tokens, engine)
            return (level, call.queued_at_ns, call.turn_id)

        return sorted(calls, key=key)

    def level(self, footprint_blocks: int, served_tokens: int, engine: EngineShape) -> int:
        level, most_tokens = 0, self.quantum_chunks * engine.chunk_tokens
        while served_tokens > most_tokens and level < self.classes - 1:
            level, most_tokens = level + 1, 2 * most_tokens
        return level
