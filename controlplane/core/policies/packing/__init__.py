"""Packing policies, by the name that configuration and presets use."""

from controlplane.core.policies.packing.by_tier import ByTier
from controlplane.core.policies.packing.fcfs import Fcfs
from controlplane.core.policies.packing.least_left import LeastLeft
from controlplane.core.policies.packing.pressure_aware import PressureAware
from controlplane.core.policies.packing.shortest import Shortest

PACKING = {
    "by_tier": ByTier,
    "fcfs": Fcfs,
    "least_left": LeastLeft,
    "pressure_aware": PressureAware,
    "shortest": Shortest,
}
