"""``penstock simulate | report``: try policies on a trace in virtual time, and compare saved runs."""

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import completion
from controlplane.cli.options import (
    HARDWARE,
    WORKLOAD,
    AsJson,
    MaxContext,
    Out,
    Programs,
    ScaleTokens,
    ScaleTools,
    TelemetryOf,
    Tiers,
    Trace,
    described,
    ranged,
)
from controlplane.lab.experiment import DEFAULT_ARRIVAL, DEFAULT_TRACE, Hardware, Workload

Arrivals = Annotated[
    list[str],
    typer.Option(
        "--arrival",
        "-a",
        help="`poisson:RATE` in programs/s (open), `burst:RATE:N` (N at one instant), `load:X` (X times the rate "
        "that no order of programs could exceed), `closed:N`, or `batch:N` (the next N once all have ended). "
        "Repeatable.",
    ),
]


@ranged
def simulate(
    trace: Trace = DEFAULT_TRACE,
    preset: Annotated[
        list[str],
        typer.Option("--preset", "-p", help="Preset to run. Repeatable.", autocompletion=completion.presets),
    ] = ["fcfs", "penstock"],
    arrival: Arrivals = [DEFAULT_ARRIVAL],
    seed: Annotated[list[int], typer.Option("--seed", "-s", min=0, help="Seed of the arrivals. Repeatable.")] = [1],
    profile: Annotated[
        str, typer.Option(help="Hardware: h200-llama31-8b (measured), h100, b200, rtx3090 (analytic), or a file.")
    ] = HARDWARE.profile,
    pool_tokens: Annotated[int, typer.Option(help="KV pool in tokens; 0: the profile's.")] = HARDWARE.pool_tokens,
    tiers: Tiers = [],
    replicas: Annotated[
        int, typer.Option(help="Engines side by side, each with the whole pool.")
    ] = HARDWARE.replicas,
    routing: Annotated[
        str,
        typer.Option(
            help="Which engine a turn goes to: session (where the KV is, unless leaving costs less), round_robin, "
            "least_loaded, hash (of the program's name), prefix (where its prompt was seen), single. Default: the "
            "preset's, session."
        ),
    ] = HARDWARE.routing,
    changes: Annotated[
        list[str],
        typer.Option(
            "--change",
            help="An engine that comes or goes, KIND:ENGINE:AT_S: die:2:600 (with its turns and its memory), "
            "drain:2:600 (it takes no program any more), join:2:900 (with an empty memory), flush:1:300 (its "
            "contexts end, as with new weights). Repeatable.",
        ),
    ] = [],
    programs: Programs = WORKLOAD.programs,
    max_context: MaxContext = WORKLOAD.max_context,
    scale_tokens: ScaleTokens = WORKLOAD.scale_tokens,
    scale_tools: ScaleTools = WORKLOAD.scale_tools,
    cpus: Annotated[
        float, typer.Option(help="CPUs of the tool host, which admission counts on and --contention shares out.")
    ] = WORKLOAD.cpus,
    tool_slots: Annotated[
        int, typer.Option(help="How many tools may run at once; 0: no limit.")
    ] = WORKLOAD.tool_slots,
    tools: Annotated[
        str,
        typer.Option(
            help="`replay`: tools take their time in the trace; or a file of `penstock tools fit` to draw from."
        ),
    ] = WORKLOAD.tools,
    contention: Annotated[
        bool, typer.Option("--contention", help="Tools share the --cpus: too many at once slow each other down.")
    ] = False,
    cpu_shares: Annotated[
        list[str],
        typer.Option(
            "--cpu-share",
            help="With --contention: CPUs that a tool uses while it runs; 0: it only waits. `SHARE` for all, "
            "`TOOL=SHARE` for some (`*` and `?` match); the first match counts. Default 1. Repeatable.",
        ),
    ] = [],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="TOML file: its control rules apply to all runs, its policies to its own preset.",
        ),
    ] = None,
    telemetry: TelemetryOf = WORKLOAD.telemetry,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            help="Seconds that a program waits for its first slot. Who would wait for longer is refused "
            "as it comes, tries again, and gives up after a quarter of an hour. 0: all wait for ever.",
        ),
    ] = WORKLOAD.timeout_s,
    tenants: Annotated[
        str,
        typer.Option(
            help="Tenants that share the engine, WEIGHT[@PART][%FLOOR] for each: `3:1` is two at weights 3 and 1 "
            "with half of the programs each, `3@9:1@1%25` gives the first nine of ten and the second a floor of "
            "25% of the pool. They are named t1, t2 and so on; `--config` may have their tables."
        ),
    ] = WORKLOAD.tenants,
    record: Annotated[Path | None, typer.Option(help="Write the event log of a single run here.")] = None,
    out: Out = None,
    json: AsJson = False,
) -> None:
    """Try policies on a trace in virtual time, with the daemon's own decision code.

    It runs every preset at every arrival with every seed, and prints them side by side.
    """
    arguments = locals()
    from controlplane.config import load
    from controlplane.lab.compare.terminal import progress_bar, show_runs
    from controlplane.lab.simulate import trace_of, unknown_tools
    from controlplane.lab.sweep.local import run_in_process
    from controlplane.lab.sweep.spec import SweepSpec

    workload, hardware = described(Workload, arguments), described(Hardware, arguments)
    spec = SweepSpec(
        workload=(workload,),
        hardware=(hardware,),
        presets=tuple(preset),
        arrivals=tuple(arrival),
        seeds=tuple(seed),
    )
    if note := unknown_tools(workload):
        typer.echo(note, err=True)
    with progress_bar() as advance:
        runs = run_in_process(spec, advance, config=load(config) if config else None, record=record)
    show_runs(runs, trace=trace_of(workload), out=out, json=json)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Saved runs (JSON), as `--out` writes them.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Compare saved runs: print a table, and write plots to a self-contained HTML file."""
    import sys

    from controlplane.lab.compare.html import ReportOptions, write_report
    from controlplane.lab.compare.terminal import print_comparison
    from controlplane.lab.workload.run import load_run

    if any(path.suffix == ".csv" for path in runs):
        raise typer.BadParameter("a sweep's results are drawn by penstock sweep-report", param_hint="RUNS")
    loaded = [load_run(path) for path in runs]
    print_comparison(loaded)
    write_report(loaded, out, ReportOptions(command=tuple(sys.argv)))
    typer.echo(f"report: {out}")
