"""Priority policies, by the name that configuration and presets use."""

from controlplane.core.priority.fcfs import Fcfs
from controlplane.core.priority.mlfq import Mlfq

PRIORITY = {
    "fcfs": Fcfs,
    "mlfq": Mlfq,
}
