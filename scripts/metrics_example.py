"""Every metric of a daemon, with every label: what the reference page and the check of ``deploy/`` go by."""

from dataclasses import replace

from controlplane.config import Config, Resolved, Source, TelemetryConfig
from controlplane.core.experiment import Estimate
from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.tenancy import Tenancy, Tenant
from controlplane.core.policies.presets import preset
from controlplane.core.regret import CLIENT, Cause, Outcome, Sums, Verdict
from controlplane.core.scheduling.controller import Controller
from controlplane.core.scheduling.rules_and_state import ControlRules
from controlplane.daemon.experiment import MEASURES, ExperimentStatus
from controlplane.daemon.observe.journal import Journal
from controlplane.daemon.observe.telemetry import Telemetry
from controlplane.daemon.otlp.receiver import OUTCOMES
from controlplane.daemon.pipeline import DecisionPipeline
from controlplane.daemon.process.reload import Reloader
from controlplane.daemon.process.tasks import Failure
from controlplane.daemon.shadow.estimates import EstimatedChange, ShadowEstimate
from controlplane.daemon.shadow.shadow import Shadow
from controlplane.daemon.status.engines import EngineRow, each_engine
from controlplane.daemon.status.status import Status, describe
from controlplane.transport.listener import ListenerRow


def exposed_example() -> bytes:
    """In Prometheus' text format, of a node on which each thing happened once."""
    pipeline = DecisionPipeline(Controller(preset("mars"), ControlRules(tenancy=Tenancy(named={"team": Tenant()}))))
    reloader = Reloader(Source(), Resolved(config=Config(), origins={}), lambda config: None)

    shadow = Shadow(lambda: pipeline.controller)
    shadow.configure(Config(preset="mars", policies=preset("mars")))
    change = EstimatedChange(name="mean_jct_s", value=0.0, low=0.0, high=0.0, is_bounded=True, replay_error=0.0)

    experiment = ExperimentStatus(
        preset="mars",
        standing=MEASURES,
        is_stock=False,
        began_ns=0,
        slice_ends_ns=1,
        ended_ns=0,
        since_ns=0,
        blocks=1,
        left_out=0,
        programs=1,
        censored=0,
        changes=(Estimate(name="completion", value=0.0, low=0.0, high=0.0, is_bounded=True, blocks=1),),
    )

    def status() -> Status:
        shadow_status = shadow.status(1, ShadowEstimate(changes=(change,)))
        return describe(
            pipeline,
            reloader,
            boot_id="",
            stream_sequence=0,
            bus_connected=True,
            now_ns=1,
            fence=1,
            shadow=shadow_status,
            experiment=experiment,
            listeners=(ListenerRow(name="page", open=0, most=1, refused=0),),
            failures=(Failure(what="host probe", count=1),),
        )

    def engines() -> list[EngineRow]:
        return list(each_engine(pipeline.controller.ledger, (), 1))

    sums = Sums(pins_lost=1)
    verdict = Verdict(kind="retain", program_id="p", opened_ns=0, closed_ns=1, outcome=Outcome.HIT)
    for each in (verdict, replace(verdict, kind=CLIENT, cause=Cause.EDITED, again_tokens=1, client="claude-cli 2")):
        sums.add(each)
    journal = Journal(lambda: pipeline.controller)
    telemetry = Telemetry(
        TelemetryConfig(),
        "local",
        status=status,
        engines=engines,
        journal=journal,
        sums=lambda: sums,
        spans=dict.fromkeys(OUTCOMES, 1),
    )
    pool = ev.PoolSampled(publisher="local/engine-30000/1", sequence=1, total_blocks=1, free_blocks=1)
    pipeline.controller.receive(pool, 1)
    pipeline.controller.receive(ev.TurnQueued(program_id="p", turn_id="1", prompt_tokens=10), 1)
    commands = pipeline.controller.tick(1)
    for command in [*commands, cmd.SetWindow(limit=1, window=1.0)]:
        journal.command(command, 1)
    journal.event(ev.TurnQueued(program_id="p", turn_id="1"), 1)
    journal.event(ev.FirstToken(program_id="p", turn_id="1"), 1)
    journal.event(ev.TurnEnded(publisher=pool.publisher, program_id="p", turn_id="1"), 1)
    journal.event(ev.ToolEnded(program_id="p", call_id="1", tool="bash", duration_ns=1), 1)
    exposed = telemetry.prometheus()
    telemetry.close()
    return exposed
