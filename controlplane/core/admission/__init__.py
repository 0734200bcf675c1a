"""Admission policies, by the name that configuration and presets use."""

from controlplane.core.admission.aimd import Aimd
from controlplane.core.admission.fixed import Fixed

ADMISSION = {
    "fixed": Fixed,
    "aimd": Aimd,
}
