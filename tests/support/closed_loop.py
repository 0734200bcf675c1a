"""Runs of the simulator as the truth of what-if: recorded as a node's are, and free of what a machine adds."""

from pathlib import Path
from typing import Any

from controlplane.config import show
from controlplane.config.model import Config
from controlplane.core.policies.presets import PRESETS
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.synthetic import synthesize
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.wire.log import Header, LogWriter

ENGINE = "h200-llama31-8b"
POOL_TOKENS = 60_000


def experiment(
    preset: str,
    *,
    programs: int,
    rate: float,
    seed: int,
    pool_tokens: int = POOL_TOKENS,
    telemetry: Telemetry = Telemetry.FULL,
) -> Experiment:
    """One run, ``rate`` in programs/s."""
    return Experiment(
        workload=Workload(trace="in hand", telemetry=telemetry),
        hardware=Hardware(profile=ENGINE, pool_tokens=pool_tokens),
        arrival=Poisson(rate),
        preset=PRESETS[preset],
        trace=synthesize("swe-bench", programs=programs, seed=seed),
        seed=seed,
    )


def record(log: Path, preset: str, **run: Any) -> Path:
    """Write the log of an ``experiment``. The same arguments give the same one."""
    config = show(Config(preset=preset, policies=PRESETS[preset]))
    with LogWriter(log, Header(node="sim", preset=preset, config=config)) as writer:
        simulate(experiment(preset, **run), recorder=writer)
    return log
