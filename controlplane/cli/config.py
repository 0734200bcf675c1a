"""``penstock config``: check, show and compare configurations."""

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli.options import Api, ConfigFile, Json, Node, PresetName, StateDir

config_app = typer.Typer(name="config", no_args_is_help=True, help="Check, show and compare configuration.")


@config_app.command("check")
def check(file: Annotated[Path, typer.Argument(help="The TOML file.")]) -> None:
    """Check whether a daemon would accept a configuration; if not, say all that is wrong, and exit with 1."""
    from controlplane.config import Source
    from controlplane.core.model.errors import ConfigError

    source = Source(path=file)
    if found := source.mistakes():
        head = [f"{file}: {len(found)} mistakes"] if len(found) > 1 else []
        raise ConfigError("\n".join([*head, *map(str, found)]))
    for setting in source.read().without_effect:
        typer.echo(f"without effect: {setting}", err=True)
    typer.echo(f"{file}: ok")


@config_app.command("show")
def show_config(
    config: ConfigFile = None,
    preset: PresetName = None,
    comments: Annotated[
        bool, typer.Option("--comments", help="Explain each key above it, with its unit and range.")
    ] = False,
    running: Annotated[
        bool,
        typer.Option(
            "--running", help="Ask the daemon (of --node, --state-dir or --api) for the configuration in force."
        ),
    ] = False,
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    json: Json = False,
) -> None:
    """Print the configuration as TOML, with every default written out.

    A value that is not the default is followed by its origin: file and line, environment variable or option.
    """
    if running:
        from controlplane.operate.client import connect
        from controlplane.operate.printing import echo_text

        with connect(api, node, state_dir) as client:
            echo_text(client.call("GetConfig").text)
        return
    from controlplane.config import Source, show
    from controlplane.config.changes import values
    from controlplane.operate.printing import print_json

    seen = Source(path=config, options={"preset": preset}).read()
    if json:
        origins = {key: origin for key, origin in seen.origins.items() if key in values(seen.config)}
        print_json({"values": values(seen.config), "origins": origins})
    else:
        typer.echo(show(seen.config, origins=seen.origins, explained=comments), nl=False)


@config_app.command("template")
def print_template(preset: PresetName = None) -> None:
    """Print a file to start from: every key with its meaning and its default, commented out.

    Run `penstock config template > penstock.toml`, then remove the # from the keys that you change.
    """
    from controlplane.config import load, template

    typer.echo(template(load(None, {"preset": preset})), nl=False)


@config_app.command("diff")
def diff(
    file: Annotated[Path, typer.Argument(help="The TOML file.")],
    other: Annotated[
        Path | None, typer.Argument(help="A file to compare with. Default: the built-in defaults.")
    ] = None,
    json: Json = False,
) -> None:
    """Print what differs between a file and the defaults, or between two files, key by key.

    For each key it says whether the change takes effect in a running daemon or only after a restart.
    """
    from controlplane.config import changes, load
    from controlplane.config.changes import quoted
    from controlplane.operate.printing import print_json, print_table

    before, after = (load(None), load(file)) if other is None else (load(file), load(other))
    found = changes(before, after)
    if json:
        print_json([{"key": c.key, "before": c.before, "after": c.after, "is_live": c.is_live} for c in found])
    elif not found:
        typer.echo("no difference")
    else:
        head = ("key", "default" if other is None else str(file), str(other or file), "takes effect")
        rows = [
            (c.key, quoted(c.before), quoted(c.after), "at once" if c.is_live else "after a restart") for c in found
        ]
        print_table(head, rows)
