"""How long an engine's steps take on a piece of hardware.

A prefill chunk costs the difference of two points of a cumulative curve plus an overhead a step, and on engines
that attend through the whole sequence with every chunk the square of its length besides. A decode step costs
``base + sequence * batch + context * tokens``. Everything is an integer, so that a sum of steps is exact.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace

from controlplane.core.model.errors import require

PS = 1000  # picoseconds a nanosecond
# As a stock SGLang on a large device.
BLOCK_TOKENS = 16
CHUNK_TOKENS = 8192  # of prefill in a step
MAX_RUNNING = 256  # turns at once
_FS_PER_NS = 1_000_000


def require_steps(*, block_tokens: int, chunk_tokens: int, max_running: int) -> None:
    """Raise ``ConfigError`` unless an engine can take steps of these sizes."""
    require("block_tokens", block_tokens, low=1, high=65_536)
    require("chunk_tokens", chunk_tokens, low=block_tokens, high=float("inf"))
    require("max_running", max_running, low=1, high=float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Step times and sizes of one engine on one device. Prefill in ns, decode in ps."""

    name: str
    source: str
    prefill_tokens: tuple[int, ...]  # ascending, from 0
    prefill_cumulative_ns: tuple[int, ...]  # time to prefill that many tokens, without overhead; never falls
    step_overhead_ns: int  # of each prefill step
    decode_base_ps: int
    decode_sequence_ps: int
    decode_context_ps: int
    kv_pool_tokens: int
    max_context_tokens: int
    kv_bytes_per_token: int = 0  # 0: not known
    attention_anew_fs: int = 0  # of each pair of tokens, where every chunk attends through the whole sequence again
    results_late: bool = False  # of a step: known when the next one is done, as with an overlap scheduler on a CPU
    turn_overhead_ns: int = 0  # of each turn, before the scheduler has it: HTTP server, chat template, tokenizer

    def cumulative_ns(self, tokens: int) -> int:
        """Time to prefill the first ``tokens`` of a prompt; linear between points and after the last."""
        xs, ys = self.prefill_tokens, self.prefill_cumulative_ns
        i = min(bisect_right(xs, tokens), len(xs) - 1)
        x0, y0 = xs[i - 1], ys[i - 1]
        return y0 + (ys[i] - y0) * (tokens - x0) // (xs[i] - x0)

    def prefill_ns(self, start_tokens: int, tokens: int) -> int:
        """Time for a chunk of ``tokens`` after ``start_tokens`` of context, without the step's overhead."""
        end_tokens = start_tokens + tokens
        anew_ns = self.attention_anew_fs * end_tokens * end_tokens // _FS_PER_NS if self.attention_anew_fs else 0
        return self.cumulative_ns(end_tokens) - self.cumulative_ns(start_tokens) + anew_ns

    def decode_ps(self, batch: int, context_tokens: int, steps: int = 1) -> int:
        """Time for ``steps`` decode steps of ``batch`` sequences whose contexts sum to ``context_tokens``."""
        first = self.decode_base_ps + self.decode_sequence_ps * batch + self.decode_context_ps * context_tokens
        return steps * first + self.decode_context_ps * batch * (steps * (steps - 1) // 2)

    def slowed(self, ratio: float) -> "Profile":
        """The same device with every step ``ratio`` times as long; below 1 it is faster."""
        return replace(
            self,
            prefill_cumulative_ns=tuple(round(ns * ratio) for ns in self.prefill_cumulative_ns),
            step_overhead_ns=round(self.step_overhead_ns * ratio),
            decode_base_ps=round(self.decode_base_ps * ratio),
            decode_sequence_ps=round(self.decode_sequence_ps * ratio),
            decode_context_ps=round(self.decode_context_ps * ratio),
            attention_anew_fs=round(self.attention_anew_fs * ratio),
            turn_overhead_ns=round(self.turn_overhead_ns * ratio),
        )
