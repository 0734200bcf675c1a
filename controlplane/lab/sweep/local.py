"""A sweep in this process, of which whole runs come back: what ``penstock simulate`` does."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from controlplane.config import Config, show
from controlplane.core.model.errors import ConfigError
from controlplane.lab.experiment import Experiment
from controlplane.lab.sim.clairvoyant import LABORATORY
from controlplane.lab.sim.ideal_time import IdealTimes
from controlplane.lab.simulate import placement_of, rules_of, run_of, simulate
from controlplane.lab.sweep.resolve import resolved
from controlplane.lab.sweep.spec import SweepSpec
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.trace import Trace
from controlplane.wire.log import Header, LogWriter

Advance = Callable[[str, int, int], None]


def run_in_process(
    spec: SweepSpec,
    advance: Advance | None = None,
    *,
    trace: Trace | None = None,
    config: Config | None = None,
    record: Path | None = None,
) -> list[RunResult]:
    """Run the grid, arrivals first, then seeds, then presets.

    ``advance`` is told a run's label, programs ended and programs in all. ``trace``: in place of what the workload
    names. ``config``: its control rules hold for all runs, its policies for its own preset. ``record``: the file of
    a single run's event log. Raises ``ConfigError`` and ``UnknownPolicy``.
    """
    asked = [
        _experiment(spec, arrival, seed, name, trace, config)
        for arrival in spec.arrivals
        for seed in spec.seeds
        for name in spec.names
    ]
    if record is not None and len(asked) > 1:
        raise ConfigError("--record writes one run: give one preset, one arrival and one seed")
    if record is not None and asked[0].preset.name in LABORATORY:
        raise ConfigError(f"--record: a daemon could not replay {asked[0].preset.name}, which knows the future")
    ideal: IdealTimes | None = None
    runs = []
    for one in asked:
        run = run_of(one)
        ideal = ideal or IdealTimes(run.engine.build)

        def on_progress(ended: int, total: int, turns: int, now_ns: int, label: str = one.label) -> None:
            if advance is not None:
                advance(label, ended, total)

        if record is None:
            runs.append(simulate(run, ideal=ideal, progress=on_progress))
            continue
        name = one.preset.name
        described = config or spec.config(name)
        described = replace(described, control=rules_of(run))  # the workload's tenants decide, too
        if run.engine.replicas > 1:  # what the hardware says of engines decides, too
            placement = placement_of(run, described.policies)
            described = replace(described, policies=replace(described.policies, placement=placement))
        header = Header(node="sim", preset=name, config=show(described))
        with LogWriter(record, header) as log:
            runs.append(simulate(run, ideal=ideal, recorder=log, progress=on_progress))
    return runs


def _experiment(
    spec: SweepSpec, arrival: str, seed: int, name: str, trace: Trace | None, config: Config | None
) -> Experiment:
    (workload,), (hardware,), found = spec.workload, spec.hardware, spec.config(name)
    at = resolved(arrival, workload, hardware)
    return Experiment(
        workload=workload,
        hardware=hardware,
        arrival=at,
        preset=config.policies if config is not None and config.policies.name == name else found.policies,
        rules=(config or found).control,
        seed=seed,
        label=f"{name} {at} seed {seed}",
        trace=trace,
    )
