"""One run in numbers.

**Paper**: MARS §6 (eq. 1-2), dynamic-SLO goodput: programs per second that finish within alpha times their
ideal time. Times are in seconds. Percentiles interpolate linearly. A program that failed counts in
``programs_failed`` and in no time statistic; it meets no goal.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controlplane.core.policies import Choice
from controlplane.core.types import NANOSECONDS_PER_SECOND
from controlplane.lab.workload.records import ProgramRecord, TurnRecord

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one run; None where nothing was measured. What an engine did not account for is 0."""

    programs_ended: int = 0
    programs_failed: int = 0
    turns_ended: int = 0
    turns_failed: int = 0
    makespan_s: float = 0.0
    jct_mean_s: float | None = None
    jct_p50_s: float | None = None
    jct_p90_s: float | None = None
    jct_p95_s: float | None = None
    jct_p99_s: float | None = None
    ttft_mean_s: float | None = None  # from when the client sent: the hold counts
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_mean_s: float | None = None  # per output token after the first, over turns with more than one
    tpot_p99_s: float | None = None
    steps_per_min: float | None = None  # turns ended
    output_tokens_per_s: float | None = None
    cache_hit_ratio: float | None = None  # cached tokens / prompt tokens, over the turns that ended
    goodput_1x_per_s: float | None = None  # programs within 1x their ideal time, per second of the run
    goodput_2x_per_s: float | None = None
    goodput_3x_per_s: float | None = None
    ttft_within_10s_ratio: float | None = None  # share of all turns
    ttft_within_30s_ratio: float | None = None
    ttft_within_60s_ratio: float | None = None
    hold_mean_s: float | None = None  # of a program, over its turns
    longest_hold_s: float | None = None  # of a turn
    jain_index: float | None = None  # over slowdowns (JCT / ideal); 1: all programs were slowed alike
    tool_slowdown_ratio: float = 0.0  # tool time over what it were without contention; 0: that was not modelled
    tool_wait_mean_s: float | None = None  # from a tool's being asked for to its start
    # What the engine accounted for, all 0 where it did not. Shares are of the KV pool's blocks times time
    # (ThunderAgent eq. 3).
    pool_decode_ratio: float = 0.0
    pool_prefill_ratio: float = 0.0
    pool_recompute_ratio: float = 0.0  # prefilling what was computed before and evicted
    pool_caching_ratio: float = 0.0  # contexts that nothing runs
    pool_unused_ratio: float = 0.0
    recomputed_tokens: int = 0  # prefilled a second time
    retractions: int = 0  # of running calls, for want of blocks
    loaded_ratio: float = 0.0  # prompt tokens loaded from below the device / prompt tokens; the hits count them too
    moves_per_min: float = 0.0  # contexts that a decision took off the device: demoted or discarded
    ttl_misses_per_min: float = 0.0  # pins that memory pressure ended before their time
    # Turns that were routed over several engines, by what became of the KV; all 0 where there was one.
    routed_new: int = 0
    routed_stay: int = 0
    routed_migrate: int = 0
    routed_reprefill: int = 0
    routed_cost_s: float = 0.0  # that was expected of those choices together
    routed_moved_tokens: int = 0  # whose KV one engine sent another
    routed_busiest_ratio: float = 0.0  # share of these turns that one engine got
    programs_moved_ratio: float = 0.0  # programs that changed their engine, of those that were routed
    turns_cut: int = 0  # turns that were sent again, each time that an engine died which had them

    @property
    def is_accounted(self) -> bool:
        """Whether the engine accounted for its pool."""
        return self.pool_decode_ratio > 0

    @property
    def is_routed(self) -> bool:
        """Whether there were several engines."""
        return self.routed_new + self.routed_stay + self.routed_migrate + self.routed_reprefill > 0

    def to_json(self) -> dict[str, float | None]:
        """The figures by name; None for each that was not measured."""
        unknown: tuple[str, ...] = () if self.is_accounted else _OF_THE_POOL
        unknown += () if self.is_routed else _OF_ROUTING
        unknown += () if self.tool_slowdown_ratio else ("tool_slowdown_ratio",)
        return asdict(self) | dict.fromkeys(unknown)


_OF_THE_POOL = (
    *("pool_decode_ratio", "pool_prefill_ratio", "pool_recompute_ratio", "pool_caching_ratio", "pool_unused_ratio"),
    *("recomputed_tokens", "retractions", "loaded_ratio", "moves_per_min", "ttl_misses_per_min"),
)
_OF_ROUTING = (
    *("routed_new", "routed_stay", "routed_migrate", "routed_reprefill", "routed_cost_s"),
    *("routed_moved_tokens", "routed_busiest_ratio", "programs_moved_ratio"),
)
ROWS: tuple[tuple[str, str, str], ...] = (
    ("jct_mean_s", "JCT mean (s)", "{:.1f}"),
    ("jct_p50_s", "JCT p50 (s)", "{:.1f}"),
    ("jct_p90_s", "JCT p90 (s)", "{:.1f}"),
    ("jct_p95_s", "JCT p95 (s)", "{:.1f}"),
    ("jct_p99_s", "JCT p99 (s)", "{:.1f}"),
    ("ttft_mean_s", "TTFT mean, hold included (s)", "{:.2f}"),
    ("ttft_p50_s", "TTFT p50 (s)", "{:.2f}"),
    ("ttft_p95_s", "TTFT p95 (s)", "{:.2f}"),
    ("ttft_p99_s", "TTFT p99 (s)", "{:.2f}"),
    ("tpot_mean_s", "TPOT mean (s)", "{:.4f}"),
    ("tpot_p99_s", "TPOT p99 (s)", "{:.4f}"),
    ("steps_per_min", "steps/min", "{:.1f}"),
    ("output_tokens_per_s", "output tok/s", "{:.1f}"),
    ("cache_hit_ratio", "cache hit rate (cached/prompt tokens)", "{:.1%}"),
    ("goodput_1x_per_s", "goodput, JCT <= 1x ideal (programs/s)", "{:.4f}"),
    ("goodput_2x_per_s", "goodput, JCT <= 2x ideal (programs/s)", "{:.4f}"),
    ("goodput_3x_per_s", "goodput, JCT <= 3x ideal (programs/s)", "{:.4f}"),
    ("ttft_within_10s_ratio", "turns with TTFT <= 10 s", "{:.1%}"),
    ("ttft_within_30s_ratio", "turns with TTFT <= 30 s", "{:.1%}"),
    ("ttft_within_60s_ratio", "turns with TTFT <= 60 s", "{:.1%}"),
    ("hold_mean_s", "hold at the gate, mean of programs (s)", "{:.1f}"),
    ("longest_hold_s", "longest hold (s)", "{:.1f}"),
    ("jain_index", "Jain index of slowdowns", "{:.3f}"),
    ("tool_slowdown_ratio", "tool time / without contention", "{:.2f}x"),
    ("tool_wait_mean_s", "wait for a tool to start, mean (s)", "{:.2f}"),
    ("pool_decode_ratio", "KV pool x time: decoding", "{:.1%}"),
    ("pool_prefill_ratio", "  prefilling", "{:.1%}"),
    ("pool_recompute_ratio", "  computing again", "{:.1%}"),
    ("pool_caching_ratio", "  caching", "{:.1%}"),
    ("pool_unused_ratio", "  unused", "{:.1%}"),
    ("recomputed_tokens", "tokens computed again", "{:,d}"),
    ("retractions", "retractions", "{:d}"),
    ("loaded_ratio", "loaded from below the device (prompt tokens)", "{:.1%}"),
    ("moves_per_min", "contexts moved off the device by decision (/min)", "{:.2f}"),
    ("ttl_misses_per_min", "pins ended by memory pressure (/min)", "{:.2f}"),
    ("routed_new", "turns placed: of a new program", "{:d}"),
    ("routed_stay", "  where the last one ran", "{:d}"),
    ("routed_migrate", "  elsewhere, the KV sent along", "{:d}"),
    ("routed_reprefill", "  elsewhere, computed anew", "{:d}"),
    ("routed_cost_s", "expected cost of placing (s)", "{:.1f}"),
    ("routed_moved_tokens", "tokens whose KV was sent", "{:d}"),
    ("routed_busiest_ratio", "turns on the busiest engine", "{:.1%}"),
    ("programs_moved_ratio", "programs that changed their engine", "{:.1%}"),
    ("turns_cut", "turns cut off by an engine's death", "{:d}"),
    ("programs_ended", "programs ended", "{:d}"),
    ("programs_failed", "programs failed", "{:d}"),
    ("turns_ended", "turns ended", "{:d}"),
    ("turns_failed", "turns failed", "{:d}"),
    ("makespan_s", "makespan (s)", "{:.1f}"),
)
"""Field, label and format of each figure, in the order of tables."""


def summarize(programs: Sequence[ProgramRecord], turns: Sequence[TurnRecord], makespan_ns: int) -> Summary:
    """Summarise a run that lasted ``makespan_ns`` from its first arrival to its last program's end.

    Of programs with sub-agents the root counts, whose time has theirs in it; turns are everybody's.
    """
    programs = [program for program in programs if not program.parent_id]
    ended = [program for program in programs if not program.failed]
    good = [turn for turn in turns if not turn.error]
    makespan_s = makespan_ns / NANOSECONDS_PER_SECOND
    per_s = 1 / makespan_s if makespan_s > 0 else None
    jct = _seconds([program.completion_ns for program in ended])
    routed = [turn.routed for turn in turns if turn.routed is not None]
    choices = Counter(each.choice for each in routed)
    engines = Counter(each.replica for each in routed)
    slowdowns = [program.completion_ns / program.ideal_ns for program in ended if program.ideal_ns]
    has_goal = any(program.ideal_ns for program in programs)
    within = [
        sum(slow <= alpha for slow in slowdowns) * per_s if per_s and has_goal else None for alpha in (1, 2, 3)
    ]
    return Summary(
        programs_ended=len(ended),
        programs_failed=len(programs) - len(ended),
        turns_ended=len(good),
        turns_failed=len(turns) - len(good),
        makespan_s=makespan_s,
        jct_mean_s=_mean(jct),
        jct_p50_s=_percentile(jct, 50),
        jct_p90_s=_percentile(jct, 90),
        jct_p95_s=_percentile(jct, 95),
        jct_p99_s=_percentile(jct, 99),
        steps_per_min=per_s and len(good) * 60 * per_s,
        goodput_1x_per_s=within[0],
        goodput_2x_per_s=within[1],
        goodput_3x_per_s=within[2],
        **_of_turns(good, len(turns), per_s),
        hold_mean_s=_hold_mean_s(programs, turns),
        longest_hold_s=max(turn.hold_ns for turn in turns) / NANOSECONDS_PER_SECOND if turns else None,
        jain_index=_jain(slowdowns),
        routed_new=choices[Choice.NEW],
        routed_stay=choices[Choice.STAY],
        routed_migrate=choices[Choice.MIGRATE],
        routed_reprefill=choices[Choice.REPREFILL],
        routed_cost_s=sum(each.cost_ns for each in routed) / NANOSECONDS_PER_SECOND,
        routed_moved_tokens=sum(each.moved_tokens for each in routed),
        routed_busiest_ratio=max(engines.values(), default=0) / max(1, len(routed)),
        programs_moved_ratio=_moved_ratio(turns),
        turns_cut=sum(turn.attempts - 1 for turn in turns),
    )


def _of_turns(good: Sequence[TurnRecord], asked: int, per_s: float | None) -> dict[str, Any]:
    """The times and tokens of turns that ended well, of ``asked`` in all: each over those where it was measured."""
    ttft = _seconds([turn.first_token_ns - turn.queued_ns for turn in good if turn.first_token_ns])
    timed = [turn for turn in good if turn.counted and turn.first_token_ns and turn.output_tokens > 1]
    tpot = _seconds([turn.ended_ns - turn.first_token_ns for turn in timed]) / np.asarray(
        [turn.output_tokens - 1 for turn in timed], dtype=np.float64
    )
    cached = [turn for turn in good if turn.counted and turn.cache_counted]
    prompt_tokens = sum(turn.prompt_tokens for turn in cached)
    output_tokens = sum(turn.output_tokens for turn in good)
    are_counted = bool(good) and all(turn.counted for turn in good)
    within = {n: float((ttft <= n).sum()) / asked if asked else None for n in (10, 30, 60)}
    return {
        "ttft_mean_s": _mean(ttft),
        **{f"ttft_p{percent}_s": _percentile(ttft, percent) for percent in (50, 95, 99)},
        **{f"ttft_within_{n}s_ratio": ratio for n, ratio in within.items()},
        "tpot_mean_s": _mean(tpot),
        "tpot_p99_s": _percentile(tpot, 99),
        "output_tokens_per_s": output_tokens * per_s if per_s and are_counted else None,
        "cache_hit_ratio": sum(turn.cached_tokens for turn in cached) / prompt_tokens if prompt_tokens else None,
    }


def _moved_ratio(turns: Sequence[TurnRecord]) -> float:
    """MORI's churn (§6.2.2): the share of programs that changed their engine at least once."""
    routed = {turn.program_id for turn in turns if turn.routed is not None}
    gone = (Choice.MIGRATE, Choice.REPREFILL)
    moved = {turn.program_id for turn in turns if turn.routed is not None and turn.routed.choice in gone}
    return len(moved) / len(routed) if routed else 0.0


def _hold_mean_s(programs: Sequence[ProgramRecord], turns: Sequence[TurnRecord]) -> float | None:
    ended = {program.program_id for program in programs if not program.failed}
    held_ns = sum(turn.hold_ns for turn in turns if turn.program_id in ended)
    return held_ns / NANOSECONDS_PER_SECOND / len(ended) if ended else None


def _jain(values: Sequence[float]) -> float | None:
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None


def _seconds(durations_ns: Sequence[int]) -> _Floats:
    return np.asarray(durations_ns, dtype=np.float64) / NANOSECONDS_PER_SECOND


def _mean(values: _Floats) -> float | None:
    return float(values.mean()) if values.size else None


def _percentile(values: _Floats, percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values.size else None
