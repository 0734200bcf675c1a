"""Priority policies, by the name that configuration and presets use."""

from controlplane.core.priority.fcfs import Fcfs

PRIORITY = {
    "fcfs": Fcfs,
}
