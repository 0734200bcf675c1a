"""What a sweep's file says, as records."""

import re
from dataclasses import replace
from typing import Any

import msgspec

from controlplane.config import Config, parse
from controlplane.core.presets import PRESETS
from controlplane.lab.runs import REPLAY
from controlplane.lab.sim.engine_spec import LINK_GB_PER_S, MAX_RUNNING
from controlplane.lab.sim.laboratory import LABORATORY
from controlplane.lab.workload.named import MIX
from controlplane.lab.workload.scale import Scale
from controlplane.lab.workload.telemetry import Telemetry


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Programs and the host that their tools run on; as the options of ``penstock simulate``."""

    trace: str | tuple[str, ...]  # several are mixed, as ``mix:`` does
    name: str = ""  # in the results; default: the trace's
    programs: int = 0
    max_context: int = 0
    humans: bool = True  # false: no programs in which a person thinks between turns
    scale_tokens: float = 1.0
    scale_outputs: float = 1.0
    scale_tools: float = 1.0
    scale_turns: int = 1
    shared_prefix: int = 2000
    cpus: float = 8.0
    tool_slots: int = 0
    tools: str = REPLAY  # or a file of ``penstock tools fit``
    contention: bool = False
    cpu_shares: tuple[str, ...] = ()  # as --cpu-share
    arrivals: tuple[str, ...] = ()  # in place of the sweep's
    telemetry: Telemetry = Telemetry.FULL

    @property
    def title(self) -> str:
        return self.name or re.sub(r"[^+>:*]*/|\.jsonl(\.gz)?", "", self.source)

    @property
    def source(self) -> str:
        """The trace's name, as ``penstock simulate`` takes it."""
        return self.trace if isinstance(self.trace, str) else f"{MIX}{'+'.join(self.trace)}"

    @property
    def scale(self) -> Scale:
        return Scale(
            tokens=self.scale_tokens, outputs=self.scale_outputs, tools=self.scale_tools, turns=self.scale_turns
        )


class HardwareSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine, and how many of it.

    ``rate_factor``: on every open arrival rate, for hardware that saturates elsewhere. ``pool_programs``: in place
    of ``pool_tokens``, how many programs of the workload a pool holds, each with its longest context.
    """

    profile: str = "h200-llama31-8b"
    name: str = ""
    pool_tokens: int = 0
    pool_programs: float = 0.0
    chunk_tokens: int = 8192
    max_running: int = MAX_RUNNING
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
