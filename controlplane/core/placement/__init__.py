"""Placement policies, by the name that configuration and presets use."""

from controlplane.core.placement.single import Single

PLACEMENT = {
    "single": Single,
}
