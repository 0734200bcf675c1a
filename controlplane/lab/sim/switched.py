"""A controller of one engine whose preset a switchback chooses, in simulated time as a daemon does in real time."""

from collections.abc import Callable

from controlplane.core.experiment import Switchback
from controlplane.core.model.commands import Command
from controlplane.core.model.events import Event
from controlplane.core.model.steps import Steps
from controlplane.core.policies.presets import PRESETS, STOCK, Preset
from controlplane.core.scheduling.controller import Controller
from controlplane.core.scheduling.rules_and_state import ControlRules


class Switched(Controller):
    """Stock in the slices that are stock's, and ``preset_at`` a time in the others."""

    def __init__(
        self, preset: Preset, rules: ControlRules, *, experiment: Switchback, preset_at: Callable[[int], Preset]
    ) -> None:
        super().__init__(preset, rules)
        self._experiment, self._preset_at = experiment, preset_at

    def receiving(self, event: Event, now_ns: int) -> Steps[None]:
        self._experiment.event(event, now_ns)
        yield from super().receiving(event, now_ns)

    def ticking(self, now_ns: int) -> Steps[list[Command]]:
        self._experiment.tick(now_ns)
        wanted = PRESETS[STOCK] if self._experiment.is_stock(now_ns) else self._preset_at(now_ns)
        if wanted is not self.preset:
            self.reconfigure(wanted, self.rules, now_ns)
        return (yield from super().ticking(now_ns))
