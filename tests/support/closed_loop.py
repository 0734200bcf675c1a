"""Runs of the simulator as the truth of what-if: recorded as a node's are, and free of what a machine adds."""

from pathlib import Path

from controlplane.config import show
from controlplane.config.model import Config
from controlplane.core.presets import PRESETS
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.synthetic import synthesize
from controlplane.wire.log import Header, LogWriter

ENGINE = "h200-llama31-8b"
POOL_TOKENS = 60_000


def experiment(preset: str, *, programs: int, rate: float, seed: int) -> Experiment:
    """One run, ``rate`` in programs/s."""
    return Experiment(
        workload=Workload(trace="in hand"),
        hardware=Hardware(profile=ENGINE, pool_tokens=POOL_TOKENS),
        arrival=Poisson(rate),
        preset=PRESETS[preset],
        trace=synthesize("swe-bench", programs=programs, seed=seed),
        seed=seed,
    )


def record(log: Path, preset: str, *, programs: int, rate: float, seed: int) -> Path:
    """Write its log. The same arguments give the same one."""
    config = show(Config(preset=preset, policies=PRESETS[preset]))
    with LogWriter(log, Header(node="sim", preset=preset, config=config)) as writer:
        simulate(experiment(preset, programs=programs, rate=rate, seed=seed), recorder=writer)
    return log
