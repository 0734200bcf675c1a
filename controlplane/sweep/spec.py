"""What a sweep runs, as its TOML file says it.

    presets = ["fcfs", "mars"]            # default: all
    arrivals = ["poisson:0.05", "poisson:0.1"]
    seeds = [1, 2, 3]

    [[workload]]
    trace = "synthetic:swe-bench"
    programs = 200

    [[hardware]]
    profile = "h200-llama31-8b"

    [variants."mars, waste 0"]          # a daemon's configuration, run beside the presets
    preset = "mars"
    admission.waste = 0.0

The grid is every preset and variant at every arrival with every seed, for each workload on each hardware.
"""

import functools
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from controlplane.config import Config, parse, show
from controlplane.core.errors import ConfigError, UnknownPolicy, require
from controlplane.core.presets import PRESETS, preset
from controlplane.runs import REPLAY, load_tools
from controlplane.sim.contention import parse_contention
from controlplane.sim.lower_tiers import parse_tier
from controlplane.sim.profile import load_profile
from controlplane.sim.simulate import LINK_GB_PER_S, placement_named
from controlplane.workload.arrivals import Arrival, Poisson, parse_arrival
from controlplane.workload.provenance import digest
from controlplane.workload.scale import Scale


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Programs and the host that their tools run on; as the options of ``penstock simulate``."""

    trace: str
    name: str = ""  # in the results; default: the trace's
    programs: int = 0
    max_context: int = 0
    scale_tokens: float = 1.0
    scale_outputs: float = 1.0
    scale_tools: float = 1.0
    shared_prefix: int = 2000
    cpus: float = 8.0
    tool_slots: int = 0
    tools: str = REPLAY  # or a file of ``penstock tools fit``
    contention: bool = False
    cpu_shares: tuple[str, ...] = ()  # as --cpu-share
    arrivals: tuple[str, ...] = ()  # in place of the sweep's

    @property
    def title(self) -> str:
        return self.name or Path(self.trace).name.removesuffix(".gz").removesuffix(".jsonl")

    @property
    def scale(self) -> Scale:
        return Scale(tokens=self.scale_tokens, outputs=self.scale_outputs, tools=self.scale_tools)


class HardwareSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine, and how many of it. ``rate_factor``: on every open arrival rate, for hardware that saturates
    elsewhere.
    """

    profile: str = "h200-llama31-8b"
    name: str = ""
    pool_tokens: int = 0
    chunk_tokens: int = 8192
    tiers: tuple[str, ...] = ()  # as ``--tier`` of ``penstock simulate``
    replicas: int = 1
    routing: str = ""  # a placement policy; empty: the preset's
    link_gb_per_s: float = LINK_GB_PER_S
    rate_factor: float = 1.0

    @property
    def title(self) -> str:
        return self.name or self.profile


class SweepSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole grid."""

    workload: tuple[WorkloadSpec, ...]
    hardware: tuple[HardwareSpec, ...] = (HardwareSpec(),)
    presets: tuple[str, ...] = tuple(PRESETS)
    variants: dict[str, dict[str, Any]] = {}
    arrivals: tuple[str, ...] = ("poisson:0.05",)
    seeds: tuple[int, ...] = (1, 2, 3)

    @property
    def names(self) -> tuple[str, ...]:
        """Presets, then variants: column ``preset`` of the results."""
        return (*self.presets, *self.variants)

    def config(self, name: str) -> Config:
        """The configuration of one of ``names``. Raises ``ConfigError`` and ``UnknownPolicy``."""
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


def load_sweep(path: Path) -> SweepSpec:
    """Read and check a sweep's file. Raises ``ConfigError`` with the path of what is wrong."""
    try:
        data = tomllib.loads(path.read_text())
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
    if not spec.names:
        raise ConfigError("presets: expected at least one, or a variant", field="presets")
    for kind, titles in (
        ("workload", [w.title for w in spec.workload]),
        ("hardware", [h.title for h in spec.hardware]),
        ("presets", list(spec.presets)),
    ):
        if twice := sorted({title for title in titles if titles.count(title) > 1}):
            raise ConfigError(f"{kind}: {', '.join(twice)}: twice; give each a name of its own", field=kind)
    for name in spec.presets:
        preset(name)
    for name in spec.variants:
        if name in PRESETS:
            raise ConfigError(f"variants.{name}: is a preset; choose another name", field="variants")
        try:
            spec.config(name)
        except (ConfigError, UnknownPolicy) as error:
            raise ConfigError(f"variants.{name}: {error}", field="variants") from error
    for hardware in spec.hardware:
        load_profile(hardware.profile)
        for tier in hardware.tiers:
            parse_tier(tier)
        require("replicas", hardware.replicas, low=1, high=1024)
        require("link_gb_per_s", hardware.link_gb_per_s, low=0, high=1e6)
        for name in spec.names:
            placement_named(hardware.routing, spec.config(name).policies)
        require("rate_factor", hardware.rate_factor, low=0, high=1e6, ends="(]")
    for workload in spec.workload:
        load_tools(workload.tools)
        parse_contention(workload.contention, workload.cpu_shares)
    for text in (*spec.arrivals, *(text for w in spec.workload for text in w.arrivals)):
        parse_arrival(text)


def cells(spec: SweepSpec) -> Iterator[Cell]:
    """The grid, seed by seed, so that what is there when it stops is balanced. Raises ``ConfigError``."""
    drawn = {workload.title: digest(repr(load_tools(workload.tools))) for workload in spec.workload}
    shown = {name: show(spec.config(name)) for name in spec.names}
    for seed in spec.seeds:
        for workload in spec.workload:
            for hardware in spec.hardware:
                for arrival in workload.arrivals or spec.arrivals:
                    for name in spec.names:
                        yield Cell(
                            workload=workload.title,
                            hardware=hardware.title,
                            preset=name,
                            arrival=str(scaled(parse_arrival(arrival), hardware.rate_factor)),
                            seed=seed,
                            digest=_digest(workload, hardware, shown[name], drawn[workload.title]),
                        )


def scaled(arrival: Arrival, factor: float) -> Arrival:
    """An open rate times ``factor``; closed arrivals as they are."""
    return Poisson(float(f"{arrival.rate * factor:.6g}")) if isinstance(arrival, Poisson) else arrival


def of_title(specs: Sequence[Any], title: str) -> Any:
    """The workload or hardware of that title."""
    return next(spec for spec in specs if spec.title == title)


@functools.cache
def _digest(workload: WorkloadSpec, hardware: HardwareSpec, shown: str, drawn: str) -> str:
    engine = f"{msgspec.structs.replace(hardware, rate_factor=1.0)!r} {load_profile(hardware.profile)!r}"
    tools = drawn if workload.tools != REPLAY else ""  # in the file: under its name there may be another by now
    return f"{digest(f'{workload!r} {engine}{tools}')}-{digest(shown)}"
