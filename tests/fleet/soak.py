"""``python -m tests.fleet --kills 200``: a fleet's processes are killed and frozen under load, from one seed.

NATS servers, engines, fleet daemons, Envoys and clients. The engines are doubles; with ``--engines real`` they are
two SGLangs and a vLLM on this machine's CPU, whose environments ``make sglang-env vllm-env`` makes. Exits
with 1 when a program was lost, a request was run twice, or one failed that was not cut on a killed engine or with
its Envoy.
"""

import asyncio
from pathlib import Path

from rich.console import Console

from controlplane.lab.fleet.demo import FleetDemoOptions, Result, run_fleet_demo
from controlplane.lab.fleet.site import SiteOptions

DOUBLES, REAL = "doubles", "real"


def faults(
    kills: int,
    seed: int,
    folder: Path,
    *,
    agents: int = 8,
    patience: float = 0.5,
    site: SiteOptions | None = None,
) -> Result:
    """So many faults of a site whose files lie in ``folder``."""
    options = FleetDemoOptions(
        kills=kills, seed=seed, agents=agents, folder=folder, patience=patience, site=site or SiteOptions()
    )
    return run_fleet_demo(options, Console(highlight=False, width=200))


async def soak(kills: int, seed: int, folder: Path, *, engines: str = DOUBLES) -> int:
    site, patience = SiteOptions(), 0.5
    if engines == REAL:
        from .real_engines import real_engines

        site, patience = SiteOptions(real=real_engines(folder)), 0.75  # few faults, and each takes long
    result = await asyncio.to_thread(faults, kills, seed, folder, patience=patience, site=site)
    return 0 if result.is_good else 1
