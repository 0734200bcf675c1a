"""Commands that look at a running daemon: top, status, programs, queue, decisions, explain."""

from typing import Annotated

import typer

from controlplane.cli import completion
from controlplane.cli.ask import daemon, until_interrupted, when_up
from controlplane.cli.options import Api, Json, Node, StateDir


def top(node: Node = "local", state_dir: StateDir = None, api: Api = None) -> None:
    """Watch a node live: window, pressures, queue, and what every program does. Ctrl-C ends it.

    A row is green while the engine works for the program, cyan while its tool runs, and yellow while it is held.
    The newest bar is on the right; the three plots share one scale.
    """
    from controlplane.operate.top import watch

    with daemon(api, node, state_dir) as client, until_interrupted():
        watch(client)


def status(
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    wait: Annotated[
        float, typer.Option("--wait", help="Seconds to wait for a daemon that is still starting.", min=0)
    ] = 0.0,
    json: Json = False,
) -> None:
    """Print a node's state: window, pressures, queue, configuration, orders."""
    from controlplane.operate.tables import show_status

    show_status(when_up(lambda client: client.call("GetStatus"), api, node, state_dir, wait_s=wait), json=json)


def programs(
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    ended: Annotated[bool, typer.Option("--ended", help="Include programs that ended in the last minute.")] = False,
    limit: Annotated[int, typer.Option(help="Most programs to list, some of each group; 0: all.", min=0)] = 0,
    json: Json = False,
) -> None:
    """List the programs: those that wait, in queue order, then those that have a slot, then the others."""
    from controlplane.operate.tables import show_programs

    with daemon(api, node, state_dir) as client:
        show_programs(client.call("ListPrograms", ended=ended, limit=limit), json=json)


def queue(
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    limit: Annotated[int, typer.Option(help="Most programs to list, from the front; 0: all.", min=0)] = 0,
    json: Json = False,
) -> None:
    """List the programs that wait for a slot, in queue order."""
    from controlplane.operate.tables import show_programs

    with daemon(api, node, state_dir) as client:
        show_programs(client.call("ListPrograms", queued=True, limit=limit), json=json)


def decisions(
    program: Annotated[
        str,
        typer.Argument(
            help="Only decisions about this program.", metavar="[PROGRAM]", autocompletion=completion.programs
        ),
    ] = "",
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per decision.")] = False,
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
            help="Default: list the programs that you can ask about.",
            metavar="[PROGRAM]",
            autocompletion=completion.decided,
        ),
    ] = "",
    node: Node = "local",
    state_dir: StateDir = None,
    last: Annotated[int, typer.Option(help="How many of the latest decisions to print; 0: all.", min=0)] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per decision.")] = False,
) -> None:
    """Explain why a program was let in, held, pinned or let go.

    It prints each decision with its rule, its numbers, who else could have been chosen, and what came of it. It
    reads the log in the state directory, even if the daemon does not run now. Without a program it lists their
    names, the latest last.
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
