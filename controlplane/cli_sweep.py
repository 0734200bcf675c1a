"""``penstock sweep``: many simulated runs on all cores."""

import sys
from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = """\
# Every preset at every arrival with every seed, for each workload on each hardware.
presets = ["fcfs", "continuum", "thunderagent", "mars"]    # default: all
arrivals = ["poisson:0.1", "poisson:0.2"]
seeds = [1, 2, 3]

[[workload]]
trace = "synthetic:swe-bench"    # or a file
programs = 100
# max_context, scale_tokens, scale_outputs, scale_tools, shared_prefix, cpus, tool_slots,
# tools = "tools.json" (of `penstock tools fit`; default "replay"),
# contention = true with cpu_shares = ["0.5", "Bash:*=1"] (as --contention and --cpu-share),
# arrivals (in place of the above), name

[[hardware]]
profile = "h200-llama31-8b"    # or h100, b200, rtx3090, or a file
# tiers = ["dram:2000000:50"] (KV memory below the device: name, tokens, GB/s),
# pool_tokens, chunk_tokens, rate_factor (on every open rate), name,
# replicas, routing ("session", "round_robin", "least_loaded", "single"), link_gb_per_s
"""


def sweep(
    spec: Annotated[Path | None, typer.Argument(help="The sweep's TOML file; --example shows one.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The results, a run a row. Default: SPEC with .csv.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=0, help="Processes; 0: one for each CPU.")] = 0,
    figure: Annotated[
        str, typer.Option(help="What the tables show: jct_mean_s, jct_p95_s, ttft_p99_s, cache_hit_ratio, ...")
    ] = "jct_mean_s",
    example: Annotated[bool, typer.Option("--example", help="Print a file to begin with.")] = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="Say what there is to do, and do nothing.")] = False,
) -> None:
    """Simulate a grid: presets x arrivals x seeds, for each workload on each hardware.

    Runs on all cores and writes each result as it comes. What is in the results already is not run again: a sweep
    that was interrupted goes on with the same command.
    """
    if example:
        print(EXAMPLE, end="")  # noqa: T201
        return
    if spec is None:
        raise typer.BadParameter("name the sweep's TOML file; --example prints one", param_hint="SPEC")
    from rich.console import Console

    from controlplane.sweep import results, table
    from controlplane.sweep.progress import run_with_progress
    from controlplane.sweep.spec import cells, load_sweep

    if figure not in table.SHOWN:
        raise typer.BadParameter(f"expected one of {', '.join(table.SHOWN)}", param_hint="--figure")
    chosen = load_sweep(spec)
    path = out or spec.with_suffix(".csv")
    wanted = list(cells(chosen))
    there = results.done(results.read(path), wanted)
    missing = [cell for cell in wanted if cell not in there]
    told = Console(stderr=True)
    told.print(f"{len(wanted)} runs, {len(there)} of them in {path}", highlight=False)
    if dry:
        return
    failed = run_with_progress(chosen, missing, path, jobs, told)
    current = {tuple(str(getattr(cell, key)) for key in results.KEYS) for cell in wanted}
    rows = [row for row in results.read(path) if tuple(row[key] for key in results.KEYS) in current]
    console = Console()
    for title, shown in table.tables(rows, figure):
        console.print(title, style="bold", highlight=False)
        console.print(shown)
    if lost := table.losses(rows):
        console.print("Where mars has the higher mean JCT:", highlight=False)
        for line in lost:
            console.print(f"  {line}", highlight=False)
    if failed:
        told.print(f"{failed} runs went wrong: column `error` of {path}; the same command tries them again")
        sys.exit(1)
