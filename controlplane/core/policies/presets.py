"""Presets: each system as a named set of the six policies."""

from dataclasses import dataclass, replace
from typing import Any

from controlplane.core.model.errors import UnknownPolicy, near
from controlplane.core.policies.admission import ADMISSION
from controlplane.core.policies.admission.aimd import Aimd
from controlplane.core.policies.admission.capacity import Capacity
from controlplane.core.policies.admission.concur import Concur
from controlplane.core.policies.admission.fixed import Fixed
from controlplane.core.policies.memory import MEMORY
from controlplane.core.policies.memory.lru import Lru
from controlplane.core.policies.memory.opportunistic import Opportunistic as CoScheduler
from controlplane.core.policies.memory.typed import Typed as TypedEviction
from controlplane.core.policies.packing import PACKING
from controlplane.core.policies.packing.by_tier import ByTier
from controlplane.core.policies.packing.fcfs import Fcfs
from controlplane.core.policies.packing.least_left import LeastLeft
from controlplane.core.policies.packing.pressure_aware import PressureAware
from controlplane.core.policies.packing.shortest import Shortest
from controlplane.core.policies.placement import PLACEMENT
from controlplane.core.policies.placement.session import Session
from controlplane.core.policies.priority import PRIORITY
from controlplane.core.policies.priority.fcfs import Fcfs as RequestFcfs
from controlplane.core.policies.priority.mlfq import Mlfq
from controlplane.core.policies.priority.plas import Plas
from controlplane.core.policies.priority.ttl_first import TtlFirst
from controlplane.core.policies.priority.typed import Typed
from controlplane.core.policies.protocols import (
    AdmissionPolicy,
    MemoryPolicy,
    PackingPolicy,
    PlacementPolicy,
    PriorityPolicy,
    RetentionPolicy,
)
from controlplane.core.policies.retention import RETENTION
from controlplane.core.policies.retention.beyond_window import BeyondWindow
from controlplane.core.policies.retention.least_waste import LeastWaste
from controlplane.core.policies.retention.lend import Lend
from controlplane.core.policies.retention.never import Never
from controlplane.core.policies.retention.opportunistic import Opportunistic
from controlplane.core.policies.retention.tiers import Tiers
from controlplane.core.policies.retention.ttl import Ttl
from controlplane.core.policies.retention.watermarks import Watermarks

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
    packing: PackingPolicy
    retention: RetentionPolicy[Any]
    priority: PriorityPolicy
    placement: PlacementPolicy[Any]
    memory: MemoryPolicy


_MARS = Preset(
    name="mars",
    summary="MARS: AIMD admission under CPU and KV pressure, pressure-aware packing, opportunistic retention",
    admission=Aimd(),
    packing=PressureAware(),
    retention=Opportunistic(),
    priority=Mlfq(),
    placement=Session(),
    memory=CoScheduler(),
)
_ALL = (
    Preset(
        name="fcfs",
        summary="the stock engine: every request at once, first come first served, LRU eviction",
        admission=Fixed(),
        packing=Fcfs(),
        retention=Never(),
        priority=RequestFcfs(),
        placement=Session(),
        memory=Lru(),
    ),
    Preset(
        name="autellix",
        summary="Autellix: programs served least so far go first",
        admission=Fixed(),
        packing=Fcfs(),
        retention=Never(),
        priority=Plas(),
        placement=Session(),
        memory=Lru(),
    ),
    Preset(
        name="infercept",
        summary="InferCept: contexts of acting programs preserved, swapped or discarded, by least waste",
        admission=Fixed(),
        packing=Fcfs(),
        retention=LeastWaste(),
        priority=TtlFirst(pinned_first=False),
        placement=Session(),
        memory=Lru(keep_pins=True),
    ),
    Preset(
        name="continuum",
        summary="Continuum: KV pinned for a time-to-live per tool, first come first served by program",
        admission=Fixed(),
        packing=Fcfs(),
        retention=Ttl(),
        priority=TtlFirst(),
        placement=Session(),
        memory=Lru(keep_pins=True),
    ),
    Preset(
        name="thunderagent",
        summary="ThunderAgent: programs paused and restored, shortest first, by what the pool holds",
        admission=Capacity(),
        packing=Shortest(),
        retention=Watermarks(),
        priority=RequestFcfs(),
        placement=Session(),
        memory=Lru(),
    ),
    Preset(
        name="mori",
        summary="MORI: the busiest programs on the device, idle ones in host memory, by windowed idleness",
        admission=Capacity(interval_s=0.0),
        packing=ByTier(),
        retention=Tiers(),
        priority=Typed(),
        placement=Session(),
        memory=TypedEviction(),
    ),
    Preset(
        name="concur",
        summary="CONCUR: a window of agents, by how full the cache is and how often it is hit",
        admission=Concur(),
        packing=Fcfs(),
        retention=BeyondWindow(),
        priority=RequestFcfs(),
        placement=Session(),
        memory=Lru(),
    ),
    _MARS,
    Preset(
        name="penstock",
        summary="Penstock: AIMD admission, least expected memory x time first, slots lent through long gaps",
        # 0.3 of what turns take alone is the 0.1 of mars, of what they take where they share: in pools of two or
        # three programs, where it was found, a third longer, and 0.3 (3/4)^4 = 0.1 (ADR 0019).
        admission=Aimd(waste=0.3, slow_start=True, compute=True),
        packing=LeastLeft(),
        retention=Lend(),
        priority=RequestFcfs(),
        placement=Session(),
        memory=CoScheduler(aligned=False),
    ),
    replace(
        _MARS,
        name="mars-paper",
        summary="MARS as it is printed, Algorithm 1 and its data plane, without what was added to it here",
        # Turns that take three times as long as alone meet not even MARS' loosest goal (§6.3, alpha up to 3).
        admission=Aimd(
            used_only=False,
            one_cut=False,
            evidence=False,
            forecast=False,
            waste=0.0,
            kv_soft=0.25,
            slowdown_high=3.0,
            strict=True,
        ),
        packing=PressureAware(aged=False, returners_first=False),
        retention=Opportunistic(lend=False),
        # Rising each 10 s, as under mars, all of a queue in which turns wait for longer than 30 s are of one level.
        priority=Mlfq(cold=True, promote_s=60.0),
    ),
)
PRESETS: dict[str, Preset] = {each.name: each for each in _ALL}
DEFAULT = "penstock"
STOCK = "fcfs"
FORESEEING = {
    "clairvoyant": "knows the future: least left first, Belady's eviction; the yardstick of simulated runs",
}
"""Presets that only a simulation can have, as they are told what programs will do."""


def preset(name: str) -> Preset:
    """The preset of that name. Raises ``UnknownPolicy`` and lists the names there are."""
    if name in FORESEEING:
        raise UnknownPolicy(f"preset {name!r} knows the future: only simulate and sweep can have it")
    try:
        return PRESETS[name]
    except KeyError:
        known = sorted(PRESETS)
        raise UnknownPolicy(f"no preset {name!r}; there are: {', '.join(known)}{near(name, known)}") from None


def policy_name(kind: str, policy: Any) -> str:
    """The name under which a policy of this kind is registered."""
    return next(name for name, cls in POLICIES[kind].items() if cls is type(policy))
