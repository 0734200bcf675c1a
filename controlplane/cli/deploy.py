"""``penstock deploy``: files for systemd, Prometheus and Grafana."""

from pathlib import Path
from typing import Annotated

import typer

deploy_app = typer.Typer(
    name="deploy", no_args_is_help=True, help="This version's files for systemd, Prometheus and Grafana."
)


@deploy_app.command("export")
def export(
    folder: Annotated[Path, typer.Argument(help="Where they go; those of another version are replaced.")],
) -> None:
    """Write systemd units, alert rules and the Grafana dashboard of this version into a folder.

    Images, compose files and Helm charts need the repository: they are in its `deploy/`.
    """
    from controlplane.operate.deployment import export as write
    from controlplane.operate.printing import echo

    for path in write(folder):
        echo(str(path))
