"""Priority policies, by the name that configuration and presets use."""

from controlplane.core.priority.fcfs import Fcfs
from controlplane.core.priority.mlfq import Mlfq
from controlplane.core.priority.plas import Plas
from controlplane.core.priority.ttl_first import TtlFirst
from controlplane.core.priority.typed import Typed

PRIORITY = {
    "fcfs": Fcfs,
    "mlfq": Mlfq,
    "plas": Plas,
    "ttl_first": TtlFirst,
    "typed": Typed,
}
