"""Commands that look at a running daemon: top, status, programs, queue, decisions, explain."""

from typing import Annotated

import typer

from controlplane.cli import completion
from controlplane.cli.ask import daemon, until_interrupted
from controlplane.cli.options import Api, Json, Node, StateDir


def top(node: Node = "local", state_dir: StateDir = None, api: Api = None) -> None:
    """Watch a node live: window, pressures, queue, and what every program does. Ctrl-C ends it.

    A row is green while the engine works for the program, cyan while its tool runs, yellow while it is held. Bars
    begin on the right; the three plots share one scale.
    """
    from controlplane.operate.top import watch

    with daemon(api, node, state_dir) as client, until_interrupted():
        watch(client)


def status(node: Node = "local", state_dir: StateDir = None, api: Api = None, json: Json = False) -> None:
    """Print how a node stands: window, pressures, queue, configuration, orders."""
    from controlplane.operate.tables import show_status

    with daemon(api, node, state_dir) as client:
        show_status(client.call("GetStatus"), json=json)


def programs(
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    ended: Annotated[bool, typer.Option("--ended", help="Also those that ended in the last minute.")] = False,
    limit: Annotated[
        int, typer.Option(help="So many, some of those who wait, have a slot, and do neither; 0: all.", min=0)
    ] = 0,
    json: Json = False,
) -> None:
    """List the programs: who waits in the order of the queue, then who has a slot, then the others."""
    from controlplane.operate.tables import show_programs

    with daemon(api, node, state_dir) as client:
        show_programs(client.call("ListPrograms", ended=ended, limit=limit), json=json)


def queue(
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    limit: Annotated[int, typer.Option(help="The first so many; 0: all.", min=0)] = 0,
    json: Json = False,
) -> None:
    """List the programs that wait for a slot, the first in front."""
    from controlplane.operate.tables import show_programs

    with daemon(api, node, state_dir) as client:
        show_programs(client.call("ListPrograms", queued=True, limit=limit), json=json)


def decisions(
    program: Annotated[
        str, typer.Argument(help="Only about this one.", metavar="[PROGRAM]", autocompletion=completion.programs)
    ] = "",
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each.")] = False,
) -> None:
    """Print each decision as it is made, with its reason, until Ctrl-C."""
    from controlplane.operate.tables import show_decision

    with daemon(api, node, state_dir) as client, until_interrupted():
        for decision in client.watch("WatchDecisions", program_id=program):
            show_decision(decision, json=json)


def explain(
    program: Annotated[
        str,
        typer.Argument(
            help="Default: print whom there is to ask about.",
            metavar="[PROGRAM]",
            autocompletion=completion.decided,
        ),
    ] = "",
    node: Node = "local",
    state_dir: StateDir = None,
    last: Annotated[int, typer.Option(help="The latest so many decisions; 0: all.", min=0)] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each.")] = False,
) -> None:
    """Tell why a program was let in, held, pinned or let go.

    Each decision with its rule, its numbers, who else could have been chosen, and what came of it. From the log in
    the state directory, also of a daemon that does not run now. Without a program: their names, the latest last.
    """
    import msgspec

    from controlplane.core.errors import UnknownProgram
    from controlplane.operate.explain import lines, names, story
    from controlplane.wire.decisions import log_path, read_decisions
    from controlplane.wire.endpoint import default_state_dir

    path = log_path(node, state_dir or default_state_dir())
    if not program:
        typer.echo("\n".join(names(read_decisions(path))))
        return
    told = story(read_decisions(path), program)
    if not told:
        known = ", ".join(names(read_decisions(path))[-10:]) or "none"
        raise UnknownProgram(f"nothing was decided about {program!r} in {path}; the latest programs: {known}")
    for each in told[-last:]:
        if json:
            record = {"decision": each.decision, "outcomes": each.outcomes}
            typer.echo(msgspec.json.encode(record).decode())
        else:
            typer.echo("\n".join(lines([each])))
