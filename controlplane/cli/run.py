"""``penstock up | doctor``: run a node's daemon, and find out why it does not work."""

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli.options import ConfigFile, Json, PresetName, about_to_serve

# Unlike the other commands' options, these may come from the daemon's configuration, too, which names their origin.
Node = Annotated[
    str | None, typer.Option("--node", help="Name of this serving node, which is part of every subject.")
]
NatsUrl = Annotated[
    str | None, typer.Option("--nats", help="URL of a NATS server. Default: start an embedded one.")
]
StateDir = Annotated[
    str | None, typer.Option("--state-dir", help="Folder of snapshots, the embedded stream and the endpoint file.")
]


def up(
    config: ConfigFile = None,
    preset: PresetName = None,
    node: Node = None,
    nats: NatsUrl = None,
    nats_port: Annotated[int, typer.Option(help="Port of the embedded nats-server; 0: a free one.")] = 0,
    state_dir: StateDir = None,
    time_scale: Annotated[
        float | None,
        typer.Option("--time-scale", help="For demos: seconds of engine time that pass in one second."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Write a readable event log here (JSON lines; .gz compresses).")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run the daemon: read events, decide, send commands.

    Without `--nats` it starts its own nats-server and writes the address to the endpoint file, where engine and
    tool hooks on this machine find it. It reads the configuration again when the file changes, and on SIGHUP. Stop
    it with Ctrl-C or SIGTERM.
    """
    about_to_serve(log_level)
    from controlplane.config import Source
    from controlplane.daemon.compose import run_daemon

    options = {
        "preset": preset,
        "node": node,
        "nats_url": nats,
        "state_dir": state_dir,
        "time_scale": time_scale,
    }
    run_daemon(Source(path=config, options=options), record=record, nats_port=nats_port)


def doctor(
    config: ConfigFile = None,
    node: Node = None,
    nats: NatsUrl = None,
    state_dir: StateDir = None,
    api: Annotated[
        str | None, typer.Option("--api", help="The daemon's control API. Default: the node's socket.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="URL of the engine's HTTP server, to check its plugin, too.")
    ] = None,
    json: Json = False,
) -> None:
    """Check this node and say what is wrong and what to do about it; exit with 1 if something does not work.

    It checks versions, configuration, state directory, host, bus and JetStream, clocks, the daemon, what reports to
    it, and the gate, all at once. Each check takes three seconds at most, but for an engine's plugin where the
    engine is installed here: it is imported for that.
    """
    from controlplane.config import Source
    from controlplane.daemon.process.logs import configure
    from controlplane.operate.doctor import examine
    from controlplane.operate.finding import State
    from controlplane.operate.printing import echo, print_json

    configure("error")  # whatever is wrong becomes a finding
    options = {"node": node, "nats_url": nats, "state_dir": state_dir}
    findings = []
    for finding in examine(Source(path=config, options=options), api=api, engine=engine):
        findings.append(finding)
        if not json:
            colour = {State.OK: "green", State.LOOK: "yellow", State.BAD: "red"}[finding.state]
            typer.secho(f"{finding.state:<5}", fg=colour, nl=False)
            echo(f"{finding.what:<16} {finding.found}")
            if finding.advice:
                echo(f"{'':<22}-> {finding.advice}")
    if json:
        print_json(findings)
    if any(finding.state is State.BAD for finding in findings):
        raise typer.Exit(1)
