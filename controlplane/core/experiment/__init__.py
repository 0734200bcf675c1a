"""Switchback: slices of time under the stock policy, the others under the preset, and what the preset gains."""

from controlplane.core.experiment.confidence import Interval, confidence_interval
from controlplane.core.experiment.rules import SwitchbackRules
from controlplane.core.experiment.slices import Slices
from controlplane.core.experiment.switchback import (
    GAIN,
    LENGTH,
    LOSS,
    MOST_CENSORED,
    Block,
    Estimate,
    Switchback,
    SwitchbackState,
    judge,
)

__all__ = [
    "GAIN",
    "LENGTH",
    "LOSS",
    "MOST_CENSORED",
    "Block",
    "Estimate",
    "Interval",
    "Slices",
    "Switchback",
    "SwitchbackRules",
    "SwitchbackState",
    "confidence_interval",
    "judge",
]
