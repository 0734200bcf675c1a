"""Retention policies, by the name that configuration and presets use."""

from controlplane.core.retention.beyond_window import BeyondWindow
from controlplane.core.retention.least_waste import LeastWaste
from controlplane.core.retention.lend import Lend
from controlplane.core.retention.never import Never
from controlplane.core.retention.opportunistic import Opportunistic
from controlplane.core.retention.tiers import Tiers
from controlplane.core.retention.ttl import Ttl
from controlplane.core.retention.watermarks import Watermarks

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
