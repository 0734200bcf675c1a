"""``penstock log``: read and replay recorded runs."""

from pathlib import Path
from typing import Annotated

import typer

log_app = typer.Typer(name="log", no_args_is_help=True, help="Read and replay recorded runs.")


@log_app.command("replay")
def replay(file: Annotated[Path, typer.Argument(help="A log that `penstock up --record` wrote.")]) -> None:
    """Replay a recorded run: the same events must give the same commands. Exit 1 if they do not."""
    from controlplane.daemon.observe.log_replay import replay_log
    from controlplane.operate.printing import echo

    result = replay_log(file)
    if result.note:
        echo(result.note)
    echo(f"{result.events} events, {result.ticks} ticks, {result.commands} commands")
    for difference in result.differences:
        echo(difference)
    if result.differing:
        typer.secho(f"{result.differing} commands differ", fg="red")
        raise typer.Exit(1)
    echo("the replay gave the same commands")


@log_app.command("show")
def show(file: Annotated[Path, typer.Argument(help="A log that `penstock up --record` wrote.")]) -> None:
    """Print a recorded run, one record per line, with times in seconds since the first record."""
    from controlplane.operate.printing import echo
    from controlplane.wire.log import read_log

    first_ns: int | None = None
    for record in read_log(file):
        now_ns = getattr(record, "now_ns", None)
        first_ns = now_ns if first_ns is None else first_ns
        at = "" if now_ns is None or first_ns is None else f"{(now_ns - first_ns) / 1e9:12.6f}  "
        body = getattr(record, "event", None) or getattr(record, "command", None) or record
        echo(f"{at}{str(body)[:400]}")
