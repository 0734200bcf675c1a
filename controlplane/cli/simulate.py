"""``penstock simulate | report``: try policies on a trace in virtual time, and compare saved runs."""

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import completion
from controlplane.cli.options import (
    DEFAULT_WORKLOAD,
    AsJson,
    MaxContext,
    NoHumans,
    Out,
    Programs,
    ScaleOutputs,
    ScaleTokens,
    ScaleTools,
    SharedPrefix,
    TelemetryOf,
    Tiers,
    Trace,
)
from controlplane.lab.workload.telemetry import Telemetry

ScaleTurns = Annotated[
    int, typer.Option(min=1, help="Multiply each program's turns by this, and shorten them by the same factor.")
]
Arrivals = Annotated[
    list[str],
    typer.Option(
        "--arrival",
        "-a",
        help="`poisson:RATE` in programs/s (open), `burst:RATE:N` (N at one instant) or `closed:N`. Repeatable.",
    ),
]


def simulate(
    trace: Trace = DEFAULT_WORKLOAD,
    preset: Annotated[
        list[str],
        typer.Option("--preset", "-p", help="Preset to run. Repeatable.", autocompletion=completion.presets),
    ] = ["fcfs", "penstock"],
    arrival: Arrivals = ["poisson:0.05"],
    seed: Annotated[list[int], typer.Option("--seed", "-s", help="Seed of the arrivals. Repeatable.")] = [1],
    profile: Annotated[
        str, typer.Option(help="Hardware: h200-llama31-8b (measured), h100, b200, rtx3090 (analytic), or a file.")
    ] = "h200-llama31-8b",
    pool_tokens: Annotated[int, typer.Option(min=0, help="KV pool in tokens; 0: the profile's.")] = 0,
    chunk_tokens: Annotated[int, typer.Option(min=1, help="Most tokens in one step of chunked prefill.")] = 8192,
    max_running: Annotated[int, typer.Option(min=1, help="Most turns that an engine runs at once.")] = 256,
    tier: Tiers = [],
    replicas: Annotated[int, typer.Option(min=1, help="Engines side by side, each with the whole pool.")] = 1,
    routing: Annotated[
        str,
        typer.Option(
            help="Which engine a turn goes to: session (where the KV is, unless leaving costs less), round_robin, "
            "least_loaded, single. Default: the preset's, session."
        ),
    ] = "",
    link_gb_per_s: Annotated[
        float, typer.Option(min=0.0, help="Bandwidth for KV between engines in 10^9 bytes/s; 0: engines send none.")
    ] = 50.0,
    programs: Programs = 0,
    max_context: MaxContext = 0,
    no_humans: NoHumans = False,
    scale_tokens: ScaleTokens = 1.0,
    scale_outputs: ScaleOutputs = 1.0,
    scale_tools: ScaleTools = 1.0,
    scale_turns: ScaleTurns = 1,
    shared_prefix: SharedPrefix = 2000,
    cpus: Annotated[
        float, typer.Option(help="CPUs of the tool host, which admission counts on and --contention shares out.")
    ] = 8.0,
    tool_slots: Annotated[int, typer.Option(min=0, help="How many tools may run at once; 0: no limit.")] = 0,
    tools: Annotated[
        str,
        typer.Option(
            help="`replay`: tools take their time in the trace; or a file of `penstock tools fit` to draw from."
        ),
    ] = "replay",
    contention: Annotated[
        bool, typer.Option("--contention", help="Tools share the --cpus: too many at once slow each other down.")
    ] = False,
    cpu_share: Annotated[
        list[str],
        typer.Option(
            help="With --contention: CPUs that a tool uses while it runs; 0: it only waits. `SHARE` for all, "
            "`TOOL=SHARE` for some (`*` and `?` match); the first match counts. Default 1. Repeatable."
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
    telemetry: TelemetryOf = Telemetry.FULL,
    record: Annotated[Path | None, typer.Option(help="Write the event log of a single run here.")] = None,
    out: Out = None,
    json: AsJson = False,
) -> None:
    """Try policies on a trace in virtual time, with the daemon's own decision code.

    It runs every preset at every arrival with every seed, and prints them side by side.
    """
    from controlplane.config import load
    from controlplane.lab.output import progress_bar, show_runs
    from controlplane.lab.runs import (
        SimulateOptions,
        load_tools,
        load_workload,
        simulate_all,
        unknown_tools,
    )
    from controlplane.lab.sim.contention import parse_contention
    from controlplane.lab.workload.arrivals import parse_arrival
    from controlplane.lab.workload.scale import Scale

    shared = parse_contention(contention, cpu_share)
    fits = load_tools(tools)
    workload = load_workload(trace, programs=programs, max_context_tokens=max_context, humans=not no_humans)
    if note := unknown_tools(tools, fits, workload):
        typer.echo(note, err=True)
    options = SimulateOptions(
        trace=workload,
        presets=preset,
        arrivals=[parse_arrival(text) for text in arrival],
        seeds=seed,
        scale=Scale(tokens=scale_tokens, outputs=scale_outputs, tools=scale_tools, turns=scale_turns),
        profile=profile,
        pool_tokens=pool_tokens,
        chunk_tokens=chunk_tokens,
        max_running=max_running,
        tiers=tier,
        replicas=replicas,
        routing=routing,
        link_gb_per_s=link_gb_per_s,
        programs=programs,
        shared_prefix_tokens=shared_prefix,
        cpus=cpus,
        tool_slots=tool_slots,
        tools=fits,
        contention=shared,
        config=load(config) if config else None,
        record=record,
        telemetry=telemetry,
    )
    with progress_bar() as advance:
        runs = simulate_all(options, advance)
    show_runs(runs, trace=workload, out=out, json=json)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Saved runs (JSON), as `--out` writes them.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Compare saved runs: print a table, and write plots to a self-contained HTML file."""
    import sys

    from controlplane.lab.report.page import ReportOptions, write_report
    from controlplane.lab.report.tables import print_comparison
    from controlplane.lab.workload.run import load_run

    if any(path.suffix == ".csv" for path in runs):
        raise typer.BadParameter("a sweep's results are drawn by penstock sweep-report", param_hint="RUNS")
    loaded = [load_run(path) for path in runs]
    print_comparison(loaded)
    write_report(loaded, out, ReportOptions(command=tuple(sys.argv)))
    typer.echo(f"report: {out}")
