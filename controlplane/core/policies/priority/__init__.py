"""Priority policies, by the name that configuration and presets use."""

from controlplane.core.policies.priority.fcfs import Fcfs
from controlplane.core.policies.priority.mlfq import Mlfq
from controlplane.core.policies.priority.plas import Plas
from controlplane.core.policies.priority.ttl_first import TtlFirst
from controlplane.core.policies.priority.typed import Typed

PRIORITY = {
    "fcfs": Fcfs,
    "mlfq": Mlfq,
    "plas": Plas,
    "ttl_first": TtlFirst,
    "typed": Typed,
}
