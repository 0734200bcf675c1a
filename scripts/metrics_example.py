"""Every metric of a daemon, with every label: what the reference page and the check of ``deploy/`` go by."""

from controlplane.config import Config, Resolved, Source, TelemetryConfig
from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.control import ControlRules
from controlplane.core.controller import Controller
from controlplane.core.presets import preset
from controlplane.core.regret import Outcome, Sums, Verdict
from controlplane.core.tenants import Tenancy, Tenant
from controlplane.shell.advise import AdviseStatus
from controlplane.shell.engines import EngineRow, engine_rows
from controlplane.shell.pump import Pump
from controlplane.shell.reload import Reloader
from controlplane.shell.shadow import EstimatedChange, Shadow, ShadowEstimate
from controlplane.shell.status import Status, describe
from controlplane.shell.tasks import Failure
from controlplane.shell.telemetry import Telemetry
from controlplane.wire.listener import ListenerRow


def exposed_example() -> bytes:
    """In Prometheus' text format, of a node on which each thing happened once."""
    pump = Pump(Controller(preset("mars"), ControlRules(tenancy=Tenancy(named={"team": Tenant()}))))
    reloader = Reloader(Source(), Resolved(config=Config(), origins={}), lambda config: None)

    shadow = Shadow(lambda: pump.controller)
    shadow.want(Config(preset="mars", policies=preset("mars")))
    change = EstimatedChange(name="mean_jct_s", value=0.0, low=0.0, high=0.0, is_bounded=True, replay_error=0.0)

    advice = AdviseStatus(
        goal="mean_jct_s",
        phase="listens",
        reason="",
        until_ns=0,
        heard_ns=0,
        wanted_ns=1,
        trying="",
        in_force=(),
        tried=0,
        kept=0,
        undone=0,
        latest=(),
    )

    def status() -> Status:
        beside = shadow.status(1, ShadowEstimate(changes=(change,)))
        return describe(
            pump,
            reloader,
            boot_id="",
            position=0,
            bus_connected=True,
            now_ns=1,
            fence=1,
            shadow=beside,
            advise=advice,
            listeners=(ListenerRow(name="page", open=0, most=1, refused=0),),
            failures=(Failure(what="host probe", count=1),),
        )

    def engines() -> list[EngineRow]:
        return engine_rows(pump.controller.ledger, (), 1)

    sums = Sums(pins_lost=1)
    sums.add(Verdict(kind="retain", program_id="p", opened_ns=0, closed_ns=1, outcome=Outcome.HIT))
    telemetry = Telemetry(
        TelemetryConfig(),
        "local",
        status=status,
        engines=engines,
        controller=lambda: pump.controller,
        sums=lambda: sums,
    )
    pool = ev.PoolSampled(publisher="local/engine-30000/1", sequence=1, total_blocks=1, free_blocks=1)
    pump.controller.receive(pool, 1)
    pump.controller.receive(ev.TurnQueued(program_id="p", turn_id="1", prompt_tokens=10), 1)
    commands = pump.controller.tick(1)
    for recorder in telemetry.recorders:
        for command in [*commands, cmd.SetWindow(limit=1, window=1.0)]:
            recorder.command(command, 1)
        recorder.event(ev.TurnQueued(program_id="p", turn_id="1"), 1)
        recorder.event(ev.FirstToken(program_id="p", turn_id="1"), 1)
        recorder.event(ev.TurnEnded(publisher=pool.publisher, program_id="p", turn_id="1"), 1)
        recorder.event(ev.ToolEnded(program_id="p", call_id="1", tool="bash", duration_ns=1), 1)
    exposed = telemetry.prometheus()
    telemetry.close()
    return exposed
