"""Commands that ask a running daemon: see, hold, release, drain, switch, reload."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli import completion
from controlplane.cli.config import Json

if TYPE_CHECKING:
    from controlplane.operate.client import ControlClient

_AGAIN_S = 1.0
Node = Annotated[str, typer.Option("--node", envvar="PENSTOCK_NODE", help="The serving node.")]
StateDir = Annotated[
    Path | None, typer.Option("--state-dir", envvar="PENSTOCK_STATE_DIR", help="That of the daemon.")
]
Api = Annotated[
    str | None,
    typer.Option("--api", envvar="PENSTOCK_API", help="HOST:PORT or unix:PATH. Default: the node's socket."),
]
ProgramId = Annotated[
    str,
    typer.Argument(help="As `penstock programs` lists it.", metavar="PROGRAM", autocompletion=completion.programs),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (top, status, programs, queue, decisions, explain, hold, release, drain, set_preset, reload):
        app.command()(command)


@contextmanager
def _until_interrupted() -> Iterator[None]:
    """Ctrl-C ends what is done in here.

    Python drops a ``KeyboardInterrupt`` that arises where nobody can take it, as in a finalizer or in one of gRPC's
    callbacks: so it arises again, each second, until it was taken.
    """

    def interrupt(number: int, frame: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGALRM)}
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _daemon(api: str | None, node: str, state_dir: Path | None) -> "Iterator[ControlClient]":
    from controlplane.operate.client import connect

    with connect(api, node, state_dir) as client:
        yield client


def top(node: Node = "local", state_dir: StateDir = None, api: Api = None) -> None:
    """Watch a node live: window, pressures, queue, and what every program does. Ctrl-C ends it.

    A row is green while the engine works for the program, cyan while its tool runs, yellow while it is held. Bars
    begin on the right; the three plots share one scale.
    """
    from controlplane.operate.top import watch

    with _daemon(api, node, state_dir) as client, _until_interrupted():
        watch(client)


def status(node: Node = "local", state_dir: StateDir = None, api: Api = None, json: Json = False) -> None:
    """Print how a node stands: window, pressures, queue, configuration, orders."""
    from controlplane.operate.tables import show_status

    with _daemon(api, node, state_dir) as client:
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

    with _daemon(api, node, state_dir) as client:
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

    with _daemon(api, node, state_dir) as client:
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

    with _daemon(api, node, state_dir) as client, _until_interrupted():
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


def hold(
    program: ProgramId, node: Node = "local", state_dir: StateDir = None, api: Api = None, json: Json = False
) -> None:
    """Hold a program: it gives its slot back at the end of its turn, and its next turn waits until it is released.

    A turn waits at the gate for five minutes at most; then its client is told to come again.
    """
    from controlplane.operate.tables import show_orders

    with _daemon(api, node, state_dir) as client:
        show_orders(client.call("Hold", program_id=program), json=json)


def release(
    program: ProgramId, node: Node = "local", state_dir: StateDir = None, api: Api = None, json: Json = False
) -> None:
    """End a hold: the program gets a slot when its turn comes."""
    from controlplane.operate.tables import show_orders

    with _daemon(api, node, state_dir) as client:
        show_orders(client.call("Release", program_id=program), json=json)


def drain(
    undo: Annotated[bool, typer.Option("--undo", help="Let programs in again.")] = False,
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    json: Json = False,
) -> None:
    """Let no program in that has no slot; those that have one go on to their end. Holds over a restart.

    Clients of new programs are told at once to go elsewhere or come again (503). The node is empty once
    `penstock status` tells of no active programs.
    """
    from controlplane.operate.tables import show_orders

    with _daemon(api, node, state_dir) as client:
        show_orders(client.call("Drain", undo=undo), json=json)


def set_preset(
    preset: Annotated[str, typer.Argument(help="One of `penstock presets`.", autocompletion=completion.presets)],
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    json: Json = False,
) -> None:
    """Switch a running daemon to another preset, until it ends; no program is lost.

    To keep it, write `preset = "NAME"` into the daemon's file.
    """
    from controlplane.operate.tables import show_config

    with _daemon(api, node, state_dir) as client:
        show_config(client.call("SetPreset", preset=preset), json=json)


def reload(node: Node = "local", state_dir: StateDir = None, api: Api = None, json: Json = False) -> None:
    """Have a running daemon read its configuration again; a wrong one is refused and changes nothing."""
    from controlplane.operate.tables import show_config

    with _daemon(api, node, state_dir) as client:
        show_config(client.call("Reload"), json=json)
