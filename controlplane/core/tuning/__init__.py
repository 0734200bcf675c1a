"""Changes one setting by one step, and takes it back where it does not do what was predicted (docs/adr/0060)."""

from controlplane.core.tuning.machine import Phase, Seen, State, advance
from controlplane.core.tuning.orders import Answer, Ask, Forecast, Keep, Order, TakeBack, Try
from controlplane.core.tuning.steps import GOALS, SHARES, Bound, Rules, Step

__all__ = [
    "GOALS",
    "SHARES",
    "Answer",
    "Ask",
    "Bound",
    "Forecast",
    "Keep",
    "Order",
    "Phase",
    "Rules",
    "Seen",
    "State",
    "Step",
    "TakeBack",
    "Try",
    "advance",
]
