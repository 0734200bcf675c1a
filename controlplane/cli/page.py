"""``penstock page``: the address of the daemon's web page for who may command the daemon."""

import typer

from controlplane.cli.ask import daemon
from controlplane.cli.options import Api, Node, StateDir

_EVERYWHERE = ("0.0.0.0", "[::]", "")


def page(node: Node = "local", state_dir: StateDir = None, api: Api = None) -> None:
    """Print the address of the daemon's page, with the key by which it may replay a stretch of time.

    Without the key the page shows the same and has the daemon do nothing. The key is another one after each start
    of the daemon: whoever has the address may ask for replays, so do not pass it on.
    """
    with daemon(api, node, state_dir) as client:
        told = client.call("OpenPage")
    host, _, port = told.listen.rpartition(":")
    typer.echo(f"http://{'localhost' if host in _EVERYWHERE else host}:{port}/#key={told.key}")
