"""Packing policies, by the name that configuration and presets use."""

from controlplane.core.packing.by_tier import ByTier
from controlplane.core.packing.fcfs import Fcfs
from controlplane.core.packing.least_left import LeastLeft
from controlplane.core.packing.pressure_aware import PressureAware
from controlplane.core.packing.shortest import Shortest

PACKING = {
    "by_tier": ByTier,
    "fcfs": Fcfs,
    "least_left": LeastLeft,
    "pressure_aware": PressureAware,
    "shortest": Shortest,
}
