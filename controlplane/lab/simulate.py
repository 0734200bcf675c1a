"""One simulated run: an ``Experiment`` in, a ``RunResult`` out; and what the names in an experiment stand for."""

import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.tenancy import Tenancy
from controlplane.core.model.types import seconds
from controlplane.core.policies.placement import PLACEMENT
from controlplane.core.policies.placement.session import Session as SessionAware
from controlplane.core.policies.presets import Preset, policy_name
from controlplane.core.policies.protocols import PlacementPolicy
from controlplane.core.scheduling.controller import Controller
from controlplane.core.scheduling.rules_and_state import ControlRules
from controlplane.lab.experiment import REPLAY, Experiment, Hardware, Workload
from controlplane.lab.sim.bound import Bound, bound
from controlplane.lab.sim.changes import Change, parse_changes, serving_at_first
from controlplane.lab.sim.clairvoyant import LabPreset
from controlplane.lab.sim.contention import Contention, parse_contention
from controlplane.lab.sim.engine_model import EngineModel
from controlplane.lab.sim.engine_spec import EngineSpec
from controlplane.lab.sim.fleet import Fleet, Router, Site
from controlplane.lab.sim.hardware import Profile
from controlplane.lab.sim.ideal_time import IdealTimes
from controlplane.lab.sim.kernel import Kernel
from controlplane.lab.sim.lower_tiers import parse_tier
from controlplane.lab.sim.profile import load_profile
from controlplane.lab.sim.sandboxes import SandboxWorld
from controlplane.lab.sim.session import Session
from controlplane.lab.sim.turn_events import Publisher
from controlplane.lab.sim.world import Recorder, World
from controlplane.lab.workload.arrivals import Closed, times_ns
from controlplane.lab.workload.families import all_of, families, renamed
from controlplane.lab.workload.named import Wanted, named_workload
from controlplane.lab.workload.rollouts_like import sampled
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.summary import Summary, summarize
from controlplane.lab.workload.tenants import Owners, by_tenant
from controlplane.lab.workload.tool_fits import ToolFits, load_fits
from controlplane.lab.workload.trace import ProgramTrace, Trace

Progress = Callable[[int, int, int, int], None]
"""Called with programs ended, programs in all, turns ended and the virtual time in ns."""
_LONGEST_RATIO = 1.05  # of the longest context: a pool that is sized by programs runs every one of them


_named_workload = functools.lru_cache(maxsize=32)(named_workload)


def trace_of(workload: Workload) -> Trace:
    """The workload's programs, not scaled. Raises ``ConfigError``."""
    wanted = Wanted(programs=workload.programs, max_context_tokens=workload.max_context, humans=workload.humans)
    return _named_workload(workload.source, wanted)


def load_tools(name: str) -> ToolFits | None:
    """A file of ``penstock tools fit``, to draw tool times from; None for ``replay``. Raises ``ConfigError``."""
    return None if name == REPLAY else load_fits(Path(name))


_tools_of = functools.lru_cache(maxsize=4)(load_tools)


def unknown_tools(workload: Workload) -> str:
    """Which of its tools its file has no times of, in words; nothing where it knows all."""
    programs, fits = trace_of(workload).programs, _tools_of(workload.tools)
    unknown = fits.unknown(programs) if fits is not None else []
    note = f"{workload.tools} has no times of {', '.join(unknown)}: drawn from those of all its tools"
    return note if unknown else ""


def engine_of(
    hardware: Hardware, programs: Sequence[ProgramTrace] = (), profile: Profile | None = None
) -> EngineSpec:
    """The engine. ``programs``, scaled, size its pool where the hardware says how many of them it is to hold."""
    pool_tokens = hardware.pool_tokens
    if hardware.pool_programs:
        contexts = [program.context_tokens for program in programs]
        mean_tokens, longest_tokens = statistics.fmean(contexts), max(contexts)
        pool_tokens = round(max(hardware.pool_programs * mean_tokens, _LONGEST_RATIO * longest_tokens))
    return EngineSpec(
        profile=profile or load_profile(hardware.profile),
        pool_tokens=pool_tokens,
        block_tokens=hardware.block_tokens,
        chunk_tokens=hardware.chunk_tokens,
        max_running=hardware.max_running,
        max_context_tokens=hardware.max_context_tokens,
        tiers=tuple(map(parse_tier, hardware.tiers)),
        replicas=hardware.replicas,
        link_gb_per_s=hardware.link_gb_per_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedExperiment:
    """An experiment with everything read that it names."""

    asked: Experiment
    trace: Trace
    programs: Sequence[ProgramTrace]  # scaled, and drawn where tool times are
    engine: EngineSpec
    tools: ToolFits | None
    contention: Contention | None
    changes: tuple[Change, ...] = ()
    owners: Owners = field(default_factory=Owners)
    whose: Sequence[str] = ()  # the tenant of each program

    @property
    def arrivals_ns(self) -> Sequence[int] | None:
        """When programs arrive; None: one comes when another ends."""
        arrival = self.asked.arrival
        return None if isinstance(arrival, Closed) else times_ns(arrival, self.roots, self.asked.seed)

    @property
    def roots(self) -> int:
        """Programs that are nobody's sub-agents."""
        return sum(not program.parent_id for program in self.programs)


def run_of(asked: Experiment) -> LoadedExperiment:
    """Read what the experiment names. Raises ``ConfigError``."""
    workload, hardware = asked.workload, asked.hardware
    placement_named(hardware.routing, asked.preset)
    trace = asked.trace or trace_of(workload)
    if not trace.programs:
        raise ConfigError("trace: expected at least one program", field="trace")
    tools = asked.tools or _tools_of(workload.tools)
    scaled = workload.scale.apply(trace).programs
    programs, owners = _chosen(scaled, workload, tools, asked.seed), workload.owners
    if isinstance(asked.arrival, Closed) and asked.arrival.in_batches:
        programs = sampled(programs, asked.seed)
    return LoadedExperiment(
        asked=asked,
        trace=trace,
        programs=programs,
        engine=engine_of(hardware, scaled, asked.profile),
        tools=tools,
        contention=parse_contention(workload.contention, workload.cpu_shares),
        changes=parse_changes(hardware.changes, hardware.replicas),
        owners=owners,
        whose=owners.draw(len(programs), asked.seed),
    )


def _chosen(
    scaled: Sequence[ProgramTrace], workload: Workload, tools: ToolFits | None, seed: int
) -> Sequence[ProgramTrace]:
    """As many as are asked for; beyond the trace's end it begins again under new names.

    Drawn tool times differ with each name, and with the seed.
    """
    roots = families(scaled)
    count = workload.programs or len(roots)
    found = roots[:count]
    for number, family in enumerate(islice(cycle(roots), len(roots), count), start=len(roots)):
        found.append(renamed(family, f"{{}}#{number // len(roots) + 1}"))
    chosen = all_of(found)
    return chosen if tools is None else [tools.redraw(program, seed, workload.scale_tools) for program in chosen]


def simulate(
    asked: Experiment | LoadedExperiment,
    *,
    ideal: IdealTimes | None = None,
    recorder: Recorder | None = None,
    progress: Progress | None = None,
    controller: Callable[[Preset, ControlRules], Controller] = Controller,
) -> RunResult:
    """Run until every program has ended. The same experiment gives the same result.

    ``ideal`` remembers programs' solo times between runs of one engine and scale; without it, goodput and Jain's
    index are left out. What decides is made by ``controller``. Raises ``ConfigError`` for an experiment that cannot
    run.
    """
    run = asked if isinstance(asked, LoadedExperiment) else run_of(asked)
    asked, workload, total = run.asked, run.asked.workload, run.roots
    sessions = _sessions(run, ideal)
    if isinstance(preset := asked.preset, LabPreset):
        preset = preset.of_run(sessions, run.programs, run.engine, workload.shared_prefix)
    router = Router(placement_of(run, preset)) if run.engine.replicas > 1 else None
    control = controller(preset if router is None else replace(preset, placement=router), rules_of(run))
    fleet = _fleet(run, preset, router)
    make = World if asked.sandboxes is None else partial(SandboxWorld, model=asked.sandboxes)
    world = make(
        Kernel(),
        fleet,
        control,
        sessions,
        arrivals_ns=run.arrivals_ns,
        at_once=asked.arrival.n if isinstance(asked.arrival, Closed) else total,
        in_batches=isinstance(asked.arrival, Closed) and asked.arrival.in_batches,
        cpus=workload.cpus,
        tool_slots=workload.tool_slots,
        tools_ask=asked.rules.tool_slots.per_cpu > 0,
        contention=run.contention,
        changes=run.changes,
        control_delay_ns=asked.control_delay_ns,
        timeout_ns=seconds(workload.timeout_s),
        host_samples=asked.host_samples,
        recorder=recorder,
        progress=None if progress is None else _counted(progress, total),
    )
    makespan_ns = world.run()
    return RunResult(
        label=asked.label or f"{preset.name} {asked.arrival}",
        preset=preset.name,
        summary=_accounted(summarize(world.programs, world.turns, makespan_ns), fleet, world),
        rate=0.0 if isinstance(asked.arrival, Closed) else asked.arrival.rate,
        arrival=str(asked.arrival),
        seed=asked.seed,
        scale=workload.scale,
        programs=tuple(world.programs),
        turns=tuple(world.turns),
        series=world.series,
        tenants=by_tenant(world.programs, world.turns, run.owners.tenancy),
        facts=_facts(run),
    )


def _sessions(run: LoadedExperiment, ideal: IdealTimes | None) -> list[Session]:
    workload, made = run.asked.workload, dict[str, Session]()
    times = ideal.of_all(run.programs, workload.shared_prefix) if ideal is not None else {}
    for program, account in zip(run.programs, run.whose or [""] * len(run.programs), strict=True):
        parent = made.get(program.parent_id)
        made[program.program_id] = Session(
            program,
            shared_prefix_tokens=workload.shared_prefix,
            ideal_ns=times.get(program.program_id, 0),
            telemetry=workload.telemetry,
            account=account if parent is None else parent.account,
            parent=parent,
        )
    return list(made.values())


def rules_of(run: LoadedExperiment) -> ControlRules:
    """What the controller obeys: the workload's tenants, but for those that its rules have tables of."""
    rules = run.asked.rules
    if not run.owners.tenancy.on:
        return rules
    return replace(rules, tenancy=Tenancy(named={**run.owners.tenancy.named, **rules.tenancy.named}))


def bound_of(asked: Experiment) -> Bound:
    """What no order of the same programs, arriving as they do there, can beat: whatever the preset."""
    run = run_of(asked)
    return bound(run.programs, run.engine, asked.workload.shared_prefix, run.arrivals_ns)


def placement_of(run: LoadedExperiment, preset: Preset) -> PlacementPolicy[Any]:
    """What places the run's turns on one of several engines."""
    policy, link_tokens_per_s = placement_named(run.asked.hardware.routing, preset), run.engine.link_tokens_per_s
    if isinstance(policy, SessionAware) and not policy.link_tokens_per_s:  # else it was configured
        return replace(policy, link_tokens_per_s=link_tokens_per_s)
    return policy


def _fleet(run: LoadedExperiment, preset: Preset, router: Router | None) -> Fleet:
    """One engine, or several that differ in their role, as engines of one node have to (docs/adr/0018)."""
    engine = run.engine
    one = engine.replicas == 1
    digits = len(str(engine.replicas))
    roles = ["engine"] if one else [f"engine-{n:0{digits}}" for n in range(1, engine.replicas + 1)]
    places = [f"sim/{role}" for role in roles]

    def start(publisher: Publisher) -> EngineModel:
        return engine.build(publisher, memory=preset.memory, priority=preset.priority)

    at_first = sorted(serving_at_first(run.changes, engine.replicas))
    publishers = [Publisher(f"{places[number - 1]}/1") for number in at_first]
    sites = [Site(start(publisher), publisher) for publisher in publishers]
    link_tokens_per_s = 0.0 if one else engine.link_tokens_per_s
    return Fleet(sites, router, link_tokens_per_s=link_tokens_per_s, start=start, places=places)


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
    """What only host and engines know: how tools fared, what memory was used for, and what was moved."""
    summary = replace(
        summary, tool_slowdown_ratio=world.tools.slowdown_ratio, tool_wait_mean_s=world.tools.wait_mean_s
    )
    engines = fleet.engines
    used = [engine.space_time for engine in engines]
    total, minutes = sum(each.total for each in used), summary.makespan_s / 60
    apart = world.series.kv_imbalance_ratio
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
        kv_imbalance_mean_ratio=statistics.fmean(apart),
        kv_imbalance_max_ratio=max(apart),
        kv_imbalance_over_20_ratio=statistics.fmean(ratio > 0.2 for ratio in apart),
    )


def _counted(progress: Progress, total: int) -> Callable[[int, int, int], None]:
    return lambda ended, turns, now_ns: progress(ended, total, turns, now_ns)


def _facts(run: LoadedExperiment) -> dict[str, str]:
    engine, workload = run.engine, run.asked.workload
    several = {
        "engines": f"{engine.replicas}",
        "routing": policy_name("placement", placement_named(run.asked.hardware.routing, run.asked.preset)),
        "link": f"{engine.link_gb_per_s:g} GB/s",
        **({"changes": ", ".join(run.asked.hardware.changes)} if run.changes else {}),
    }
    return {
        "system": "simulator",
        "profile": engine.profile.name,
        "profile source": engine.profile.source,
        "KV pool": f"{engine.size_tokens} tokens",
        "KV tiers below": ", ".join(map(str, engine.tiers)) or "none",
        **(several if engine.replicas > 1 else {}),
        "trace": run.trace.name,
        "programs": str(run.roots),
        **({"sub-agents": str(len(run.programs) - run.roots)} if run.roots < len(run.programs) else {}),
        "rejected programs": str(len(run.trace.rejected)),
        "scale": str(workload.scale),
        "shared prefix": f"{workload.shared_prefix} tokens",
        "telemetry": str(workload.telemetry),
        **({"tenants": workload.tenants} if workload.tenants else {}),
        "tool CPUs": f"{workload.cpus:g}",
        "tool times": "the trace's" if run.tools is None else str(run.tools),
        "tool contention": "none" if run.contention is None else str(run.contention),
    }
