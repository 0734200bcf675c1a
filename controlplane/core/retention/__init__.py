"""Retention policies, by the name that configuration and presets use."""

from controlplane.core.retention.never import Never
from controlplane.core.retention.opportunistic import Opportunistic

RETENTION = {
    "never": Never,
    "opportunistic": Opportunistic,
}
