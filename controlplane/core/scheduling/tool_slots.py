"""How many of the tools that wait for a slot of the host may start now.

Beyond the paper: MARS sees CPU pressure and admits fewer programs; here the tools of those that are admitted wait,
too, so that a host that computes all it can is not asked for more at once (docs/adr/0007).
"""

from dataclasses import dataclass
from math import floor

from controlplane.core.model.errors import require
from controlplane.core.model.types import Pressure

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
