"""What is asked how many agents it serves: a preset on a simulated machine."""

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import msgspec

from controlplane.core.model.errors import ConfigError
from controlplane.lab.capacity.slo import Point, Served, point, served
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.sim.clairvoyant import simulated_preset
from controlplane.lab.sim.profile import load_profile
from controlplane.lab.simulate import engine_of, simulate
from controlplane.lab.sweep.spec import SweepSpec
from controlplane.lab.workload.arrivals import Closed
from controlplane.lab.workload.named import CHANGE, MIX, Wanted, named_workload
from controlplane.lab.workload.trace import Trace

_ROUNDS = 4
_LEAST = 60  # agents, for a percentile
HOST_GB_PER_S = 50.0  # of loads from host memory: a PCIe 5 link as it is used


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One line of the answer. ``measure`` runs a closed loop of so many agents."""

    name: str
    measure: Callable[[int], Point]
    first: int  # agents to begin the search with
    preset: str = ""
    host_gb: float = 0.0


def programs_for(agents: int, least: int = _LEAST) -> int:
    """How many a closed loop of ``agents`` places needs.

    The first of each place warms the engine and the last ends beside empty places: between them there are two for
    each place, and at least ``least``.
    """
    return max(_ROUNDS * agents, 2 * agents + least)


def agents_of(workload: Workload, count: int, seed: int) -> Trace:
    """So many agents that the seed draws; a short trace begins again. Raises ``ConfigError``."""
    name = workload.source
    name = name if name.startswith((MIX, CHANGE)) else f"{MIX}{name}"
    wanted = Wanted(programs=count, max_context_tokens=workload.max_context, seed=seed, humans=workload.humans)
    return named_workload(name, wanted)


def simulated(
    workload: Workload,
    hardware: Hardware,
    *,
    presets: Sequence[str],
    host_gb: Sequence[float],
    seeds: Sequence[int],
) -> list[System]:
    """Each preset on the machine with each size of host memory, in 10^9 bytes. Raises ``ConfigError``."""
    for name in presets:
        simulated_preset(name)  # a name that there is not is told before any work
    contexts = [
        each.context_tokens for each in workload.scale.apply(agents_of(workload, _LEAST, seeds[0])).programs
    ]
    first = max(1, round(engine_of(hardware).size_tokens / statistics.fmean(contexts)))
    found = []
    for gb in host_gb:
        machine, host = _with_host(hardware, gb), f", {gb:g} GB host" if gb else ""
        for name in presets:
            measure = _Simulated(workload, machine, name, tuple(seeds))
            found.append(System(name=f"{name}{host}", measure=measure, first=first, preset=name, host_gb=gb))
    return found


def _with_host(hardware: Hardware, gb: float) -> Hardware:
    if not gb:
        return hardware
    profile = load_profile(hardware.profile)
    if not profile.kv_bytes_per_token:
        raise ConfigError(
            f"host-gb: {profile.name} does not say how many bytes a token has; give --host-gb 0", field="host-gb"
        )
    tier = f"host:{int(gb * 1e9 / profile.kv_bytes_per_token)}:{HOST_GB_PER_S:g}"
    return msgspec.structs.replace(hardware, tiers=(*hardware.tiers, tier))


@dataclass(frozen=True, slots=True)
class _Simulated:
    """Runs every seed, side by side where there are several."""

    workload: Workload
    hardware: Hardware
    preset: str
    seeds: tuple[int, ...]

    def __call__(self, agents: int) -> Point:
        run = partial(_run, self.workload, self.hardware, self.preset, agents)
        if len(self.seeds) == 1:
            return point(agents, [run(*self.seeds)])
        with ProcessPoolExecutor(len(self.seeds), mp_context=get_context("spawn")) as pool:
            return point(agents, list(pool.map(run, self.seeds)))


def _run(workload: Workload, hardware: Hardware, preset: str, agents: int, seed: int) -> Served:
    config = SweepSpec(workload=(workload,), presets=(preset,)).config(preset)
    run = simulate(
        Experiment(
            workload=workload,
            hardware=hardware,
            arrival=Closed(agents),
            preset=config.policies,
            rules=config.control,
            seed=seed,
            trace=agents_of(workload, programs_for(agents), seed),
        )
    )
    return served(run, agents)
