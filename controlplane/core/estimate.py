"""What is learned of the workload while it runs: moving averages, tool-time quantiles, memoryfulness.

**Paper**: MARS §4.1 (moving average of tool time), §4.2 (EstimateBlocks); Continuum §4.1–4.2 (T, eta, the
empirical distribution of each tool's durations, prefill-reload).
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt

from controlplane.core.forecast import Growth
from controlplane.core.prefill_cost import PrefillCost
from controlplane.core.types import NANOSECONDS_PER_SECOND

_MOST_TOOLS = 512  # names beyond that are counted under the empty name alone
_FEWEST_FOR_MEDIAN = 5
_SLOWDOWN_WEIGHT = 0.05
_SLOWDOWN_CALLS = 39  # independent calls that such an average is worth: (2 - weight) / weight
_SLOWDOWN_SIGMAS = 2.0
_MOST_SLOWDOWN = 4.0  # of a single call: beyond that it is another kind of call, not a slow one


@dataclass(slots=True, kw_only=True)
class MovingAverage:
    """Exponential moving average; the first observation sets it."""

    weight: float = 0.1
    settle: bool = False  # the plain mean until there are 1/weight observations
    value: float = 0.0
    count: int = 0

    def add(self, observed: float) -> None:
        self.count += 1
        if self.count == 1:
            self.value = observed
            return
        weight = max(self.weight, 1 / self.count) if self.settle else self.weight
        self.value += weight * (observed - self.value)


@dataclass(slots=True, kw_only=True)
class Durations:
    """The most recent durations of one kind, also in ascending order."""

    capacity: int = 256
    recent: list[int] = field(default_factory=list)  # a ring once it is full
    oldest: int = 0
    ascending: list[int] = field(default_factory=list)

    def add(self, duration_ns: int) -> None:
        if len(self.recent) < self.capacity:
            self.recent.append(duration_ns)
        else:
            gone = self.recent[self.oldest]
            del self.ascending[bisect_left(self.ascending, gone)]
            self.recent[self.oldest] = duration_ns
            self.oldest = (self.oldest + 1) % self.capacity
        insort(self.ascending, duration_ns)

    @property
    def median_ns(self) -> int:
        """0 while nothing was seen."""
        return self.ascending[len(self.ascending) // 2] if self.ascending else 0


@dataclass(slots=True, kw_only=True)
class ToolTimes:
    """One tool: all its recent durations, and those that met an uncrowded host."""

    all: Durations = field(default_factory=Durations)
    # r must not be measured against a median that the overload itself has raised: under lasting overload that
    # ratio would drift back to 1 and call the host clear.
    uncrowded: Durations = field(default_factory=Durations)

    @property
    def baseline_ns(self) -> int:
        """The median to compare with; 0 while too little was seen."""
        for seen in (self.uncrowded, self.all):
            if len(seen.ascending) >= _FEWEST_FOR_MEDIAN:
                return seen.median_ns
        return 0


@dataclass(slots=True, kw_only=True)
class Memoryfulness:
    """eta = -Corr(k, N - k) over every turn k of every ended program of N turns (Continuum §4.1).

    Sums suffice: for one program they have closed forms in N.
    """

    programs: int = 0
    n: int = 0
    sum_k: int = 0
    sum_rest: int = 0
    sum_kk: int = 0
    sum_rest_rest: int = 0
    sum_k_rest: int = 0

    def add(self, turns: int) -> None:
        if turns < 1:
            return
        kk = turns * (turns + 1) * (2 * turns + 1) // 6
        k = turns * (turns + 1) // 2
        self.programs += 1
        self.n += turns
        self.sum_k += k
        self.sum_rest += turns * (turns - 1) // 2
        self.sum_kk += kk
        self.sum_rest_rest += (turns - 1) * turns * (2 * turns - 1) // 6
        self.sum_k_rest += turns * k - kk

    @property
    def eta(self) -> float:
        """1 (fully memoryful, the paper's cold start) while the correlation is not defined."""
        if self.programs < 2:
            return 1.0
        spread_k = self.n * self.sum_kk - self.sum_k**2
        spread_rest = self.n * self.sum_rest_rest - self.sum_rest**2
        if spread_k <= 0 or spread_rest <= 0:
            return 1.0
        together = self.n * self.sum_k_rest - self.sum_k * self.sum_rest
        return float(-together / (spread_k * spread_rest) ** 0.5)


@dataclass(slots=True, kw_only=True)
class Estimates:
    """All learned figures; the ledger feeds them, policies read them as ``Facts``."""

    block_tokens: int = 1
    tools: dict[str, ToolTimes] = field(default_factory=lambda: {"": ToolTimes()})
    log_slowdown: MovingAverage = field(default_factory=lambda: MovingAverage(weight=_SLOWDOWN_WEIGHT, settle=True))
    log_slowdown_square: MovingAverage = field(
        default_factory=lambda: MovingAverage(weight=_SLOWDOWN_WEIGHT, settle=True)
    )
    tools_per_program: MovingAverage = field(default_factory=MovingAverage)
    tool_wait: MovingAverage = field(default_factory=MovingAverage)  # ns from being enqueued to the start
    output: MovingAverage = field(default_factory=MovingAverage)
    tokens_per_byte: MovingAverage = field(default_factory=lambda: MovingAverage(value=0.25))
    prefill: PrefillCost = field(default_factory=PrefillCost)
    eviction_delay: MovingAverage = field(default_factory=MovingAverage)
    service: MovingAverage = field(default_factory=MovingAverage)
    shared_tokens: MovingAverage = field(default_factory=MovingAverage)
    growth: Growth = field(default_factory=Growth)
    turns: Memoryfulness = field(default_factory=Memoryfulness)

    def turn_ended(self, output_tokens: int, service_ns: int) -> None:
        """Learn one turn."""
        self.output.add(output_tokens)
        if service_ns > 0:
            self.service.add(service_ns)

    def tool_ended(self, tool: str, duration_ns: int, *, crowded: bool) -> None:
        """Learn one tool call."""
        times = self.tools.get(tool)
        if times is None:
            if len(self.tools) >= _MOST_TOOLS:
                tool, times = "", self.tools[""]
            else:
                times = self.tools[tool] = ToolTimes()
        baseline_ns = times.baseline_ns
        if baseline_ns > 0:
            ratio = duration_ns / baseline_ns
            seen = log(min(_MOST_SLOWDOWN, max(1 / _MOST_SLOWDOWN, ratio)))
            self.log_slowdown.add(seen)
            self.log_slowdown_square.add(seen * seen)
        for kept in (times, self.tools[""]) if tool else (times,):
            kept.all.add(duration_ns)
            if not crowded:
                kept.uncrowded.add(duration_ns)

    @property
    def slowdown_ratio(self) -> float:
        """r: how much longer than usual tools take now; 1 while nothing is known.

        A geometric average of ratios within a factor of 4 of the median: tool times are heavy-tailed, and the plain
        average of their ratio to the median is far above 1 on a host that is idle. Even so a few dozen calls
        scatter widely, so of a slowdown only what chance does not explain is told: the lower end of its confidence
        interval.
        """
        mean = self.log_slowdown.value
        if mean <= 0:
            return exp(mean)
        calls = min(self.log_slowdown.count, _SLOWDOWN_CALLS)
        variance = max(0.0, self.log_slowdown_square.value - mean * mean)
        return exp(max(0.0, mean - _SLOWDOWN_SIGMAS * sqrt(variance / calls)))

    def blocks(self, tokens: float) -> int:
        """Tokens in whole KV blocks."""
        return int(-(-tokens // self.block_tokens))

    def prompt_tokens(self, *, context_tokens: int, known_bytes: int, prompt_bytes: int) -> float:
        """How long a prompt of ``prompt_bytes`` is, given the program's last context and prompt."""
        new_bytes = max(0, prompt_bytes - known_bytes)
        return context_tokens + new_bytes * self.tokens_per_byte.value

    # Facts

    def tool_durations_ns(self, tool: str) -> Sequence[int]:
        times = self.tools.get(tool)
        return times.all.ascending if times else ()

    def prefill_ns(self, tokens: int) -> int:
        return self.prefill.estimate_ns(tokens)

    @property
    def eviction_delay_ns(self) -> int:
        return round(self.eviction_delay.value)

    @property
    def turn_service_ns(self) -> int:
        return round(self.service.value)

    @property
    def memoryfulness(self) -> float:
        return self.turns.eta

    @property
    def output_tokens(self) -> float:
        return self.output.value


def as_seconds(ns: int) -> float:
    """For reasons and tables."""
    return ns / NANOSECONDS_PER_SECOND
