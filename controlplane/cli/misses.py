"""``penstock misses``: why prefixes were computed again."""

from typing import Annotated

import typer

from controlplane.cli.options import Json, Logs, Nodes, StateDir, logs_of

_BY = "cause, client, tool, side, tenant or program"


def misses(
    logs: Logs = None,
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

    if by not in BY:
        raise ConfigError(f"by: expected {_BY}, got {by!r}{near(by, BY)}", field="by")
    found = read_misses([*logs_of(node, state_dir, logs).values()])
    show_misses(found, rows(found, by), by, json=json)
