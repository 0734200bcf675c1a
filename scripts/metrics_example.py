"""Every metric of a daemon, with every label: what the reference page and the check of ``deploy/`` go by."""

from controlplane.config import Config, Resolved, Source, TelemetryConfig
from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.controller import Controller
from controlplane.core.presets import preset
from controlplane.shell.pump import Pump
from controlplane.shell.reload import Reloader
from controlplane.shell.status import Status, describe
from controlplane.shell.telemetry import Telemetry


def exposed_example() -> bytes:
    """In Prometheus' text format, of a node on which each thing happened once."""
    pump = Pump(Controller(preset("mars")))
    reloader = Reloader(Source(), Resolved(config=Config(), origins={}), lambda config: None)

    def status() -> Status:
        return describe(pump, reloader, boot_id="", position=0, bus_connected=True, now_ns=1)

    telemetry = Telemetry(TelemetryConfig(), "local", status=status, controller=lambda: pump.controller)
    pump.controller.receive(ev.TurnQueued(program_id="p", turn_id="1", prompt_tokens=10), 1)
    commands = pump.controller.tick(1)
    for recorder in telemetry.recorders:
        for command in [*commands, cmd.SetWindow(limit=1, window=1.0)]:
            recorder.command(command, 1)
        recorder.event(ev.FirstToken(program_id="p", turn_id="1"), 1)
        recorder.event(ev.TurnEnded(program_id="p", turn_id="1"), 1)
        recorder.event(ev.ToolEnded(program_id="p", call_id="1", tool="bash", duration_ns=1), 1)
    exposed = telemetry.prometheus()
    telemetry.close()
    return exposed
