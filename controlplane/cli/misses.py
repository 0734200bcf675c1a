"""``penstock misses``: why prefixes were computed again."""

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli.options import Json, Nodes, StateDir

_BY = "cause, client, tool, side, tenant or program"


def misses(
    logs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[LOG]...",
            help="Decision logs, or runs that `penstock up --record` wrote. Default: the decision log of --node.",
        ),
    ] = None,
    by: Annotated[str, typer.Option("--by", help=f"Sum up by {_BY}.")] = "cause",
    node: Nodes = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Tell why turns computed again what had been computed before, in tokens and in seconds of prefill.

    A client may have changed its prompt: model, system prompt, tools, their order, or a message. A gate compares
    each prompt with its program's earlier ones, by digests, and says where the first difference is. The scheduler
    may have let the context go: its pin was too short, others needed room, it was paused or moved, or its engine
    was started anew.
    """
    from controlplane.core.model.errors import ConfigError, near
    from controlplane.operate.misses import BY, read_misses, rows, show_misses
    from controlplane.transport.endpoint import default_state_dir
    from controlplane.wire.decisions import log_path

    if by not in BY:
        raise ConfigError(f"by: expected {_BY}, got {by!r}{near(by, BY)}", field="by")
    folder = state_dir or default_state_dir()
    named = [log_path(name, folder) for name in node or ([] if logs else ["local"])]
    found = read_misses([*named, *(logs or ())])
    show_misses(found, rows(found, by), by, json=json)
