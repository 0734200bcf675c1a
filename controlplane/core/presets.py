"""Presets: each system as a named set of the six policies."""

from dataclasses import dataclass
from typing import Any

from controlplane.core.admission import ADMISSION
from controlplane.core.admission.aimd import Aimd
from controlplane.core.admission.fixed import Fixed
from controlplane.core.errors import UnknownPolicy
from controlplane.core.memory import MEMORY
from controlplane.core.memory.lru import Lru
from controlplane.core.memory.opportunistic import Opportunistic as CoScheduler
from controlplane.core.packing import PACKING
from controlplane.core.packing.fcfs import Fcfs
from controlplane.core.packing.pressure_aware import PressureAware
from controlplane.core.placement import PLACEMENT
from controlplane.core.placement.single import Single
from controlplane.core.policies import (
    AdmissionPolicy,
    MemoryPolicy,
    PackingPolicy,
    PlacementPolicy,
    PriorityPolicy,
    RetentionPolicy,
)
from controlplane.core.priority import PRIORITY
from controlplane.core.priority.fcfs import Fcfs as RequestFcfs
from controlplane.core.priority.mlfq import Mlfq
from controlplane.core.retention import RETENTION
from controlplane.core.retention.never import Never
from controlplane.core.retention.opportunistic import Opportunistic

POLICIES: dict[str, dict[str, Any]] = {
    "admission": ADMISSION,
    "packing": PACKING,
    "retention": RETENTION,
    "priority": PRIORITY,
    "placement": PLACEMENT,
    "memory": MEMORY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One of each policy, with its parameters."""

    name: str
    summary: str
    admission: AdmissionPolicy[Any]
    packing: PackingPolicy[Any]
    retention: RetentionPolicy[Any]
    priority: PriorityPolicy[Any]
    placement: PlacementPolicy[Any]
    memory: MemoryPolicy[Any]


PRESETS: dict[str, Preset] = {
    "fcfs": Preset(
        name="fcfs",
        summary="the stock engine: every request at once, first come first served, LRU eviction",
        admission=Fixed(),
        packing=Fcfs(),
        retention=Never(),
        priority=RequestFcfs(),
        placement=Single(),
        memory=Lru(),
    ),
    "mars": Preset(
        name="mars",
        summary="MARS: AIMD admission under CPU and KV pressure, pressure-aware packing, opportunistic retention",
        admission=Aimd(),
        packing=PressureAware(),
        retention=Opportunistic(),
        priority=Mlfq(),
        placement=Single(),
        memory=CoScheduler(),
    ),
}


def preset(name: str) -> Preset:
    """The preset of that name. Raises ``UnknownPolicy`` and lists the names there are."""
    try:
        return PRESETS[name]
    except KeyError:
        raise UnknownPolicy(f"no preset {name!r}; there are: {', '.join(sorted(PRESETS))}") from None


def policy_name(kind: str, policy: Any) -> str:
    """The name under which a policy of this kind is registered."""
    return next(name for name, cls in POLICIES[kind].items() if cls is type(policy))
