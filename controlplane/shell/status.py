"""What the daemon tells of itself: JSON on the status subject once a control interval, or on request."""

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from controlplane.core.controller import Controller
from controlplane.core.ledger.publishers import Counts
from controlplane.core.lives import ForecastError
from controlplane.core.policies import Window
from controlplane.core.types import Pressure
from controlplane.shell.pump import Pump
from controlplane.shell.reload import ConfigState, Reloader

_MOST_FORECASTS = 16  # classes whose forecast is told of, those that the most programs are of


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What an operator wants now: programs that get no slot, and whether nobody else gets one."""

    held: tuple[str, ...]
    draining: bool

    @classmethod
    def of(cls, controller: Controller) -> "Orders":
        """As the ledger has them."""
        programs = controller.ledger.programs
        return cls(held=tuple(programs.ordered_held), draining=programs.draining)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One look at a daemon. Times are its clock's (scaled) nanoseconds."""

    node: str
    boot_id: str
    preset: str
    config: ConfigState
    now_ns: int
    stream_sequence: int
    programs: int
    window: Window
    pressure: Pressure
    counts: Counts
    rejected: int
    refused: int
    last_rejection: str
    orders: Orders
    bus_connected: bool
    forecasts: tuple[ForecastError, ...]

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)

    @property
    def line(self) -> str:
        """In a few words, for whoever lists services."""
        pressure, limit = self.pressure, self.window.limit or "no limit"
        said = f"{pressure.programs_active} programs active, {pressure.queue_length} waiting; window {limit}"
        draining = "; draining" if self.orders.draining else ""
        return f"{said}{draining}{'' if self.bus_connected else '; the bus is away'}"

    def with_programs(self, controller: Controller) -> bytes:
        """As JSON, with each program's record and the queue in order."""
        detail: dict[str, Any] = {
            "status": self,
            "queue": list(controller.ledger.programs.queue),
            "programs": controller.ledger.programs.by_name,
        }
        return msgspec.json.encode(detail)


def describe(
    pump: Pump, reloader: Reloader, *, boot_id: str, position: int, bus_connected: bool, now_ns: int
) -> Status:
    """The status now."""
    controller, config = pump.controller, reloader.config
    return Status(
        node=config.node,
        boot_id=boot_id,
        preset=config.policies.name,
        config=reloader.state,
        now_ns=now_ns,
        stream_sequence=position,
        programs=len(controller.ledger.programs.by_name),
        window=controller.window,
        pressure=_now(controller),
        counts=controller.ledger.publishers.counts,
        rejected=pump.rejected,
        refused=pump.refused,
        last_rejection=pump.last_rejection,
        orders=Orders.of(controller),
        bus_connected=bus_connected,
        forecasts=tuple(controller.ledger.estimates.lives.forecast_errors()[:_MOST_FORECASTS]),
    )


def _now(controller: Controller) -> Pressure:
    """The pressure of the last tick, with who runs and waits since then."""
    ledger = controller.ledger
    return replace(
        controller.pressure,
        programs_active=ledger.programs.charges.active_roots,
        queue_length=len(ledger.programs.queue),
        tools_active=ledger.tools.active,
        tools_waiting=ledger.tools.waiting,
    )
