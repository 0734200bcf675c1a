"""What the daemon tells of itself: JSON on the status subject once a control interval, or on request."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from controlplane.core.estimators.class_stats import ForecastError
from controlplane.core.ledger.publishers import Counts
from controlplane.core.model.events import PLUGINLESS
from controlplane.core.model.types import Pressure
from controlplane.core.policies.protocols import Window
from controlplane.core.scheduling.controller import Controller
from controlplane.core.scheduling.queued_demand import QueuedDemand, queued_demand
from controlplane.daemon.experiment import ExperimentStatus
from controlplane.daemon.pipeline import DecisionPipeline
from controlplane.daemon.process.reload import ConfigState, Reloader
from controlplane.daemon.process.tasks import Failure
from controlplane.daemon.shadow.shadow import ShadowStatus
from controlplane.daemon.status.engines import EngineCounts, Known, count_engines, gateless_engines, silent_gates
from controlplane.daemon.status.health import DaemonHealth, Finding, findings
from controlplane.daemon.status.tenants import TenantRow, jain_index, tenant_rows
from controlplane.transport.listener import ListenerRow

_MOST_FORECASTS = 16  # classes whose forecast is told of, those that the most programs are of


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What an operator wants now: programs that get no slot, and whether nobody else gets one."""

    held: tuple[str, ...]
    draining: bool

    @classmethod
    def of(cls, controller: Controller) -> "Orders":
        programs = controller.ledger.programs
        return cls(held=tuple(programs.ordered_held), draining=programs.draining)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Turns that left a gate unserved, by why."""

    code: str
    turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCounts:
    """Sandboxes that may be frozen, and those that are. ``frozen_for_ns``: the one that is for the longest."""

    awake: int = 0
    frozen: int = 0
    frozen_for_ns: int = 0
    held_bytes: int = 0
    woken: int = 0
    late: int = 0  # of those: a tool waited
    latest_late_ns: int = 0

    @classmethod
    def of(cls, controller: Controller, now_ns: int) -> "SandboxCounts":
        sandboxes = controller.ledger.sandboxes
        since_ns = [each.since_ns for each in sandboxes.known.values() if each.frozen]
        return cls(
            awake=len(sandboxes.known) - len(since_ns),
            frozen=len(since_ns),
            frozen_for_ns=now_ns - min(since_ns, default=now_ns),
            held_bytes=round(sandboxes.held_bytes(sandboxes.usual_bytes)),
            woken=sandboxes.woken,
            late=sandboxes.late,
            latest_late_ns=sandboxes.latest_late_ns,
        )


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
    held: QueuedDemand
    block_tokens: int
    counts: Counts
    rejected: int
    refused: int
    last_rejection: str
    orders: Orders
    bus_connected: bool
    forecasts: tuple[ForecastError, ...]
    passive_engines: tuple[str, ...]
    engines: EngineCounts
    silent_gates: tuple[str, ...] = ()
    gateless_engines: tuple[str, ...] = ()
    stands_by: bool = False  # another daemon of this node decides
    tenants: tuple[TenantRow, ...] = ()
    tenants_jain_index: float = 0.0
    fence: int = 0  # the lease by which this one does, where several may
    shadow: ShadowStatus | None = None
    experiment: ExperimentStatus | None = None
    listeners: tuple[ListenerRow, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    sandboxes: SandboxCounts = field(default_factory=SandboxCounts)
    failures: tuple[Failure, ...] = ()  # errors that ended nothing
    set_aside: int = 0  # messages that could not be applied
    last_set_aside: str = ""
    own: DaemonHealth = field(default_factory=DaemonHealth)
    findings: tuple[Finding, ...] = ()

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def line(self) -> str:
        pressure, limit = self.pressure, self.window.limit or "no limit"
        text = f"{pressure.programs_active} programs active, {pressure.queue_length} waiting; window {limit}"
        if self.stands_by:
            return f"stands by: another daemon leads; {self.programs} programs known"
        return "; ".join([text, *(each.title for each in self.findings)])

    def with_programs(self, controller: Controller) -> bytes:
        detail: dict[str, Any] = {
            "status": self,
            "queue": list(controller.ledger.programs.queue),
            "programs": controller.ledger.programs.by_name,
        }
        return msgspec.json.encode(detail)


def describe(
    pipeline: DecisionPipeline, reloader: Reloader, *, now_ns: int, roster: Iterable[Known] = (), **known: Any
) -> Status:
    """The status now; ``roster`` has the engines that there should be, where somebody knows.

    ``known``: fields of the status that neither of the two can tell.
    """
    controller, config = pipeline.controller, reloader.config
    tenants = tenant_rows(controller.ledger, now_ns)
    status = Status(
        node=config.node,
        preset=config.policies.name,
        config=reloader.state,
        now_ns=now_ns,
        programs=len(controller.ledger.programs.by_name),
        window=controller.window,
        pressure=_now(controller),
        held=queued_demand(controller.ledger, now_ns),
        block_tokens=controller.ledger.estimates.block_tokens,
        counts=controller.ledger.publishers.counts,
        rejected=pipeline.rejected,
        refused=pipeline.refused,
        last_rejection=pipeline.last_rejection,
        orders=Orders.of(controller),
        forecasts=tuple(controller.ledger.estimates.lives.forecast_errors()[:_MOST_FORECASTS]),
        passive_engines=tuple(
            f"{place.rpartition('/')[2]}: {pool.reason}"
            for place, pool in controller.ledger.engines.pools.items()
            if pool.reason and pool.reason not in PLUGINLESS  # nobody expects more of it
        ),
        engines=count_engines(controller.ledger, roster, now_ns),
        silent_gates=silent_gates(controller.ledger, now_ns),
        gateless_engines=gateless_engines(controller.ledger),
        tenants=tenants,
        tenants_jain_index=jain_index(tenants),
        refusals=tuple(Refusal(code=code, turns=turns) for code, turns in controller.ledger.gates.refused.items()),
        sandboxes=SandboxCounts.of(controller, now_ns),
        set_aside=pipeline.set_aside.count,
        last_set_aside=pipeline.set_aside.last,
        **known,
    )
    return replace(status, findings=findings(status))


def _now(controller: Controller) -> Pressure:
    """The pressure of the last tick, with who runs and waits since then; engines are asked for by themselves.

    A thousand engines' parts would be a quarter of a megabyte on the bus each second.
    """
    ledger = controller.ledger
    return replace(
        controller.pressure,
        programs_active=ledger.programs.charges.active_roots,
        queue_length=len(ledger.programs.queue),
        tools_active=ledger.tools.active,
        tools_waiting=ledger.tools.waiting,
        replicas=(),
    )
