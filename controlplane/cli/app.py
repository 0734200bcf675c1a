"""The ``penstock`` command: its commands, grouped by what people do with them.

Heavy imports wait inside the commands, so that ``penstock --help`` answers at once.
"""

from typing import Annotated

import typer

from controlplane import __version__
from controlplane.cli.bus import bus_app
from controlplane.cli.calibrate import calibrate
from controlplane.cli.capacity import capacity
from controlplane.cli.change import drain, hold, promote, release, reload, set_preset
from controlplane.cli.config import config_app
from controlplane.cli.deploy import deploy_app
from controlplane.cli.examples import epilog
from controlplane.cli.fleet import fleet_app
from controlplane.cli.gate import gate
from controlplane.cli.live import demo, engine_double, replay
from controlplane.cli.log import log_app
from controlplane.cli.misses import misses
from controlplane.cli.presets import presets
from controlplane.cli.regret import regret
from controlplane.cli.run import doctor, up
from controlplane.cli.simulate import report, simulate
from controlplane.cli.sweep import sweep, sweep_report
from controlplane.cli.tools import tools_app
from controlplane.cli.trace import trace_app
from controlplane.cli.watch import decisions, engines, explain, gain, programs, queue, status, tenants, top
from controlplane.cli.what_if import what_if

# The groups are in the order in which people come to them.
_PANELS = {
    "Run a node": (up, gate, doctor, bus_app),
    "Run a fleet": (fleet_app,),
    "Watch it": (top, status, gain, engines, tenants, programs, queue, decisions, explain, regret, misses),
    "Change it while it runs": (set_preset, promote, reload, hold, release, drain),
    "Try policies": (demo, simulate, what_if, capacity, sweep, sweep_report, replay, engine_double, report),
    "Prepare": (presets, config_app, deploy_app, calibrate, trace_app, tools_app, log_app),
}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},  # each command below has them from here
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback(help="Penstock: the control plane for multi-turn LLM agents.")
def _of_all(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """What is said before a command."""


def _teach(group: typer.Typer, above: str = "") -> None:
    """Give each command the end of its help."""
    for command in group.registered_commands:
        named = command.name or getattr(command.callback, "__name__", "").replace("_", "-")
        command.epilog = epilog(f"{above}{named}") or None
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            name = inner.typer_instance.info.name
            _teach(inner.typer_instance, f"{above}{name} " if isinstance(name, str) else above)


for _panel, _commands in _PANELS.items():
    for _command in _commands:
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, rich_help_panel=_panel)
        else:
            app.command(_command.__name__.replace("_", "-"), rich_help_panel=_panel)(_command)
_teach(app)
