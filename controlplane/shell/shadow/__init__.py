"""A second controller beside the one in force: it decides on the same events, and sends nothing (docs/adr/0056)."""

from controlplane.shell.shadow.differences import DifferenceCounts
from controlplane.shell.shadow.estimates import EstimatedChange, Estimates, ShadowEstimate
from controlplane.shell.shadow.replayer import Answer, Replayer
from controlplane.shell.shadow.shadow import DECIDES, FAILED, THIN, Shadow, ShadowStatus
from controlplane.shell.shadow.wanting import Wanting

__all__ = [
    "DECIDES",
    "FAILED",
    "THIN",
    "Answer",
    "DifferenceCounts",
    "EstimatedChange",
    "Estimates",
    "Replayer",
    "Shadow",
    "ShadowEstimate",
    "ShadowStatus",
    "Wanting",
]
