"""What an SLO asks of agents, and what agents got.

**Tokens/s of an agent** are its output tokens over the time that it waited for replies, holds, queues and prefill
included, tools not. So an agent that a gate holds is no agent served. A bound on the time to first token of all
turns would not see that: only the first of its many turns waits.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan

import numpy as np

from controlplane.core.model.errors import require
from controlplane.lab.workload.records import TurnRecord
from controlplane.lab.workload.run import RunResult

_NS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Nine turns in ten have their first token within ``ttft_s``, nine agents in ten get ``tokens_per_s``."""

    ttft_s: float = 30.0
    tokens_per_s: float = 10.0

    def __post_init__(self) -> None:
        require("ttft", self.ttft_s, low=0, high=1e6, ends="(]")
        require("tokens-per-s", self.tokens_per_s, low=0, high=1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What was measured of a closed loop in which every place has had its second agent, until the last one came.

    Turns are those asked for in that time, agents those that came in it. Times in seconds.
    """

    ttft_s: tuple[float, ...]
    first_ttft_s: tuple[float, ...]  # of each agent's first turn
    tokens_per_s: tuple[float, ...]  # of agents
    decode_tokens_per_s: tuple[float, ...]  # of turns, after the first token
    prompt_tokens: int
    cached_tokens: int
    lasted_s: float
    failed: int  # programs, whenever


def served(run: RunResult, agents: int) -> Served:
    """Of a run of ``closed:agents`` with at least two programs for each place."""
    roots = [program for program in run.programs if not program.parent_id]
    begin_ns = sorted(program.ended_ns for program in roots)[agents - 1]
    end_ns = max(program.arrived_ns for program in roots)
    turns = [turn for turn in run.turns if begin_ns <= turn.queued_ns <= end_ns and _is_timed(turn)]
    come = {program.program_id for program in run.programs if begin_ns <= program.arrived_ns <= end_ns}
    cached = [turn for turn in turns if turn.cache_counted]
    return Served(
        ttft_s=tuple(map(_ttft_s, turns)),
        first_ttft_s=tuple(_ttft_s(turn) for turn in turns if turn.index == 0),
        tokens_per_s=tuple(_rates(turn for turn in run.turns if turn.program_id in come and _is_timed(turn))),
        decode_tokens_per_s=tuple(
            (turn.output_tokens - 1) * _NS / (turn.ended_ns - turn.first_token_ns)
            for turn in turns
            if turn.ended_ns > turn.first_token_ns and turn.output_tokens > 1
        ),
        prompt_tokens=sum(turn.prompt_tokens for turn in cached),
        cached_tokens=sum(turn.cached_tokens for turn in cached),
        lasted_s=(end_ns - begin_ns) / _NS,
        failed=sum(program.failed for program in roots),
    )


def _is_timed(turn: TurnRecord) -> bool:
    return not turn.error and turn.first_token_ns > 0


def _ttft_s(turn: TurnRecord) -> float:
    return (turn.first_token_ns - turn.queued_ns) / _NS


def _rates(turns: Iterator[TurnRecord]) -> Iterator[float]:
    """Of each agent, its tokens over its waits."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for turn in turns:
        agent = found[turn.program_id]
        agent[0] += turn.output_tokens
        agent[1] += turn.ended_ns - turn.queued_ns
    return (tokens * _NS / max(1, waited_ns) for tokens, waited_ns in found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """So many agents at once, and what they got: percentiles over the turns and agents of all seeds."""

    agents: int
    turns: int
    ttft_p50_s: float
    ttft_p90_s: float
    first_ttft_p90_s: float
    tokens_per_s_p50: float
    tokens_per_s_p10: float
    decode_tokens_per_s_p10: float
    turns_per_s: float
    cache_hit_ratio: float
    failed: int

    def broken(self, slo: Slo) -> tuple[str, ...]:
        """Which bounds it does not keep, in words; none: it keeps the SLO. A figure of nothing keeps none."""
        if isnan(self.ttft_p90_s + self.tokens_per_s_p10):
            return (f"{self.failed} programs failed, and too few turns were served to measure",)
        bounds = (
            (not self.failed, f"{self.failed} programs failed"),
            (self.ttft_p90_s <= slo.ttft_s, f"TTFT p90 {self.ttft_p90_s:.1f} s"),
            (self.tokens_per_s_p10 >= slo.tokens_per_s, f"{self.tokens_per_s_p10:.1f} tokens/s"),
        )
        return tuple(words for is_kept, words in bounds if not is_kept)


def point(agents: int, runs: Sequence[Served]) -> Point:
    """The figures of ``agents`` at once over all ``runs``; what no run has measured is NaN."""
    turns, prompt_tokens = sum(len(run.ttft_s) for run in runs), sum(run.prompt_tokens for run in runs)
    lasted_s = sum(run.lasted_s for run in runs)

    def percentile(name: str, percent: float) -> float:
        values = [value for run in runs for value in getattr(run, name)]
        return float(np.percentile(values, percent)) if values else float("nan")

    return Point(
        agents=agents,
        turns=turns,
        ttft_p50_s=percentile("ttft_s", 50),
        ttft_p90_s=percentile("ttft_s", 90),
        first_ttft_p90_s=percentile("first_ttft_s", 90),
        tokens_per_s_p50=percentile("tokens_per_s", 50),
        tokens_per_s_p10=percentile("tokens_per_s", 10),
        decode_tokens_per_s_p10=percentile("decode_tokens_per_s", 10),
        turns_per_s=turns / lasted_s if lasted_s else float("nan"),
        cache_hit_ratio=sum(run.cached_tokens for run in runs) / prompt_tokens if prompt_tokens else float("nan"),
        failed=sum(run.failed for run in runs),
    )
