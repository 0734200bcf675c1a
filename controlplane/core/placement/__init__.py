"""Placement policies, by the name that configuration and presets use."""

from controlplane.core.placement.hashing import Hash
from controlplane.core.placement.least_loaded import LeastLoaded
from controlplane.core.placement.prefix import Prefix
from controlplane.core.placement.round_robin import RoundRobin
from controlplane.core.placement.session import Session
from controlplane.core.placement.single import Single

PLACEMENT = {
    "single": Single,
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
    "hash": Hash,
    "prefix": Prefix,
    "session": Session,
}
