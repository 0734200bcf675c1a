"""What a sweep runs, as its TOML file says it.

    presets = ["fcfs", "penstock"]        # default: all; "clairvoyant" is another
    arrivals = ["poisson:0.05", "load:0.8"]
    seeds = [1, 2, 3]

    [[workload]]
    trace = "synthetic:swe-bench"
    programs = 200

    [[hardware]]
    profile = "h200-llama31-8b"

    [variants."penstock, waste 0"]      # a daemon's configuration, run beside the presets
    preset = "penstock"
    admission.waste = 0.0

The grid is every preset and variant at every arrival with every seed, for each workload on each hardware, and for
each of ``telemetries`` where the file names some.
"""

import functools
import itertools
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from controlplane.config import Config, parse, show
from controlplane.core.model.errors import ConfigError, UnknownPolicy, require
from controlplane.core.policies.presets import PRESETS
from controlplane.lab.experiment import DEFAULT_ARRIVAL, REPLAY, Experiment, Hardware, Workload
from controlplane.lab.sim.changes import parse_changes
from controlplane.lab.sim.clairvoyant import LABORATORY, SIMULATED, simulated_preset
from controlplane.lab.sim.contention import parse_contention
from controlplane.lab.sim.hardware import BLOCK_TOKENS, MAX_RUNNING
from controlplane.lab.sim.lower_tiers import parse_tier
from controlplane.lab.sim.profile import load_profile
from controlplane.lab.simulate import load_tools, placement_named
from controlplane.lab.sweep.resolve import check_arrival, resolved
from controlplane.lab.workload.arrivals import parse_arrival
from controlplane.lab.workload.provenance import digest
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.wire.files import read_text

_MOST_BYTES = 1 << 24


class SweepSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole grid."""

    workload: tuple[Workload, ...]
    hardware: tuple[Hardware, ...] = (Hardware(),)
    presets: tuple[str, ...] = tuple(PRESETS)
    variants: dict[str, dict[str, Any]] = {}
    arrivals: tuple[str, ...] = (DEFAULT_ARRIVAL,)
    seeds: tuple[int, ...] = (1, 2, 3)
    telemetries: tuple[Telemetry, ...] = ()  # a dimension of the grid, in place of the workloads' own

    @property
    def names(self) -> tuple[str, ...]:
        """Presets, then variants: column ``preset`` of the results."""
        return (*self.presets, *self.variants)

    def config(self, name: str) -> Config:
        """The configuration of one of ``names``. Raises ``ConfigError`` and ``UnknownPolicy``."""
        if name in LABORATORY:
            return replace(Config(), preset=name, policies=LABORATORY[name])
        return parse(self.variants.get(name, {"preset": name}))


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the grid.

    ``digest`` names all that its result depends on but the code: of workload and hardware, a dash, of the preset.
    """

    workload: str
    hardware: str
    preset: str
    arrival: str
    seed: int
    digest: str
    telemetry: Telemetry = Telemetry.FULL


def load_sweep(path: Path) -> SweepSpec:
    """Read and check a sweep's file. Raises ``ConfigError`` with the path of what is wrong."""
    try:
        data = tomllib.loads(read_text(path, _MOST_BYTES))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the sweep: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    try:
        spec = msgspec.convert(data, SweepSpec)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from error
    _check(spec)
    return spec


def _check(spec: SweepSpec) -> None:
    """What types cannot say: unknown presets, profiles and arrivals are told before hours of work."""
    for kind in ("workload", "hardware", "arrivals", "seeds"):
        if not getattr(spec, kind):
            raise ConfigError(f"{kind}: expected at least one", field=kind)
    for seed in spec.seeds:
        require("seeds", seed, low=0, high=float("inf"))
    if not spec.names:
        raise ConfigError("presets: expected at least one, or a variant", field="presets")
    for kind, titles in (
        ("workload", [w.title for w in spec.workload]),
        ("hardware", [h.title for h in spec.hardware]),
        ("presets", list(spec.presets)),
    ):
        if twice := sorted({title for title in titles if titles.count(title) > 1}):
            raise ConfigError(f"{kind}: {', '.join(twice)}: named twice; give each its own name", field=kind)
    for name in spec.presets:
        simulated_preset(name)
    for name in spec.variants:
        if name in SIMULATED:
            raise ConfigError(f"variants.{name}: is a preset; choose another name", field="variants")
        try:
            spec.config(name)
        except (ConfigError, UnknownPolicy) as error:
            raise ConfigError(f"variants.{name}: {error}", field="variants") from error
    for hardware in spec.hardware:
        load_profile(hardware.profile)
        for tier in hardware.tiers:
            parse_tier(tier)
        parse_changes(hardware.changes, hardware.replicas)
        for name in spec.names:
            placement_named(hardware.routing, spec.config(name).policies)
    for workload in spec.workload:
        load_tools(workload.tools)
        parse_contention(workload.contention, workload.cpu_shares)
    for text in (*spec.arrivals, *(text for w in spec.workload for text in w.arrivals)):
        check_arrival(text)


def cells(spec: SweepSpec) -> Iterator[Cell]:
    """Every preset in every place, seed by seed, so that what is there when a sweep stops is balanced.

    Raises ``ConfigError``.
    """
    tools = {workload.title: digest(repr(load_tools(workload.tools))) for workload in spec.workload}
    shown = {name: show(spec.config(name), without=_OF_A_DAEMON) for name in spec.names}
    for seed, workload, hardware in itertools.product(spec.seeds, spec.workload, spec.hardware):
        telemetries = spec.telemetries or (workload.telemetry,)
        for load in workload.arrivals or spec.arrivals:
            arrival = str(resolved(load, workload, hardware))
            for telemetry, name in itertools.product(telemetries, spec.names):
                yield Cell(
                    workload=workload.title,
                    hardware=hardware.title,
                    preset=name,
                    arrival=arrival,
                    seed=seed,
                    digest=_digest(workload, hardware, shown[name], tools[workload.title]),
                    telemetry=telemetry,
                )


def experiment(spec: SweepSpec, cell: Cell) -> Experiment:
    """The run that a cell stands for, telling what the cell says. Raises ``ConfigError``."""
    workload, hardware, config = (
        _titled(spec.workload, cell.workload),
        _titled(spec.hardware, cell.hardware),
        spec.config(cell.preset),
    )
    return Experiment(
        workload=msgspec.structs.replace(workload, telemetry=cell.telemetry),
        hardware=hardware,
        arrival=parse_arrival(cell.arrival),
        preset=config.policies,
        rules=config.control,
        seed=cell.seed,
    )


def _titled(specs: Sequence[Any], title: str) -> Any:
    return next(spec for spec in specs if spec.title == title)


# Fields that came later, with what stood for them before: rows of then keep their digest. So they do their names.
_BEFORE = (
    ", humans=True",
    ", scale_turns=1",
    ", pool_programs=0.0",
    f", max_running={MAX_RUNNING}",
    f", telemetry={Telemetry.FULL!r}",
    f", block_tokens={BLOCK_TOKENS}",
    ", max_context_tokens=0",
    ", changes=()",
    ", tenants=''",
    "compute = false\n",
    "turns_ahead = 12.0\n",
    "passing_wait = 0.0\n",
    "[control.trees]\nkeep = true\n\n",
)
_OF_A_DAEMON = ("fleet", "host.elsewhere", "shadow", "experiment")  # no run depends on them


@functools.cache
def _digest(workload: Workload, hardware: Hardware, shown: str, drawn: str) -> str:
    workload = msgspec.structs.replace(workload, telemetry=Telemetry.FULL)  # it has a column
    hardware = msgspec.structs.replace(hardware, rate_factor=1.0)  # so have arrivals
    described = f"{workload!r} {hardware!r}".replace("Workload(", "WorkloadSpec(", 1).replace(
        " Hardware(", " HardwareSpec(", 1
    )
    for field in _BEFORE:
        described, shown = described.replace(field, ""), shown.replace(field, "")
    tools = drawn if workload.tools != REPLAY else ""  # in the file: under its name there may be another by now
    return f"{digest(f'{described} {load_profile(hardware.profile)!r}{tools}')}-{digest(shown)}"
