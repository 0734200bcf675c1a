"""Placement policies, by the name that configuration and presets use."""

from controlplane.core.policies.placement.hashing import Hash
from controlplane.core.policies.placement.least_loaded import LeastLoaded
from controlplane.core.policies.placement.prefix import Prefix
from controlplane.core.policies.placement.round_robin import RoundRobin
from controlplane.core.policies.placement.session import Session
from controlplane.core.policies.placement.single import Single

PLACEMENT = {
    "single": Single,
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
    "hash": Hash,
    "prefix": Prefix,
    "session": Session,
}
