"""``penstock bus``: users and permissions for your own nats-server, and the URL of one role."""

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli.options import Node, StateDir
from controlplane.transport.roles import BusRole

bus_app = typer.Typer(
    name="bus", no_args_is_help=True, help="Make the bus's users and permissions, and print their URLs."
)


@bus_app.command("config")
def config(
    node: Annotated[list[str], typer.Option("--node", help="A node that the server serves. Repeatable.")],
    url: Annotated[str, typer.Option(help="Where clients reach the server: tls://bus.example:4222.")],
    folder: Annotated[Path, typer.Option(help="The folder that the files go to; passwords in it stay.")] = Path(
        "bus"
    ),
) -> None:
    """Write users and permissions for your own nats-server, and a URL for each user.

    `roles.conf` is for the server: put `include "bus/roles.conf"` into its configuration. `NODE.ROLE.env` sets
    `PENSTOCK_NATS_URL` for one client. Each node has its own account. Passwords are made once: those in the folder
    stay, so to add a node, name all nodes again.
    """
    from controlplane.daemon.bus.nats_config import write_roles

    for path in write_roles(folder, node, url):
        typer.echo(path)


@bus_app.command("url")
def url_of(
    role: Annotated[BusRole, typer.Option(help="The role to connect as.")],
    node: Node = "local",
    state_dir: StateDir = None,
) -> None:
    """Print one role's URL of the embedded server, with the password, for a user who cannot read the endpoint file.

    The URL stays the same if the daemon has a fixed `--nats-port`.
    """
    from controlplane.core.model.errors import EngineUnavailable
    from controlplane.transport.endpoint import endpoint_path, read_endpoint

    endpoint = read_endpoint(node, state_dir)
    if endpoint is None:
        raise EngineUnavailable(f"no bus for node {node!r}: there is no {endpoint_path(node, state_dir)}")
    typer.echo(endpoint.url_of(role))
