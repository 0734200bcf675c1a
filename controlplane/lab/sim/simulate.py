"""One simulated run: a trace, arrivals, engines and a preset in; a ``RunResult`` out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import Any

from controlplane.core.control import ControlRules
from controlplane.core.controller import Controller
from controlplane.core.errors import ConfigError, require
from controlplane.core.placement import PLACEMENT
from controlplane.core.placement.session import Session as SessionAware
from controlplane.core.policies import PlacementPolicy
from controlplane.core.presets import DEFAULT, PRESETS, Preset, policy_name
from controlplane.lab.sim.contention import Contention
from controlplane.lab.sim.engine_spec import LINK_GB_PER_S, EngineSpec
from controlplane.lab.sim.fleet import Fleet, Router, Site
from controlplane.lab.sim.kernel import Kernel
from controlplane.lab.sim.laboratory import LabPreset
from controlplane.lab.sim.publisher import Publisher
from controlplane.lab.sim.session import Session
from controlplane.lab.sim.solo import IdealTimes
from controlplane.lab.sim.world import Recorder, World
from controlplane.lab.workload.arrivals import Arrival, Closed, times_ns
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.scale import Scale
from controlplane.lab.workload.summary import Summary, summarize
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.tool_fits import ToolFits
from controlplane.lab.workload.trace import ProgramTrace, Trace

__all__ = ["LINK_GB_PER_S", "EngineSpec", "SimSpec", "choose_programs", "placement_named", "simulate"]

Progress = Callable[[int, int, int, int], None]
"""Called with programs ended, programs in all, turns ended and the virtual time in ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSpec:
    """What to simulate. ``trace`` is not scaled yet; ``programs`` 0 means all of it, once.

    ``tools`` None: each tool takes the time that the trace says; else it is drawn. ``contention`` None: tools do
    not slow each other down.
    """

    trace: Trace
    arrival: Arrival
    engine: EngineSpec
    preset: Preset = field(default_factory=lambda: PRESETS[DEFAULT])
    rules: ControlRules = field(default_factory=ControlRules)
    scale: Scale = field(default_factory=Scale)
    seed: int = 0
    programs: int = 0
    shared_prefix_tokens: int = 2000
    cpus: float = 8.0
    tool_slots: int = 0
    tools: ToolFits | None = None
    contention: Contention | None = None
    control_delay_ns: int = 1_000_000
    label: str = ""
    routing: str = ""  # a placement policy, for several engines; empty: the preset's
    telemetry: Telemetry = Telemetry.FULL

    def __post_init__(self) -> None:
        placement_named(self.routing, self.preset)
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
            telemetry=spec.telemetry,
        )
        for program in programs
    ]
    spec = _told_the_future(spec, sessions, programs)
    control = Controller(spec.preset, spec.rules)
    fleet = _fleet(spec, control)
    world = World(
        Kernel(),
        fleet,
        control,
        sessions,
        arrivals_ns=_arrivals_ns(spec, total),
        at_once=spec.arrival.n if isinstance(spec.arrival, Closed) else total,
        cpus=spec.cpus,
        tool_slots=spec.tool_slots,
        tools_ask=spec.rules.tool_slots.per_cpu > 0,
        contention=spec.contention,
        control_delay_ns=spec.control_delay_ns,
        recorder=recorder,
        progress=None if progress is None else _counted(progress, total),
    )
    makespan_ns = world.run()
    summary = summarize(world.programs, world.turns, makespan_ns)
    return RunResult(
        label=spec.label or f"{spec.preset.name} {spec.arrival}",
        preset=spec.preset.name,
        summary=replace(
            _accounted(summary, fleet, world),
            tool_slowdown_ratio=world.tool_slowdown_ratio,
            tool_wait_mean_s=world.tool_wait_mean_s,
        ),
        rate=0.0 if isinstance(spec.arrival, Closed) else spec.arrival.rate,
        arrival=str(spec.arrival),
        seed=spec.seed,
        scale=spec.scale,
        programs=tuple(world.programs),
        turns=tuple(world.turns),
        series=world.series,
        facts=_facts(spec, total),
    )


def _told_the_future(spec: SimSpec, sessions: Sequence[Session], programs: Sequence[ProgramTrace]) -> SimSpec:
    """The run with a laboratory's policies made for it; any other as it is."""
    lab = spec.preset
    if not isinstance(lab, LabPreset):
        return spec
    return replace(spec, preset=lab.of_run(sessions, programs, spec.engine, spec.shared_prefix_tokens))


def _fleet(spec: SimSpec, control: Controller) -> Fleet:
    """One engine, or several that differ in their role, as engines of one node have to (docs/adr/0018)."""
    engine = spec.engine
    if engine.replicas == 1:
        publisher = Publisher("sim/engine/1")
        return Fleet([Site(engine.build(spec.preset, publisher), publisher)])
    digits = len(str(engine.replicas))
    publishers = [Publisher(f"sim/engine-{n:0{digits}}/1") for n in range(1, engine.replicas + 1)]
    policy = placement_named(spec.routing, spec.preset)
    if isinstance(policy, SessionAware) and not policy.link_tokens_per_s:  # else it was configured
        policy = SessionAware(link_tokens_per_s=engine.link_tokens_per_s)
    return Fleet(
        [Site(engine.build(spec.preset, publisher), publisher) for publisher in publishers],
        Router(policy, control.ledger),
        link_tokens_per_s=engine.link_tokens_per_s,
    )


def placement_named(name: str, preset: Preset) -> PlacementPolicy[Any]:
    """The placement policy of that name, with the preset's parameters where it is the preset's; its own for none.

    Raises ``ConfigError`` and lists the names there are.
    """
    if name in ("", policy_name("placement", preset.placement)):
        return preset.placement
    if name not in PLACEMENT:
        raise ConfigError(
            f"routing: no placement policy {name!r}; there are: {', '.join(PLACEMENT)}", field="routing"
        )
    make: Any = PLACEMENT[name]
    return make()  # type: ignore[no-any-return]


def _accounted(summary: Summary, fleet: Fleet, world: World) -> Summary:
    """What only the engines know: what their memory was used for, and what was moved."""
    engines = [site.engine for site in fleet.sites]
    used = [engine.space_time for engine in engines]
    total, minutes = sum(each.total for each in used), summary.makespan_s / 60
    if total <= 0:
        return summary
    loaded_tokens = sum(e.cache.below.loaded_blocks * e.block_tokens for e in engines if e.cache.below is not None)
    prompt_tokens = sum(turn.prompt_tokens for turn in world.turns)
    return replace(
        summary,
        pool_decode_ratio=sum(each.decode for each in used) / total,
        pool_prefill_ratio=sum(each.prefill for each in used) / total,
        pool_recompute_ratio=sum(each.recompute for each in used) / total,
        pool_caching_ratio=sum(each.caching for each in used) / total,
        pool_unused_ratio=sum(each.unused for each in used) / total,
        loaded_ratio=loaded_tokens / prompt_tokens if prompt_tokens else 0.0,
        moves_per_min=world.moves / minutes,
        ttl_misses_per_min=sum(engine.cache.ttl_misses for engine in engines) / minutes,
        retractions=sum(engine.redone[0] for engine in engines),
        recomputed_tokens=sum(engine.redone[1] for engine in engines),
    )


def choose_programs(spec: SimSpec) -> Sequence[ProgramTrace]:
    """The programs of the run, scaled; beyond the trace's end it begins again under new names.

    Drawn tool times differ with each name, and with the seed.
    """
    scaled = spec.scale.apply(spec.trace).programs
    count = spec.programs or len(scaled)
    chosen = list(scaled[:count])
    for number, program in enumerate(islice(cycle(scaled), len(scaled), count), start=len(scaled)):
        chosen.append(replace(program, program_id=f"{program.program_id}#{number // len(scaled) + 1}"))
    if spec.tools is None:
        return chosen
    return [spec.tools.redraw(program, spec.seed, spec.scale.tools) for program in chosen]


def _arrivals_ns(spec: SimSpec, total: int) -> list[int] | None:
    return None if isinstance(spec.arrival, Closed) else times_ns(spec.arrival, total, spec.seed)


def _counted(progress: Progress, total: int) -> Callable[[int, int, int], None]:
    return lambda ended, turns, now_ns: progress(ended, total, turns, now_ns)


def _facts(spec: SimSpec, total: int) -> dict[str, str]:
    engine = spec.engine
    several = {
        "engines": f"{engine.replicas}",
        "routing": policy_name("placement", placement_named(spec.routing, spec.preset)),
        "link": f"{engine.link_gb_per_s:g} GB/s",
    }
    return {
        "system": "simulator",
        "profile": engine.profile.name,
        "profile source": engine.profile.source,
        "KV pool": f"{engine.size_tokens} tokens",
        "KV tiers below": ", ".join(map(str, engine.tiers)) or "none",
        **(several if engine.replicas > 1 else {}),
        "trace": spec.trace.name,
        "programs": str(total),
        "rejected programs": str(len(spec.trace.rejected)),
        "scale": str(spec.scale),
        "shared prefix": f"{spec.shared_prefix_tokens} tokens",
        "telemetry": str(spec.telemetry),
        "tool CPUs": f"{spec.cpus:g}",
        "tool times": "the trace's" if spec.tools is None else str(spec.tools),
        "tool contention": "none" if spec.contention is None else str(spec.contention),
    }
