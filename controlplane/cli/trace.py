"""``penstock trace``: agents' sessions, kept by other tools, as a trace."""

import gzip
import sys
from pathlib import Path
from typing import IO, Annotated, cast

import msgspec
import typer

from controlplane.core.model.errors import ConfigError

trace_app = typer.Typer(name="trace", no_args_is_help=True, help="Make a trace of agents' sessions.")


@trace_app.command("import")
def import_(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Session files, or folders of them; gzip is read, too.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The trace to write (`.gz`: compressed). Default: the standard output."),
    ] = None,
) -> None:
    """Write the sessions of agents as a trace: tokens, tools and gaps, and no text.

    Reads what Claude Code, Codex, opencode, OpenHands, mini-swe-agent, SWE-agent and trae-agent keep, and the
    traces of kv-cache-tester and AgentX, Mooncake, aiperf, Dynamo, TraceLab, tau-bench and ShareGPT. A file's
    format is known by its content. What was guessed and refused goes to the standard error; exit 1 if nothing was
    read.
    """
    from controlplane.core.model.text import printable
    from controlplane.lab.workload.imports.formats import Report, read_programs

    report, refused = Report(), 0
    with _opened(out, files) as file:
        for read in read_programs(files, report):
            if isinstance(read, str):
                refused += 1
                typer.echo(f"refused: {printable(read)}", err=True)
            else:
                file.write(msgspec.json.encode(read) + b"\n")
    counts = ", ".join(f"{programs} {name}" for name, programs in report.tally.programs.items())
    typer.echo(f"{report.tally.turns} turns of programs: {counts or 'none'}; {refused} refused", err=True)
    for note in report.notes():
        typer.echo(printable(note), err=True)
    if not report.tally.turns:
        raise typer.Exit(1)


def _opened(out: Path | None, files: list[Path]) -> IO[bytes]:
    """Where the trace goes. Raises ``ConfigError``."""
    if out is None:
        return open(sys.stdout.fileno(), "wb", closefd=False)
    try:
        if any(out.resolve() == file.resolve() for file in files):
            raise ConfigError(f"--out: {out} is one of the files to read")
        return cast(IO[bytes], gzip.open(out, "wb") if out.suffix == ".gz" else out.open("wb"))
    except OSError as error:
        raise ConfigError(f"--out: cannot write {out}: {error.strerror}") from error
