"""Is the host, or the KV cache, overloaded? Thresholds with hysteresis and persistence.

**Paper**: MARS §4.1–4.2 asks for hysteresis and for decreases "only when persistent host-side contention is
detected", and leaves the thresholds open; ours are in docs/explanation/how-it-decides.md. The host is judged by its
tools, active and waiting, and by either of two signs that they hinder each other: they take longer than usual, or
all CPUs are in use and tasks stall for them more than they do where none runs (docs/adr/0007).
"""

from dataclasses import dataclass

from controlplane.core.model.errors import ConfigError, require

_RISE = 0.05  # of the difference, an interval: a minute teaches what else runs there


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadRules:
    """When a side counts as overloaded. ``persistence`` is in control intervals."""

    persistence: int = 3
    cpu_slowdown_high: float = 1.5  # r
    cpu_slowdown_low: float = 1.2
    cpu_tools_low: float = 0.8  # of C
    cpu_use_low: float = 0.5  # of the host: below it tools are slow for another reason
    cpu_use_high: float = 0.95
    cpu_stall_high: float = 0.5  # share of time in which some task waited for a CPU, above what is usual
    cpu_stall_low: float = 0.25
    kv_high: float = 1.0  # u
    kv_low: float = 0.95
    kv_slack: float = 0.9
    kv_cold_return: float = 0.5  # a return that hits less of its own context than this means thrashing

    def __post_init__(self) -> None:
        require("persistence", self.persistence, low=1, high=1000)
        require("cpu_slowdown_high", self.cpu_slowdown_high, low=1, high=float("inf"), ends="[)")
        require("cpu_slowdown_low", self.cpu_slowdown_low, low=0, high=self.cpu_slowdown_high, ends="(]")
        require("cpu_tools_low", self.cpu_tools_low, low=0, high=1, ends="(]")
        require("cpu_use_low", self.cpu_use_low, low=0, high=1)
        require("cpu_use_high", self.cpu_use_high, low=self.cpu_use_low, high=1)
        require("cpu_stall_high", self.cpu_stall_high, low=0, high=1, ends="(]")
        require("cpu_stall_low", self.cpu_stall_low, low=0, high=self.cpu_stall_high, ends="(]")
        require("kv_high", self.kv_high, low=0, high=2, ends="(]")
        require("kv_low", self.kv_low, low=0, high=self.kv_high, ends="(]")
        require("kv_slack", self.kv_slack, low=0, high=2, ends="(]")
        require("kv_cold_return", self.kv_cold_return, low=0, high=1)
        if self.kv_slack > self.kv_low:
            raise ConfigError(f"expected kv_slack <= kv_low ({self.kv_low:g})", field="kv_slack")


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalLoad:
    """What one control interval saw."""

    tools: int  # active and waiting
    cpus: float
    slowdown_ratio: float
    cpu_use_ratio: float = 0.0  # 0: not known
    cpu_stall_ratio: float = 0.0  # 0: not known, or none
    kv_use_ratio: float  # u over 1 and what is tolerated beyond the pool
    retractions: int
    cold_returns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """The detector's state; the counters hold consecutive intervals."""

    cpu: bool = False
    kv: bool = False
    cpu_streak: int = 0  # intervals that speak for the other state
    kv_streak: int = 0
    usual_stall_ratio: float = 0.0  # the host's while no tool of ours runs


def detect(state: Overload, load: IntervalLoad, rules: OverloadRules) -> Overload:
    """Advance the detector by one control interval."""
    usual = _baseline_stall(state.usual_stall_ratio, load)
    own_stall = max(0.0, load.cpu_stall_ratio - usual)
    speaks = _eased(load, own_stall, rules) if state.cpu else _crowded(load, own_stall, rules)
    cpu_streak = state.cpu_streak + 1 if speaks else 0
    cpu = state.cpu
    if cpu_streak >= rules.persistence:
        cpu, cpu_streak = not cpu, 0

    # With slack in the pool a cold return is no sign of overload: LRU drops who was away longest, even then.
    cold = load.cold_returns > 0 and load.kv_use_ratio >= rules.kv_slack
    thrashing = load.kv_use_ratio > rules.kv_high or load.retractions > 0 or cold
    kv, kv_streak = state.kv, 0
    if thrashing:
        kv = True
    elif kv and load.kv_use_ratio < rules.kv_low:
        kv_streak = state.kv_streak + 1
        if kv_streak >= rules.persistence:
            kv, kv_streak = False, 0
    return Overload(cpu=cpu, kv=kv, cpu_streak=cpu_streak, kv_streak=kv_streak, usual_stall_ratio=usual)


def _baseline_stall(usual: float, load: IntervalLoad) -> float:
    """What tasks stall for CPUs without our tools: an engine, a build, a neighbour. No window can help that.

    It rises slowly, as the kernel's mean still tells of tools that have ended, and falls at once.
    """
    if not load.tools:
        usual += _RISE * (load.cpu_stall_ratio - usual)
    return min(usual, load.cpu_stall_ratio)


def _crowded(load: IntervalLoad, own_stall: float, rules: OverloadRules) -> bool:
    """As many tools as CPUs, and either sign that they hinder each other."""
    slow = load.slowdown_ratio >= rules.cpu_slowdown_high and not _idle(load, rules)
    stalled = load.cpu_use_ratio >= rules.cpu_use_high and own_stall >= rules.cpu_stall_high
    return load.tools >= load.cpus > 0 and (slow or stalled)


def _eased(load: IntervalLoad, own_stall: float, rules: OverloadRules) -> bool:
    """Few tools or CPUs to spare; or neither sign is left."""
    stalled = own_stall >= rules.cpu_stall_low
    usual = load.slowdown_ratio < rules.cpu_slowdown_low and not stalled
    return load.tools < rules.cpu_tools_low * load.cpus or usual or _idle(load, rules)


def _idle(load: IntervalLoad, rules: OverloadRules) -> bool:
    return 0 < load.cpu_use_ratio < rules.cpu_use_low
