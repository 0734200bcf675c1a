"""Commands that give a running daemon orders: hold, release, drain, set-preset, promote, reload."""

import sys
from typing import Annotated

import typer

from controlplane.cli import completion
from controlplane.cli.ask import daemon
from controlplane.cli.options import Api, Json, Node, ProgramId, StateDir
from controlplane.core.model.errors import ConfigError


def hold(
    program: ProgramId, node: Node = "local", state_dir: StateDir = None, api: Api = None, json: Json = False
) -> None:
    """Hold a program: it gives its slot back at the end of its turn, and its next turn waits until you release it.

    A turn waits at the gate for ten minutes at most; then its client is told to come again.
    """
    from controlplane.operate.tables import show_orders

    with daemon(api, node, state_dir) as client:
        show_orders(client.call("Hold", program_id=program), json=json)


def release(
    program: ProgramId, node: Node = "local", state_dir: StateDir = None, api: Api = None, json: Json = False
) -> None:
    """End a hold: the program gets a slot again when its turn comes."""
    from controlplane.operate.tables import show_orders

    with daemon(api, node, state_dir) as client:
        show_orders(client.call("Release", program_id=program), json=json)


def drain(
    undo: Annotated[bool, typer.Option("--undo", help="Let programs in again.")] = False,
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    json: Json = False,
) -> None:
    """Let no new program in; programs that already have a slot go on to their end. A drain survives a restart.

    Clients of new programs are told at once to go elsewhere or come again (503). The node is empty once
    `penstock status` shows no active programs.
    """
    from controlplane.operate.tables import show_orders

    with daemon(api, node, state_dir) as client:
        show_orders(client.call("Drain", undo=undo), json=json)


def set_preset(
    preset: Annotated[str, typer.Argument(help="One of `penstock presets`.", autocompletion=completion.presets)],
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    json: Json = False,
) -> None:
    """Switch a running daemon to another preset until the daemon ends; no program is lost.

    It says what is in force now and how to go back. To keep it, write `preset = "NAME"` into the daemon's file.
    """
    from controlplane.operate.tables import show_config

    with daemon(api, node, state_dir) as client:
        before = client.call("GetStatus").preset
        show_config(client.call("SetPreset", preset=preset), json=json, preset=preset, before=before)


def promote(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    json: Json = False,
) -> None:
    """Make the shadow live: its preset and settings are in force at once, and what was in force is the shadow.

    It first prints how the shadow's decisions differ and what they are estimated to change, and asks. The same
    command once more takes it back. It holds until the daemon ends, also over a reload; to keep it, write the lines
    that it prints into the daemon's file.
    """
    from controlplane.operate.printing import echo
    from controlplane.operate.shadow_report import before_promoting, show_promoted

    with daemon(api, node, state_dir) as client:
        status = client.call("GetStatus")
        if not status.shadow.preset:
            raise ConfigError(
                'there is no shadow: write its preset into the daemon\'s file, below [shadow], as preset = "mars"'
            )
        for line in before_promoting(status):
            echo(line, err=json)
        if not yes:
            if not sys.stdin.isatty():
                raise ConfigError("nobody is there to be asked: give --yes")
            typer.confirm(f"Make {status.shadow.preset} live?", abort=True, err=True)
        show_promoted(client.call("Promote"), json=json)


def reload(node: Node = "local", state_dir: StateDir = None, api: Api = None, json: Json = False) -> None:
    """Make a running daemon read its configuration again; a wrong one is refused and changes nothing."""
    from controlplane.operate.tables import show_config

    with daemon(api, node, state_dir) as client:
        show_config(client.call("Reload"), json=json)
