"""``penstock tools``: fit tool times to a trace, for ``penstock simulate --tools``."""

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli.options import Json

tools_app = typer.Typer(name="tools", no_args_is_help=True, help="Fit tool times to a trace, to simulate with.")


@tools_app.command("fit")
def fit(
    trace: Annotated[str, typer.Argument(help="A trace file, or `synthetic:NAME`, as for `penstock simulate`.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write, for `penstock simulate --tools`.")
    ] = None,
    programs: Annotated[
        int, typer.Option("--programs", "-n", min=0, help="How many programs to read; 0: all.")
    ] = 0,
    json: Json = False,
) -> None:
    """Fit each tool's times in a trace, and show them.

    A tool with 20 calls or more gets their smoothed empirical distribution, a tool with 5 to 19 calls a log-normal
    one. A rarer tool is drawn from the pool of all calls.
    """
    from controlplane.lab.workload.named import Wanted, named_workload
    from controlplane.lab.workload.tool_fits import fit_tools
    from controlplane.lab.workload.tools_table import show_fits

    workload = named_workload(trace, Wanted(programs=programs))
    fits = fit_tools(workload.programs, workload.name)
    if out is not None:
        fits.save(out)
    show_fits(fits, json=json)


@tools_app.command("show")
def show(
    file: Annotated[Path, typer.Argument(help="A file that `penstock tools fit` wrote.")], json: Json = False
) -> None:
    """Show what a file of fits would draw: each tool's calls, quantiles and mean, in ms."""
    from controlplane.lab.workload.tool_fits import load_fits
    from controlplane.lab.workload.tools_table import show_fits

    show_fits(load_fits(file), json=json)
