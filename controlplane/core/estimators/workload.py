"""What is learned of the workload while it runs: moving averages, tool-time quantiles, memoryfulness.

**Paper**: MARS §4.1 (moving average of tool time), §4.2 (EstimateBlocks); Continuum §4.1–4.2 (T, eta, the
empirical distribution of each tool's durations, prefill-reload).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt

from controlplane.core.estimators.class_stats import ClassRegistry
from controlplane.core.estimators.departures import Departures
from controlplane.core.estimators.idle_gaps import Gaps
from controlplane.core.estimators.moving_average import MovingAverage
from controlplane.core.estimators.prefill_cost import EvictionCost, PrefillCost
from controlplane.core.estimators.prompt_size import PromptSizes
from controlplane.core.estimators.quantiles import Durations
from controlplane.core.estimators.saturation import BatchSaturation, Prefilled
from controlplane.core.model.events import FirstToken
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, Program

_ENDS_AFTER_A_CALL = 0.01  # of the programs whose reply called a tool: their agent failed, or was stopped
_MOST_TOOLS = 512  # names beyond that are counted under the empty name alone
_FEWEST_FOR_USUAL = 5
_USUAL_WEIGHT = 1 / 128  # of a call in its tool's usual time: that of 256 calls
_SLOWDOWN_WEIGHT = 0.05
_SLOWDOWN_CALLS = 39  # independent calls that such an average is worth: (2 - weight) / weight
_SLOWDOWN_SIGMAS = 2.0
_PRICE_WEIGHT = 0.02  # like that of the running turns, with which they make a price
_LEAST_LEFT_NS = NANOSECONDS_PER_SECOND  # that a sub-agent runs on for, as far as that can be told
_MOST_SLOWDOWN = 4.0  # of a single call: beyond that it is another kind of call, not a slow one


@dataclass(slots=True, kw_only=True)
class ToolTimes:
    """One tool: all its recent durations, and the mean of their logarithms.

    r averages logarithms, so it is measured against their mean: against the median, calls of two kinds under one
    name would count as slow, or as fast, whatever the host does.
    """

    all: Durations = field(default_factory=Durations)
    log_all: MovingAverage = field(default_factory=lambda: MovingAverage(weight=_USUAL_WEIGHT, settle=True))
    # Of those that met an uncrowded host. What the overload itself has raised is no measure of it: under lasting
    # overload the ratio would drift back to 1 and call the host clear.
    log_uncrowded: MovingAverage = field(default_factory=lambda: MovingAverage(weight=_USUAL_WEIGHT, settle=True))

    def add(self, duration_ns: int, *, crowded: bool) -> None:
        self.all.add(duration_ns)
        self.log_all.add(log(duration_ns))
        if not crowded:
            self.log_uncrowded.add(log(duration_ns))

    @property
    def log_usual(self) -> MovingAverage | None:
        """What to compare with; None while too little was seen."""
        known = (seen for seen in (self.log_uncrowded, self.log_all) if seen.count >= _FEWEST_FOR_USUAL)
        return next(known, None)


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

    def add(self, turns: int, by: int = 1) -> None:
        """A program ended after so many turns; with ``by`` -1: it had not."""
        if turns < 1:
            return
        kk = turns * (turns + 1) * (2 * turns + 1) // 6
        k = turns * (turns + 1) // 2
        self.programs += by
        self.n += by * turns
        self.sum_k += by * k
        self.sum_rest += by * (turns * (turns - 1) // 2)
        self.sum_kk += by * kk
        self.sum_rest_rest += by * ((turns - 1) * turns * (2 * turns - 1) // 6)
        self.sum_k_rest += by * (turns * k - kk)

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
    """All learned figures; the ledger feeds them, policies read them."""

    block_tokens: int = 1
    tools: dict[str, ToolTimes] = field(default_factory=lambda: {"": ToolTimes()})
    log_slowdown: MovingAverage = field(default_factory=lambda: MovingAverage(weight=_SLOWDOWN_WEIGHT, settle=True))
    log_slowdown_square: MovingAverage = field(
        default_factory=lambda: MovingAverage(weight=_SLOWDOWN_WEIGHT, settle=True)
    )
    # The variance of what they are compared with, in parts of theirs: it is a mean of calls as well.
    usual_doubt: MovingAverage = field(default_factory=lambda: MovingAverage(weight=_SLOWDOWN_WEIGHT, settle=True))
    tools_per_program: MovingAverage = field(default_factory=MovingAverage)
    tool_wait: MovingAverage = field(default_factory=MovingAverage)  # ns from being enqueued to the start
    running: MovingAverage = field(default_factory=lambda: MovingAverage(weight=0.02, settle=True))
    output: MovingAverage = field(default_factory=MovingAverage)
    prompts: PromptSizes = field(default_factory=PromptSizes)
    prefill: PrefillCost = field(default_factory=PrefillCost)
    displaced: EvictionCost = field(default_factory=EvictionCost)
    eviction_delay: MovingAverage = field(default_factory=MovingAverage)
    service: MovingAverage = field(default_factory=lambda: MovingAverage(weight=_PRICE_WEIGHT, settle=True))
    again: MovingAverage = field(default_factory=lambda: MovingAverage(weight=_PRICE_WEIGHT, settle=True))
    sharing: BatchSaturation = field(default_factory=BatchSaturation)
    shared_tokens: MovingAverage = field(default_factory=MovingAverage)
    hits: MovingAverage = field(default_factory=lambda: MovingAverage(value=1.0))
    gaps: Gaps = field(default_factory=Gaps)
    lives: ClassRegistry = field(default_factory=ClassRegistry)
    departures: Departures = field(default_factory=Departures)
    turns: Memoryfulness = field(default_factory=Memoryfulness)

    def turn_ended(self, context_tokens: int, output_tokens: int, service_ns: int) -> None:
        self.output.add(output_tokens)
        if service_ns > 0:
            self.service.add(service_ns)
            if recompute_ns := self.prefill_ns(context_tokens):
                self.again.add(recompute_ns)

    def prefilled(self, event: FirstToken, *, alone: bool) -> Prefilled:
        """What the turn's prefill took, and what it would have taken alone."""
        alone_ns = self.prefill.part_ns(event.prompt_tokens - event.cached_tokens, event.cached_tokens)
        if event.loaded_tokens:
            alone_ns = event.prefill_ns  # loading is not computing: it takes as long alone
        return Prefilled(took_ns=event.prefill_ns, alone_ns=max(0, alone_ns), alone=alone)

    def tool_ended(self, tool: str, duration_ns: int, *, crowded: bool) -> None:
        times = self.tools.get(tool)
        if times is None:
            if len(self.tools) >= _MOST_TOOLS:
                tool, times = "", self.tools[""]
            else:
                times = self.tools[tool] = ToolTimes()
        if (usual := times.log_usual) is not None:
            most = log(_MOST_SLOWDOWN)
            seen = min(most, max(-most, log(duration_ns) - usual.value))
            self.log_slowdown.add(seen)
            self.log_slowdown_square.add(seen * seen)
            self.usual_doubt.add(1 / usual.count)
        for each in (times, self.tools[""]) if tool else (times,):
            each.add(duration_ns, crowded=crowded)

    @property
    def slowdown_ratio(self) -> float:
        """r: how much longer than usual tools take now; 1 while nothing is known.

        A geometric average of ratios within a factor of 4: tool times are heavy-tailed, and the plain average of
        their ratio to the median is far above 1 on a host that is idle. Even so a few dozen calls
        scatter widely, so of a slowdown only what chance does not explain is told: the lower end of its confidence
        interval.
        """
        mean = self.log_slowdown.value
        if mean <= 0:
            return exp(mean)
        calls = min(self.log_slowdown.count, _SLOWDOWN_CALLS)
        variance = max(0.0, self.log_slowdown_square.value - mean * mean)
        return exp(max(0.0, mean - _SLOWDOWN_SIGMAS * sqrt(variance * (1 / calls + self.usual_doubt.value))))

    def blocks(self, tokens: float) -> int:
        """Tokens in whole KV blocks."""
        return int(-(-tokens // self.block_tokens))

    @property
    def shared_blocks(self) -> int:
        """What all programs' contexts begin with, in KV blocks: only a block that is full of it is shared."""
        return int(self.shared_tokens.value // self.block_tokens)

    def end_ratio(self, program: Program) -> float:
        """h: the chance that the program ended with its last turn."""
        if program.gap_tool or program.open_tools:
            return _ENDS_AFTER_A_CALL
        return 1.0 / (1.0 + self.lives.turns_left(program.class_key, max(0, program.turn_index - 1)))

    def chance_of_return(self, program: Program, now_ns: int) -> float:
        """That a program between two turns comes back, by how long it has been silent."""
        if program.open_tools or not program.gap_since_ns:
            return 1.0
        silent, tool = silent_ns(program, now_ns), program.gap_tool
        survival_probability = max(
            self.gaps.survival_probability(silent, tool, _own_gaps(program)), self.gaps.tail(silent, tool)
        )
        return self.gaps.return_probability(survival_probability, self.end_ratio(program))

    # What policies read, beside ``blocks`` and ``shared_tokens``: each is O(log n) or better in what is remembered

    def gaps_ns(self, tool: str) -> Sequence[int]:
        """The gaps seen behind a turn that called ``tool``, ascending; all gaps for the empty name."""
        return self.gaps.of(tool)

    def return_rate(self, program: Program, now_ns: int) -> float:
        """At which rate (1/ns) it is likely to come back soon: ``Gaps.rate``."""
        if not program.gap_since_ns:
            return 1.0
        if program.delegating and program.back_at_ns:  # the last of its children to end decides (docs/adr/0021)
            return 1.0 / max(_LEAST_LEFT_NS, program.back_at_ns - now_ns)
        return self.gaps.rate(
            silent_ns(program, now_ns), program.gap_tool, _own_gaps(program), self.end_ratio(program)
        )

    def prefill_ns(self, tokens: int) -> int:
        """The time to prefill ``tokens`` of a lost context again; 0 while nothing is known."""
        return self.prefill.estimate_ns(tokens)

    @property
    def eviction_delay_ns(self) -> int:
        """T: sliding average of the queueing delay of turns that came back to an evicted context."""
        return round(self.eviction_delay.value)

    @property
    def hit_ratio(self) -> float:
        """Moving average of the share of a turn's prompt that was cached; 1 while nothing is known."""
        return self.hits.value

    @property
    def turns_running(self) -> float:
        """Moving average of the turns that the engine has."""
        return self.running.value

    @property
    def turn_service_ns(self) -> int:
        """Moving average of the time that an engine's scheduler runs a turn; 0 while nothing is known."""
        return round(self.service.value)

    @property
    def memoryfulness(self) -> float:
        return self.turns.eta

    @property
    def recompute_ns(self) -> int:
        """Moving average of the time to compute a turn's context again, alone; 0 while nothing is known."""
        return round(self.again.value)

    @property
    def marginal_throughput(self) -> float:
        return self.sharing.marginal_throughput

    @property
    def host_hit_ratio(self) -> float:
        return self.displaced.host_hit_ratio

    @property
    def reload_cost_ratio(self) -> float:
        return self.displaced.reload_cost_ratio


def silent_ns(program: Program, now_ns: int) -> int:
    """For how long a program between two turns has not been heard of: a tool that was reported was no silence."""
    since_ns = program.gap_since_ns
    return now_ns - (max(since_ns, program.idle_since_ns) if program.gap_has_tool else since_ns)


def _own_gaps(program: Program) -> Sequence[int]:
    """The program's latest gaps that are over: while it acts, its last cycle's is not."""
    return program.cycles[1:-1:2] if program.phase_since_ns else program.cycles[1::2]


def as_seconds(ns: int) -> float:
    """For reasons and tables."""
    return ns / NANOSECONDS_PER_SECOND
