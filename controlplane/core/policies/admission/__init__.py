"""Admission policies, by the name that configuration and presets use."""

from controlplane.core.policies.admission.aimd import Aimd
from controlplane.core.policies.admission.capacity import Capacity
from controlplane.core.policies.admission.concur import Concur
from controlplane.core.policies.admission.fixed import Fixed

ADMISSION = {
    "capacity": Capacity,
    "concur": Concur,
    "fixed": Fixed,
    "aimd": Aimd,
}
