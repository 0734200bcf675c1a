"""What ``simulate``, ``replay`` and ``engine-double`` put together from their options."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from controlplane.config import Config, parse, show
from controlplane.core.errors import ConfigError
from controlplane.core.presets import preset
from controlplane.lab.sim.contention import Contention
from controlplane.lab.sim.engine_spec import LINK_GB_PER_S, MAX_RUNNING, EngineSpec
from controlplane.lab.sim.laboratory import LABORATORY, simulated_preset
from controlplane.lab.sim.lower_tiers import parse_tier
from controlplane.lab.sim.profile import load_profile
from controlplane.lab.sim.simulate import SimSpec, simulate
from controlplane.lab.sim.solo import IdealTimes
from controlplane.lab.workload.arrivals import Arrival
from controlplane.lab.workload.named import Wanted, named_workload
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.scale import Scale
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.tool_fits import ToolFits, load_fits
from controlplane.lab.workload.trace import Trace
from controlplane.wire.log import Header, LogWriter

REPLAY = "replay"


def load_workload(
    name: str,
    *,
    programs: int = 0,
    max_context_tokens: int = 0,
    seed: int = 0,
    humans: bool = True,
    scale: Scale | None = None,
) -> Trace:
    """A trace file, a ``synthetic:NAME``, a ``mix:`` or a ``change:`` of those (lab/workload/named.py).

    ``programs`` 0 means all of a file, 100 of a synthetic one. Raises ``ConfigError``.
    """
    wanted = Wanted(programs=programs, max_context_tokens=max_context_tokens, seed=seed, humans=humans)
    return (scale or Scale()).apply(named_workload(name, wanted))


def load_tools(name: str) -> ToolFits | None:
    """A file of ``penstock tools fit``, to draw tool times from; None for ``replay``. Raises ``ConfigError``."""
    return None if name == REPLAY else load_fits(Path(name))


def unknown_tools(name: str, fits: ToolFits | None, trace: Trace) -> str:
    """Which of the trace's tools the file ``name`` has no times of, in words; nothing where it knows all."""
    unknown = fits.unknown(trace.programs) if fits is not None else []
    return f"{name} has no times of {', '.join(unknown)}: drawn from those of all its tools" if unknown else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """``penstock simulate``: every preset at every arrival with every seed. ``trace`` is not scaled yet."""

    trace: Trace
    presets: Sequence[str]
    arrivals: Sequence[Arrival]
    seeds: Sequence[int] = (1,)
    scale: Scale = field(default_factory=Scale)
    profile: str = "h200-llama31-8b"
    pool_tokens: int = 0
    chunk_tokens: int = 8192
    max_running: int = MAX_RUNNING
    tiers: Sequence[str] = ()
    replicas: int = 1
    routing: str = ""
    link_gb_per_s: float = LINK_GB_PER_S
    programs: int = 0
    shared_prefix_tokens: int = 2000
    cpus: float = 8.0
    tool_slots: int = 0
    tools: ToolFits | None = None
    contention: Contention | None = None
    config: Config | None = None  # its control rules and policies hold for its own preset
    record: Path | None = None
    telemetry: Telemetry = Telemetry.FULL


def simulate_all(
    options: SimulateOptions, progress: Callable[[str, int, int], None] | None = None
) -> list[RunResult]:
    """Run the grid in order. ``progress`` is told the run's label, programs ended and programs in all."""
    engine = EngineSpec(
        profile=load_profile(options.profile),
        pool_tokens=options.pool_tokens,
        chunk_tokens=options.chunk_tokens,
        max_running=options.max_running,
        tiers=tuple(map(parse_tier, options.tiers)),
        replicas=options.replicas,
        link_gb_per_s=options.link_gb_per_s,
    )
    ideal = IdealTimes(lambda: engine.build(preset("fcfs")))
    runs = []
    grid = [(a, s, p) for a in options.arrivals for s in options.seeds for p in options.presets]
    if options.record is not None and len(grid) > 1:
        raise ConfigError("--record writes one run: give one preset, one arrival and one seed")
    if options.record is not None and options.presets[0] in LABORATORY:
        raise ConfigError(f"--record: a daemon could not replay {options.presets[0]}, which knows the future")
    for arrival, seed, name in grid:
        label = f"{name} {arrival} seed {seed}"
        spec = SimSpec(
            trace=options.trace,
            arrival=arrival,
            engine=engine,
            preset=simulated_preset(name),
            seed=seed,
            scale=options.scale,
            programs=options.programs,
            shared_prefix_tokens=options.shared_prefix_tokens,
            cpus=options.cpus,
            tool_slots=options.tool_slots,
            tools=options.tools,
            contention=options.contention,
            label=label,
            routing=options.routing,
            telemetry=options.telemetry,
        )
        if options.config is not None:
            spec = replace(spec, rules=options.config.control)
            if options.config.policies.name == name:
                spec = replace(spec, preset=options.config.policies)
        report = None if progress is None else _labelled(progress, label)
        if options.record is None:
            runs.append(simulate(spec, ideal=ideal, progress=report))
            continue
        header = Header(node="sim", preset=name, config=show(options.config or parse({"preset": name})))
        with LogWriter(options.record, header) as log:
            runs.append(simulate(spec, ideal=ideal, recorder=log, progress=report))
    return runs


def _labelled(progress: Callable[[str, int, int], None], label: str) -> Callable[[int, int, int, int], None]:
    return lambda ended, total, turns, now_ns: progress(label, ended, total)
