"""Admission policies, by the name that configuration and presets use."""

from controlplane.core.admission.aimd import Aimd
from controlplane.core.admission.capacity import Capacity
from controlplane.core.admission.concur import Concur
from controlplane.core.admission.fixed import Fixed

ADMISSION = {
    "capacity": Capacity,
    "concur": Concur,
    "fixed": Fixed,
    "aimd": Aimd,
}
