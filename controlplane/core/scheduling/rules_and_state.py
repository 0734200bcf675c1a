"""What a controller obeys and what it remembers."""

from dataclasses import dataclass, field
from typing import Any

from controlplane.core.experiment import SwitchbackState
from controlplane.core.ledger import Ledger
from controlplane.core.model.errors import require
from controlplane.core.model.hints import HintRules
from controlplane.core.model.tenancy import Tenancy
from controlplane.core.policies.protocols import Window
from controlplane.core.scheduling.freezing import FreezeRules
from controlplane.core.scheduling.liveness import SilenceRules
from controlplane.core.scheduling.overload import Overload, OverloadRules
from controlplane.core.scheduling.subagents import TreeRules
from controlplane.core.scheduling.tool_slots import ToolSlots


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRules:
    """Rules that hold whatever the preset. Times in seconds."""

    interval_s: float = 1.0  # the control interval: load is sensed once in it
    overdue_s: float = 300.0  # who has waited so long is passed over no more; it goes first unless packing ages
    stall_s: float = 1.0  # queue not empty and the engine idle for this long: admit the head
    resync_s: float = 1.0  # between two requests for one publisher's state
    grant_s: float = 900.0  # lease of a grant; use renews it
    overload: OverloadRules = field(default_factory=OverloadRules)
    silence: SilenceRules = field(default_factory=SilenceRules)
    tool_slots: ToolSlots = field(default_factory=ToolSlots)
    sandboxes: FreezeRules = field(default_factory=FreezeRules)
    tenancy: Tenancy = field(default_factory=Tenancy)
    trees: TreeRules = field(default_factory=TreeRules)
    hints: HintRules = field(default_factory=HintRules)
    prepare_ahead: int = 4  # environments are prepared for this many programs at the head of the queue

    def __post_init__(self) -> None:
        require("interval_s", self.interval_s, low=0.01, high=3600)
        require("overdue_s", self.overdue_s, low=0, high=86_400)
        require("stall_s", self.stall_s, low=0, high=86_400)
        require("resync_s", self.resync_s, low=0, high=3600, ends="(]")
        require("prepare_ahead", self.prepare_ahead, low=0, high=1_000_000)
        require("grant_s", self.grant_s, low=1, high=86_400)


@dataclass(slots=True, kw_only=True)
class ControllerState:
    """Everything that decides the next command: what a snapshot holds."""

    ledger: Ledger = field(default_factory=Ledger)
    admission: Any = None
    retention: Any = None
    placement: Any = None
    overload: Overload = field(default_factory=Overload)
    window: Window = field(default_factory=lambda: Window(limit=0, window=0.0, reason="starting"))
    announced: tuple[int, float] = (-1, -1.0)  # the limit and window last sent
    forecast: tuple[int, ...] = ()
    forecast_key: tuple[int, int] = (-1, -1)  # the active programs' changes and the interval it was made in
    interval_ends_ns: int = 0
    tools_beyond: int = 0  # that were let start above the slots in this interval
    experiment: SwitchbackState = field(default_factory=SwitchbackState)
