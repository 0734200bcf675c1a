"""One simulated run: a trace, arrivals, an engine and a preset in; a ``RunResult`` out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice

from controlplane.core.controller import Controller, ControlRules
from controlplane.core.errors import ConfigError, require
from controlplane.core.presets import PRESETS, Preset
from controlplane.sim.engine_model import EngineModel
from controlplane.sim.hardware import Profile
from controlplane.sim.kernel import Kernel
from controlplane.sim.publisher import Publisher
from controlplane.sim.session import Session
from controlplane.sim.solo import IdealTimes
from controlplane.sim.world import Recorder, World
from controlplane.workload.arrivals import Arrival, Closed, Poisson, arrival_times_ns
from controlplane.workload.run import RunResult
from controlplane.workload.scale import Scale
from controlplane.workload.summary import Summary, summarize
from controlplane.workload.trace import ProgramTrace, Trace

Progress = Callable[[int, int, int, int], None]
"""Called with programs ended, programs in all, turns ended and the virtual time in ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """The engine to simulate; 0 stands for the profile's own size."""

    profile: Profile
    pool_tokens: int = 0
    block_tokens: int = 16
    chunk_tokens: int = 8192
    max_running: int = 256
    max_context_tokens: int = 0

    def build(self, preset: Preset, publisher: Publisher | None = None) -> EngineModel:
        """An engine with the preset's memory and priority policies."""
        require("pool_tokens", self.pool_tokens, low=0, high=float("inf"))
        require("block_tokens", self.block_tokens, low=1, high=65_536)
        return EngineModel(
            self.profile,
            pool_blocks=(self.pool_tokens or self.profile.kv_pool_tokens) // self.block_tokens,
            block_tokens=self.block_tokens,
            chunk_tokens=self.chunk_tokens,
            max_running=self.max_running,
            max_context_tokens=self.max_context_tokens or None,
            memory=preset.memory,
            priority=preset.priority,
            publisher=publisher,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSpec:
    """What to simulate. ``trace`` is not scaled yet; ``programs`` 0 means all of it, once."""

    trace: Trace
    arrival: Arrival
    engine: EngineSpec
    preset: Preset = field(default_factory=lambda: PRESETS["mars"])
    rules: ControlRules = field(default_factory=ControlRules)
    scale: Scale = field(default_factory=Scale)
    seed: int = 0
    programs: int = 0
    shared_prefix_tokens: int = 2000
    cpus: float = 8.0
    tool_slots: int = 0
    control_delay_ns: int = 1_000_000
    label: str = ""

    def __post_init__(self) -> None:
        require("programs", self.programs, low=0, high=10_000_000)
        require("shared_prefix_tokens", self.shared_prefix_tokens, low=0, high=float("inf"))
        require("cpus", self.cpus, low=0, high=100_000, ends="(]")
        require("tool_slots", self.tool_slots, low=0, high=float("inf"))
        require("control_delay_ns", self.control_delay_ns, low=0, high=float("inf"))
        if not self.trace.programs:
            raise ConfigError("trace: expected at least one program", field="trace")


def simulate(
    spec: SimSpec,
    *,
    ideal: IdealTimes | None = None,
    recorder: Recorder | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """Run until every program has ended. The same spec gives the same result.

    ``ideal`` remembers programs' solo times between runs of one engine and scale; without it, goodput and Jain's
    index are left out. Raises ``ConfigError`` for a spec that cannot run.
    """
    programs = choose_programs(spec)
    total = len(programs)
    sessions = [
        Session(
            program,
            shared_prefix_tokens=spec.shared_prefix_tokens,
            ideal_ns=ideal.of(program, spec.shared_prefix_tokens) if ideal is not None else 0,
        )
        for program in programs
    ]
    publisher = Publisher("sim/engine/1")
    engine = spec.engine.build(spec.preset, publisher)
    world = World(
        Kernel(),
        engine,
        Controller(spec.preset, spec.rules),
        sessions,
        engine_publisher=publisher,
        arrivals_ns=_arrivals_ns(spec, total),
        at_once=spec.arrival.n if isinstance(spec.arrival, Closed) else total,
        cpus=spec.cpus,
        tool_slots=spec.tool_slots,
        control_delay_ns=spec.control_delay_ns,
        recorder=recorder,
        progress=None if progress is None else _counted(progress, total),
    )
    makespan_ns = world.run()
    return RunResult(
        label=spec.label or f"{spec.preset.name} {spec.arrival}",
        preset=spec.preset.name,
        summary=_accounted(summarize(world.programs, world.turns, makespan_ns), engine),
        rate=spec.arrival.rate if isinstance(spec.arrival, Poisson) else 0.0,
        arrival=str(spec.arrival),
        seed=spec.seed,
        scale=spec.scale,
        programs=tuple(world.programs),
        turns=tuple(world.turns),
        series=world.series,
        facts=_facts(spec, total),
    )


def _accounted(summary: Summary, engine: EngineModel) -> Summary:
    used, total = engine.space_time, engine.space_time.total
    retractions, recomputed_tokens = engine.redone
    if total <= 0:
        return summary
    return replace(
        summary,
        pool_decode_ratio=used.decode / total,
        pool_prefill_ratio=used.prefill / total,
        pool_recompute_ratio=used.recompute / total,
        pool_caching_ratio=used.caching / total,
        pool_unused_ratio=used.unused / total,
        recomputed_tokens=recomputed_tokens,
        retractions=retractions,
    )


def choose_programs(spec: SimSpec) -> Sequence[ProgramTrace]:
    """The programs of the run, scaled; beyond the trace's end it begins again under new names."""
    scaled = spec.scale.apply(spec.trace).programs
    count = spec.programs or len(scaled)
    chosen = list(scaled[:count])
    for number, program in enumerate(islice(cycle(scaled), len(scaled), count), start=len(scaled)):
        chosen.append(replace(program, program_id=f"{program.program_id}#{number // len(scaled) + 1}"))
    return chosen


def _arrivals_ns(spec: SimSpec, total: int) -> list[int] | None:
    if isinstance(spec.arrival, Closed):
        return None
    return arrival_times_ns(total, spec.arrival.rate, spec.seed)


def _counted(progress: Progress, total: int) -> Callable[[int, int, int], None]:
    return lambda ended, turns, now_ns: progress(ended, total, turns, now_ns)


def _facts(spec: SimSpec, total: int) -> dict[str, str]:
    engine = spec.engine
    return {
        "system": "simulator",
        "profile": engine.profile.name,
        "profile source": engine.profile.source,
        "KV pool": f"{engine.pool_tokens or engine.profile.kv_pool_tokens} tokens",
        "trace": spec.trace.name,
        "programs": str(total),
        "rejected programs": str(len(spec.trace.rejected)),
        "scale": str(spec.scale),
        "shared prefix": f"{spec.shared_prefix_tokens} tokens",
        "tool CPUs": f"{spec.cpus:g}",
    }
