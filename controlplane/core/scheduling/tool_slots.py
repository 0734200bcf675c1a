"""How many of the tools that wait for a slot of the host may start now.

Beyond the paper: MARS sees CPU pressure and admits fewer programs; here the tools of those that are admitted wait,
too, so that a host that computes all it can is not asked for more at once (docs/adr/0007).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import floor
from typing import TYPE_CHECKING

from controlplane.core.model.commands import StartTool
from controlplane.core.model.errors import require
from controlplane.core.model.types import Pressure

if TYPE_CHECKING:
    from controlplane.core.scheduling.rules_and_state import ControllerState

ANY = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSlots:
    """Slots of the tool host. ``per_cpu`` 0: none are counted, and a tool that asks may start at once.

    A tool that waits for a network takes a slot too. So while less than ``busy`` of the CPUs is used, as many more
    may start in each control interval as CPUs are idle.
    """

    per_cpu: float = 0.0  # tools that may run at once per CPU of the host; 0: any number
    busy: float = 0.9  # CPU use up to which more tools may start than there are slots

    def __post_init__(self) -> None:
        require("per_cpu", self.per_cpu, low=0, high=1000)
        require("busy", self.busy, low=0, high=1)

    def free(self, pressure: Pressure, beyond: int) -> int:
        """How many may start. ``beyond``: those that were let start above the slots since CPU use was measured."""
        if not self.per_cpu or pressure.cpus <= 0:
            return ANY
        idle_cpus = floor((self.busy - pressure.cpu_use_ratio) * pressure.cpus)
        return max(0, self.slots(pressure.cpus) - pressure.tools_active, idle_cpus - beyond)

    def slots(self, cpus: float) -> int:
        """Tools that may run at once on a busy host of so many CPUs."""
        return max(1, floor(self.per_cpu * cpus)) if self.per_cpu else ANY


def starts_due(state: "ControllerState", slots: ToolSlots, pressure: Pressure) -> Iterator[StartTool]:
    """Tools that wait for a slot of the host, in the order in which they asked."""
    waiting, active = state.ledger.tools.queue, pressure.tools_active
    for key in list(islice(waiting, slots.free(pressure, state.tools_beyond))) if waiting else ():
        call, active = state.ledger.tools.calls[key], active + 1
        why = f"tool {active} at once, on {pressure.cpus:g} CPUs in use by {pressure.cpu_use_ratio:.0%}"
        yield StartTool(program_id=call.program_id, call_id=call.call_id, reason=why)
        state.tools_beyond += active > slots.slots(pressure.cpus)
