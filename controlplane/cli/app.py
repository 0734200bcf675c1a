"""The ``penstock`` command: the daemon, the look at a node, presets; the modules beside this one add the rest.

Heavy imports wait inside the commands: ``penstock up`` must be back in a blink.
"""

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli.bus import bus_app
from controlplane.cli.config import ConfigFile, PresetName, config_app
from controlplane.cli.control import register as register_control
from controlplane.cli.runs import register
from controlplane.core.errors import ControlPlaneError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Penstock: the control plane for multi-turn LLM agents.",
)
app.add_typer(config_app, name="config")
app.add_typer(bus_app, name="bus")
register(app)
register_control(app)

Node = Annotated[str | None, typer.Option("--node", help="Name of this serving node, part of every subject.")]
NatsUrl = Annotated[str | None, typer.Option("--nats", help="NATS URL. Default: an embedded nats-server.")]
StateDir = Annotated[
    str | None, typer.Option("--state-dir", help="Where snapshots, the embedded stream and the endpoint file live.")
]
TimeScale = Annotated[
    float | None, typer.Option("--time-scale", help="For demos: seconds of engine time that pass in one second.")
]

# What the commands need beyond the hooks' own, by where it comes from.
_EXTRAS = {
    **dict.fromkeys(("grpc", "grpc_health", "grpc_reflection"), "daemon"),
    **dict.fromkeys(("watchfiles", "opentelemetry", "prometheus_client", "aiohttp"), "daemon"),
    **dict.fromkeys(("numpy", "matplotlib", "jinja2"), "sim"),
    **dict.fromkeys(("starlette", "uvicorn", "httptools"), "double"),
}


@app.command()
def up(
    config: ConfigFile = None,
    preset: PresetName = None,
    node: Node = None,
    nats: NatsUrl = None,
    nats_port: Annotated[int, typer.Option(help="Port of the embedded nats-server; 0: a free one.")] = 0,
    state_dir: StateDir = None,
    time_scale: TimeScale = None,
    record: Annotated[
        Path | None, typer.Option(help="Write a readable event log here (JSON lines; .gz compresses).")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run the daemon: read events, decide, send commands.

    Without `--nats` it starts a nats-server of its own and writes its address to the endpoint file, where engine
    and tool hooks on this machine find it. It reads the configuration again when its file changes, and on SIGHUP.
    Stop it with Ctrl-C or SIGTERM.
    """
    from controlplane.config import Source
    from controlplane.shell.compose import run_daemon
    from controlplane.shell.logs import LEVELS, configure

    if log_level not in LEVELS:
        raise typer.BadParameter(
            f"expected one of {', '.join(LEVELS)}, got {log_level!r}", param_hint="--log-level"
        )
    configure(log_level)
    options = {
        "preset": preset,
        "node": node,
        "nats_url": nats,
        "state_dir": state_dir,
        "time_scale": time_scale,
    }
    run_daemon(Source(path=config, options=options), record=record, nats_port=nats_port)


@app.command()
def doctor(
    config: ConfigFile = None,
    node: Node = None,
    nats: NatsUrl = None,
    state_dir: StateDir = None,
    api: Annotated[str | None, typer.Option("--api", help="The daemon's control API. Default: its socket.")] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="URL of the engine's HTTP server, to look at its plugin too.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at this node and say what is not in order and what to do; exit 1 if something does not work.

    Versions, configuration, state directory, host, bus and JetStream, clocks, daemon, what reports to it, the gate.
    """
    from controlplane.config import Source
    from controlplane.operate.doctor import State, examine
    from controlplane.operate.printing import print_json
    from controlplane.shell.logs import configure

    configure("error")  # what is wrong is told as a finding
    options = {"node": node, "nats_url": nats, "state_dir": state_dir}
    findings = []
    for finding in examine(Source(path=config, options=options), api=api, engine=engine):
        findings.append(finding)
        if not json:
            colour = {State.OK: "green", State.LOOK: "yellow", State.BAD: "red"}[finding.state]
            typer.secho(f"{finding.state:<5}", fg=colour, nl=False)
            typer.echo(f"{finding.what:<16} {finding.found}")
            if finding.advice:
                typer.echo(f"{'':<22}-> {finding.advice}")
    if json:
        print_json(findings)
    if any(finding.state is State.BAD for finding in findings):
        raise typer.Exit(1)


@app.command()
def presets(
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the presets and the policies that each is made of."""
    from controlplane.cli.presets import as_json, print_presets

    if json:
        typer.echo(as_json())
    else:
        print_presets()


def main() -> None:
    """Entry point: what the user can mend is told in one line, without a stack trace."""
    try:
        app()
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        extra = _EXTRAS.get(module)
        if extra is None:
            raise
        typer.secho(f"penstock: this needs {module}: pip install 'penstock[{extra}]'", fg="red", err=True)
        raise SystemExit(1) from None
    except ControlPlaneError as error:
        typer.secho(f"penstock: {error}", fg="red", err=True)
        raise SystemExit(1) from None
