"""One run in numbers.

**Paper**: MARS §6 (eq. 1-2), dynamic-SLO goodput: programs per second that finish within alpha times their
ideal time. Times are in seconds. Percentiles interpolate linearly. A program that failed counts in
``programs_failed`` and in no time statistic; it meets no goal.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controlplane.core.model.types import NANOSECONDS_PER_SECOND
from controlplane.core.policies.protocols import Choice
from controlplane.lab.workload.records import ProgramRecord, TurnRecord

_Floats = NDArray[np.float64]
_POOL, _ROUTING, _TOOLS = "pool", "routing", "tools"  # what a figure is of, where not every run has it
_COUNTS = 5  # figures that say how much there was


def _figure(label: str, shown: str, default: float | None = None, *, of: str = "") -> Any:
    """A figure, with its label and its format in tables."""
    return field(default=default, metadata={"label": label, "shown": shown, "of": of})


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one run; None where nothing was measured. What an engine did not account for is 0."""

    programs_ended: int = _figure("programs ended", "{:d}", 0)
    programs_failed: int = _figure("programs failed", "{:d}", 0)
    programs_broken: int = _figure("  of these, after their first turn", "{:d}", 0)
    turns_ended: int = _figure("turns ended", "{:d}", 0)
    turns_failed: int = _figure("turns failed", "{:d}", 0)
    turns_refused: int = _figure("times that a turn was refused", "{:d}", 0)
    makespan_s: float = _figure("makespan (s)", "{:.1f}", 0.0)
    jct_mean_s: float | None = _figure("JCT mean (s)", "{:.1f}")
    jct_p50_s: float | None = _figure("JCT p50 (s)", "{:.1f}")
    jct_p90_s: float | None = _figure("JCT p90 (s)", "{:.1f}")
    jct_p95_s: float | None = _figure("JCT p95 (s)", "{:.1f}")
    jct_p99_s: float | None = _figure("JCT p99 (s)", "{:.1f}")
    ttft_mean_s: float | None = _figure("TTFT mean, hold included (s)", "{:.2f}")  # from when the client sent
    ttft_p50_s: float | None = _figure("TTFT p50 (s)", "{:.2f}")
    ttft_p95_s: float | None = _figure("TTFT p95 (s)", "{:.2f}")
    ttft_p99_s: float | None = _figure("TTFT p99 (s)", "{:.2f}")
    tpot_mean_s: float | None = _figure("TPOT mean (s)", "{:.4f}")  # after the first, of turns with more
    tpot_p99_s: float | None = _figure("TPOT p99 (s)", "{:.4f}")
    steps_per_min: float | None = _figure("steps/min", "{:.1f}")  # turns ended
    output_tokens_per_s: float | None = _figure("output tok/s", "{:.1f}")
    cache_hit_ratio: float | None = _figure(
        "cache hit rate (cached/prompt tokens)", "{:.1%}"
    )  # of turns that ended
    goodput_1x_per_s: float | None = _figure("goodput, JCT <= 1x ideal (programs/s)", "{:.4f}")  # per s of the run
    goodput_2x_per_s: float | None = _figure("goodput, JCT <= 2x ideal (programs/s)", "{:.4f}")
    goodput_3x_per_s: float | None = _figure("goodput, JCT <= 3x ideal (programs/s)", "{:.4f}")
    ttft_within_10s_ratio: float | None = _figure("turns with TTFT <= 10 s", "{:.1%}")  # share of all turns
    ttft_within_30s_ratio: float | None = _figure("turns with TTFT <= 30 s", "{:.1%}")
    ttft_within_60s_ratio: float | None = _figure("turns with TTFT <= 60 s", "{:.1%}")
    hold_mean_s: float | None = _figure("hold at the gate, mean of programs (s)", "{:.1f}")
    longest_hold_s: float | None = _figure("longest hold (s)", "{:.1f}")  # of a turn
    jain_index: float | None = _figure("Jain index of slowdowns", "{:.3f}")  # 1: all alike
    tool_slowdown_ratio: float = _figure(
        "tool time / without contention", "{:.2f}x", 0.0, of=_TOOLS
    )  # 0: not modelled
    tool_wait_mean_s: float | None = _figure("wait for a tool to start, mean (s)", "{:.2f}")
    # What the engine accounted for, all 0 where it did not. Shares are of the KV pool's blocks times time
    # (ThunderAgent eq. 3).
    pool_decode_ratio: float = _figure("KV pool x time: decoding", "{:.1%}", 0.0, of=_POOL)
    pool_prefill_ratio: float = _figure("  prefilling", "{:.1%}", 0.0, of=_POOL)
    pool_recompute_ratio: float = _figure("  computing again", "{:.1%}", 0.0, of=_POOL)  # of what was evicted
    pool_caching_ratio: float = _figure("  caching", "{:.1%}", 0.0, of=_POOL)  # contexts that nothing runs
    pool_unused_ratio: float = _figure("  unused", "{:.1%}", 0.0, of=_POOL)
    recomputed_tokens: int = _figure("tokens computed again", "{:,d}", 0, of=_POOL)  # prefilled a second time
    retractions: int = _figure("retractions", "{:d}", 0, of=_POOL)  # of running calls, for want of blocks
    loaded_ratio: float = _figure(
        "loaded from below the device (prompt tokens)", "{:.1%}", 0.0, of=_POOL
    )  # the hits count them too
    moves_per_min: float = _figure(
        "contexts moved off the device by decision (/min)", "{:.2f}", 0.0, of=_POOL
    )  # demoted or discarded
    ttl_misses_per_min: float = _figure("pins ended by memory pressure (/min)", "{:.2f}", 0.0, of=_POOL)
    # Turns that were routed over several engines, by what became of the KV; all 0 where there was one.
    routed_new: int = _figure("turns placed: of a new program", "{:d}", 0, of=_ROUTING)
    routed_stay: int = _figure("  where the last one ran", "{:d}", 0, of=_ROUTING)
    routed_migrate: int = _figure("  elsewhere, the KV sent along", "{:d}", 0, of=_ROUTING)
    routed_reprefill: int = _figure("  elsewhere, computed anew", "{:d}", 0, of=_ROUTING)
    routed_cost_s: float = _figure("expected cost of placing (s)", "{:.1f}", 0.0, of=_ROUTING)
    routed_moved_tokens: int = _figure("tokens whose KV was sent", "{:d}", 0, of=_ROUTING)
    routed_busiest_ratio: float = _figure("turns on the busiest engine", "{:.1%}", 0.0, of=_ROUTING)
    programs_moved_ratio: float = _figure("programs that changed their engine", "{:.1%}", 0.0, of=_ROUTING)
    # What of their pools engines use, fullest less emptiest (ThunderAgent, Figure 2a).
    kv_imbalance_mean_ratio: float = _figure("KV in use, engines apart: mean", "{:.1%}", 0.0, of=_ROUTING)
    kv_imbalance_max_ratio: float = _figure("  most", "{:.1%}", 0.0, of=_ROUTING)
    kv_imbalance_over_20_ratio: float = _figure("  time with over 20%", "{:.1%}", 0.0, of=_ROUTING)
    turns_cut: int = _figure("turns cut off by an engine's death", "{:d}", 0)  # and sent again

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
        known = {_POOL: self.is_accounted, _ROUTING: self.is_routed, _TOOLS: self.tool_slowdown_ratio > 0}
        unknown = (each.name for each in fields(self) if not known.get(each.metadata["of"], True))
        return asdict(self) | dict.fromkeys(unknown)


ROWS: tuple[tuple[str, str, str], ...] = tuple(
    (each.name, each.metadata["label"], each.metadata["shown"])
    for each in (*fields(Summary)[_COUNTS:], *fields(Summary)[:_COUNTS])
)
"""Field, label and format of each figure, in the order of tables: how many there were comes last."""


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
        programs_broken=sum(program.failed and program.turns > 0 for program in programs),
        turns_ended=len(good),
        turns_failed=len(turns) - len(good),
        turns_refused=sum(turn.refusals for turn in turns),
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
        jain_index=jain(slowdowns),
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


def jain(values: Sequence[float]) -> float | None:
    """Jain's index; 1: all alike; None where nobody got anything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None


def _seconds(durations_ns: Sequence[int]) -> _Floats:
    return np.asarray(durations_ns, dtype=np.float64) / NANOSECONDS_PER_SECOND


def _mean(values: _Floats) -> float | None:
    return float(values.mean()) if values.size else None


def _percentile(values: _Floats, percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values.size else None
