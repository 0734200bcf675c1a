"""``penstock bus``: who may do what on the bus, for a nats-server of one's own; and the URL of one role."""

from pathlib import Path
from typing import Annotated

import typer

from controlplane.wire.roles import BusRole

bus_app = typer.Typer(
    name="bus", no_args_is_help=True, help="Users of the bus: a server's configuration, and their URLs."
)


@bus_app.command("config")
def config(
    node: Annotated[list[str], typer.Option("--node", help="A node that the server carries. Repeatable.")],
    url: Annotated[str, typer.Option(help="Where clients reach the server: tls://bus.example:4222.")],
    folder: Annotated[Path, typer.Option(help="Where the files go, or are.")] = Path("bus"),
) -> None:
    """Write the users and permissions of a nats-server of your own, and a URL for each of them.

    `roles.conf` is for the server: `include "bus/roles.conf"` in its configuration. `NODE.ROLE.env` sets the
    variable `PENSTOCK_NATS_URL` of one client. Each node is an account of its own. Passwords are made once: those
    in the folder stay, so that a node is added by naming all of them again.
    """
    from controlplane.shell.nats_config import write_roles

    for path in write_roles(folder, node, url):
        typer.echo(path)


@bus_app.command("url")
def url_of(
    role: Annotated[BusRole, typer.Option(help="As whom to connect.")],
    node: Annotated[str, typer.Option("--node", envvar="PENSTOCK_NODE", help="The node.")] = "local",
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", envvar="PENSTOCK_STATE_DIR", help="Where the endpoint file is.")
    ] = None,
) -> None:
    """Print the URL of the embedded server for one role, password included: for somebody who cannot read it.

    It stays the same where the daemon has a fixed `--nats-port`.
    """
    from controlplane.core.errors import EngineUnavailable
    from controlplane.wire.endpoint import endpoint_path, read_endpoint

    endpoint = read_endpoint(node, state_dir)
    if endpoint is None:
        raise EngineUnavailable(f"no bus for node {node!r}: there is no {endpoint_path(node, state_dir)}")
    typer.echo(endpoint.url_of(role))
