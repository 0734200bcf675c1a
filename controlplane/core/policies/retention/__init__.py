"""Retention policies, by the name that configuration and presets use."""

from controlplane.core.policies.retention.beyond_window import BeyondWindow
from controlplane.core.policies.retention.least_waste import LeastWaste
from controlplane.core.policies.retention.lend import Lend
from controlplane.core.policies.retention.never import Never
from controlplane.core.policies.retention.opportunistic import Opportunistic
from controlplane.core.policies.retention.tiers import Tiers
from controlplane.core.policies.retention.ttl import Ttl
from controlplane.core.policies.retention.watermarks import Watermarks

RETENTION = {
    "beyond_window": BeyondWindow,
    "least_waste": LeastWaste,
    "lend": Lend,
    "never": Never,
    "opportunistic": Opportunistic,
    "tiers": Tiers,
    "ttl": Ttl,
    "watermarks": Watermarks,
}
