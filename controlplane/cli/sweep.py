"""``penstock sweep | sweep-report``: many simulated runs on all cores or a cluster, and their report."""

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli.options import Baseline

EXAMPLE = """\
# Runs every preset at every arrival with every seed, for each workload on each hardware.
presets = ["fcfs", "continuum", "mars", "penstock"]    # default: all; "clairvoyant" too; [] with variants only
arrivals = ["poisson:0.1", "poisson:0.2"]    # or "burst:0.1:10", "closed:8", "batch:64", "load:0.8", "load:0.8:10"
seeds = [1, 2, 3]

[[workload]]
trace = "synthetic:swe-bench"    # or a file, "mix:A+B*2", "change:A>B", or a list: a mix
programs = 100
# max_context, scale_tokens, scale_outputs, scale_tools, scale_turns, shared_prefix, cpus, tool_slots,
# tools = "tools.json" (from `penstock tools fit`; default "replay"),
# contention = true with cpu_shares = ["0.5", "Bash:*=1"] (as --contention and --cpu-share),
# arrivals (instead of the above), telemetry ("none", "turns", "half", "full"; or `telemetries` above for all),
# humans = false (no programs in which a person thinks), name

[[hardware]]
profile = "h200-llama31-8b"    # or h100, b200, rtx3090, or a file
# tiers = ["dram:2000000:50"] (KV memory below the device: name, tokens, GB/s),
# pool_tokens or pool_programs (how many of the workload's programs fit), chunk_tokens, max_running,
# rate_factor (on open rates), name, replicas, link_gb_per_s,
# routing ("session", "round_robin", "least_loaded", "hash", "prefix", "single"),
# changes = ["die:2:600", "join:2:900"] (engines that come and go or get new weights, as --change)

# A daemon's configuration, run beside the presets under its own name.
[variants."penstock, waste 0"]
preset = "penstock"
admission.waste = 0.0
"""


def sweep(
    spec: Annotated[Path | None, typer.Argument(help="The sweep's TOML file; --example shows one.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The results: a CSV file, one row per run. Default: SPEC with .csv.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=0, help="How many runs at once; 0: one per CPU.")] = 0,
    on: Annotated[
        str, typer.Option(help="`local` processes, `ray` (this machine's cluster) or `ray://HOST:PORT`.")
    ] = "local",
    figure: Annotated[str, typer.Option(help="The column of the results that the tables show.")] = "jct_mean_s",
    baseline: Baseline = "fcfs",
    redo: Annotated[
        bool, typer.Option("--redo-changed", help="Repeat runs of an older version of the code.")
    ] = False,
    example: Annotated[bool, typer.Option("--example", help="Print a file to start from.")] = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="Say what there is to do, without doing it.")] = False,
) -> None:
    """Simulate a grid: presets and variants x arrivals x seeds, for each workload on each hardware.

    It uses all cores and writes each result as it comes. It does not repeat runs whose results exist, so the same
    command continues an interrupted sweep. At the end it prints tables with 95% intervals over seeds;
    `penstock sweep-report` draws them.
    """
    if example:
        print(EXAMPLE, end="")  # noqa: T201
        return
    if spec is None:
        raise typer.BadParameter("name the sweep's TOML file; --example prints one", param_hint="SPEC")
    from controlplane.core.model.errors import near
    from controlplane.lab.compare.rows import LABELS
    from controlplane.lab.sweep.command import run_sweep

    if figure not in LABELS:
        raise typer.BadParameter(
            f"expected one of {', '.join(LABELS)}{near(figure, LABELS)}", param_hint="--figure"
        )
    if run_sweep(
        spec,
        out=out,
        jobs=jobs,
        on=on,
        figure=figure,
        baseline=baseline,
        redo=redo,
        dry=dry,
    ):
        raise typer.Exit(1)


def sweep_report(
    results: Annotated[Path, typer.Argument(help="The CSV file that `penstock sweep` wrote.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The HTML file to write. Default: RESULTS with .html.")
    ] = None,
    baseline: Baseline = "fcfs",
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print tables as Markdown instead, for a page beside the results.")
    ] = False,
    regret: Annotated[
        bool,
        typer.Option(
            "--regret", help="Show only how far each preset is from the best, the clairvoyant and the bound."
        ),
    ] = False,
) -> None:
    """Draw a sweep as one HTML file: which preset wins where and by how much, in words, plots and tables.

    For each workload on each hardware it shows completion times, time to first token, hit rate and throughput
    against the load, what the KV pool was used for, and every figure with its 95% interval over seeds. The file
    needs no network.
    """
    import sys

    from controlplane.lab.compare.rows import Grid
    from controlplane.lab.sweep.results import read_all

    rows, path = read_all(results), out or results.with_suffix(".html")
    if markdown:
        from controlplane.lab.compare.markdown import markdown as tables
        from controlplane.lab.compare.markdown import regret_markdown

        typer.echo(regret_markdown(Grid(rows), baseline) if regret else tables(Grid(rows)), nl=False)
        return
    from controlplane.lab.compare.html import sweep_html, write, write_regret

    if regret:
        write_regret(Grid(rows), path, baseline=baseline)
    else:
        write(sweep_html(rows, baseline=baseline, command=sys.argv), path)
    typer.echo(f"report: {path}")
