"""The one description of a run: programs, the engines that serve them, what decides, and when programs arrive.

Each default is declared here and nowhere else, and each bound is checked here. The keys of a sweep's file and the
flags of ``penstock simulate``, ``replay`` and ``engine-double`` are these fields.
"""

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from controlplane.core.model.errors import ConfigError, require
from controlplane.lab.sim.hardware import BLOCK_TOKENS, CHUNK_TOKENS, MAX_RUNNING, Profile, require_steps
from controlplane.lab.workload.scale import Scale
from controlplane.lab.workload.telemetry import Telemetry

if TYPE_CHECKING:  # what the command line needs not load to show its help
    from controlplane.core.model.events import HostSampled
    from controlplane.core.policies.presets import Preset
    from controlplane.core.scheduling.rules_and_state import ControlRules
    from controlplane.lab.sim.sandboxes import SandboxModel
    from controlplane.lab.workload.arrivals import Arrival, Recorded
    from controlplane.lab.workload.tenants import Owners
    from controlplane.lab.workload.tool_fits import ToolFits
    from controlplane.lab.workload.trace import Trace

DEFAULT_TRACE = "synthetic:swe-bench"
DEFAULT_ARRIVAL = "poisson:0.05"
CONTROL_DELAY_NS = 1_000_000  # from a decision until it takes effect
REPLAY = "replay"  # tools take the time that the trace says
_MIX = "mix:"
_ANY = float("inf")


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Programs, what they tell, and the host that their tools run on. Raises ``ConfigError``."""

    trace: str | tuple[str, ...]  # several are mixed, as ``mix:`` does
    name: str = ""  # in the results; default: the trace's
    programs: int = 0  # 0: all of the trace
    max_context: int = 0  # tokens: programs that grow beyond are left out; 0: none is
    humans: bool = True  # false: no programs in which a person thinks between turns
    scale_tokens: float = 1.0
    scale_outputs: float = 1.0
    scale_tools: float = 1.0
    scale_turns: int = 1
    shared_prefix: int = 2000  # tokens
    cpus: float = 8.0
    tool_slots: int = 0  # tools that run at once; 0: no limit
    tools: str = REPLAY  # or a file of ``penstock tools fit``
    contention: bool = False
    cpu_shares: tuple[str, ...] = ()  # as --cpu-share
    tenants: str = ""  # whose programs they are, as --tenants
    arrivals: tuple[str, ...] = ()  # in place of the sweep's
    telemetry: Telemetry = Telemetry.FULL
    timeout_s: float = 0.0  # that programs wait for their first slot before they are refused; 0: for ever

    def __post_init__(self) -> None:
        require("programs", self.programs, low=0, high=10_000_000)
        require("max_context", self.max_context, low=0, high=_ANY)
        require("shared_prefix", self.shared_prefix, low=0, high=_ANY)
        require("cpus", self.cpus, low=0, high=100_000, ends="(]")
        require("tool_slots", self.tool_slots, low=0, high=_ANY)
        require("timeout_s", self.timeout_s, low=0, high=_ANY)
        _ = self.scale
        if self.tenants:
            _ = self.owners

    @property
    def title(self) -> str:
        return self.name or re.sub(r"[^+>:*]*/|\.jsonl(\.gz)?", "", self.source)

    @property
    def source(self) -> str:
        """The trace's name, as ``penstock simulate`` takes it."""
        return self.trace if isinstance(self.trace, str) else f"{_MIX}{'+'.join(self.trace)}"

    @property
    def owners(self) -> "Owners":
        """Whose the programs are."""
        from controlplane.lab.workload.tenants import parse_owners

        return parse_owners(self.tenants)

    @property
    def scale(self) -> Scale:
        return Scale(
            tokens=self.scale_tokens, outputs=self.scale_outputs, tools=self.scale_tools, turns=self.scale_turns
        )


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine, and how many of it. Raises ``ConfigError``.

    ``rate_factor``: on every open arrival rate, for hardware that saturates elsewhere. ``pool_programs``: in place
    of ``pool_tokens``, how many programs of the workload a pool holds, each with its longest context.
    """

    profile: str = "h200-llama31-8b"
    name: str = ""
    pool_tokens: int = 0  # 0: the profile's
    pool_programs: float = 0.0
    chunk_tokens: int = CHUNK_TOKENS
    max_running: int = MAX_RUNNING
    tiers: tuple[str, ...] = ()  # KV memory below the device, the fastest first, as ``--tier``
    replicas: int = 1
    routing: str = ""  # a placement policy; empty: the preset's
    link_gb_per_s: float = (
        50.0  # between two engines, in 10^9 bytes a second: one 400 Gb/s port; 0: nothing is sent
    )
    changes: tuple[str, ...] = ()  # engines that come and go, as ``--change``
    rate_factor: float = 1.0
    block_tokens: int = BLOCK_TOKENS
    max_context_tokens: int = 0  # 0: the profile's

    def __post_init__(self) -> None:
        if self.pool_programs and self.pool_tokens:
            raise ConfigError("pool_programs: set this or pool_tokens, not both", field="pool_programs")
        if self.pool_tokens:
            require("pool_tokens", self.pool_tokens, low=self.block_tokens, high=_ANY)
        require_steps(block_tokens=self.block_tokens, chunk_tokens=self.chunk_tokens, max_running=self.max_running)
        require("pool_programs", self.pool_programs, low=0, high=1e6)
        require("max_context_tokens", self.max_context_tokens, low=0, high=_ANY)
        require("replicas", self.replicas, low=1, high=1024)
        require("link_gb_per_s", self.link_gb_per_s, low=0, high=1e6)
        require("rate_factor", self.rate_factor, low=0, high=1e6, ends="(]")

    @property
    def title(self) -> str:
        return self.name or self.profile


def _usual_rules() -> "ControlRules":
    from controlplane.core.scheduling.rules_and_state import ControlRules

    return ControlRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One run. ``trace`` (not scaled), ``profile`` and ``tools`` stand in for the names of who has them in hand."""

    workload: Workload
    arrival: "Arrival | Recorded"
    preset: "Preset"
    hardware: Hardware = field(default_factory=Hardware)
    rules: "ControlRules" = field(default_factory=_usual_rules)
    seed: int = 1
    label: str = ""
    trace: "Trace | None" = None
    profile: Profile | None = None
    tools: "ToolFits | None" = None
    control_delay_ns: int = CONTROL_DELAY_NS
    sandboxes: "SandboxModel | None" = None  # that programs have on the tool host
    host_samples: "tuple[tuple[int, HostSampled], ...]" = ()  # the host as it was, in place of a modelled one
