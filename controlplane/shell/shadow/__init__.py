"""A second controller beside the one in force: it decides on the same events, and sends nothing (docs/adr/0056)."""

from controlplane.shell.shadow.differences import DifferenceCounts
from controlplane.shell.shadow.estimates import Asked, EstimatedChange, Estimates, ShadowEstimate
from controlplane.shell.shadow.shadow import DECIDES, FAILED, THIN, Shadow, ShadowStatus

__all__ = [
    "DECIDES",
    "FAILED",
    "THIN",
    "Asked",
    "DifferenceCounts",
    "EstimatedChange",
    "Estimates",
    "Shadow",
    "ShadowEstimate",
    "ShadowStatus",
]
