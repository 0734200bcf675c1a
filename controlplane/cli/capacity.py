"""``penstock capacity``: the most agents at once that keep an SLO."""

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import completion
from controlplane.cli.options import (
    HARDWARE,
    WORKLOAD,
    AsJson,
    MaxContext,
    ScaleOutputs,
    ScaleTokens,
    ScaleTools,
    TelemetryOf,
    Trace,
    described,
    made,
    ranged,
)
from controlplane.lab.experiment import Hardware, Workload


@ranged
def capacity(
    trace: Trace = "synthetic:agentperf-like",
    preset: Annotated[
        list[str],
        typer.Option(
            "--preset",
            "-p",
            help="Preset to ask; the first is what the others are compared with. Repeatable.",
            autocompletion=completion.presets,
        ),
    ] = ["fcfs", "penstock"],
    ttft: Annotated[
        float, typer.Option(help="Seconds within which nine turns in ten have their first token, holds included.")
    ] = 30.0,
    tokens_per_s: Annotated[
        float,
        typer.Option(help="Tokens/s that nine agents in ten get over the time that they wait for replies; 0: any."),
    ] = 10.0,
    profile: Annotated[str, typer.Option(help="Hardware profile, by name or file.")] = "h100-qwen3-coder-30b",
    pool_tokens: Annotated[int, typer.Option(help="KV pool in tokens; 0: the profile's.")] = HARDWARE.pool_tokens,
    host_gb: Annotated[
        list[float],
        typer.Option(min=0, max=1e6, help="Host memory below the pool, in GB of 10^9 bytes; 0: none. Repeatable."),
    ] = [0, 256],
    seed: Annotated[
        list[int],
        typer.Option("--seed", "-s", min=0, help="Which agents are drawn. Repeatable: figures are of all."),
    ] = [1, 2],
    limit: Annotated[int, typer.Option("--most", min=1, help="Agents beyond which nobody asks.")] = 512,
    max_context: MaxContext = WORKLOAD.max_context,
    scale_tokens: ScaleTokens = WORKLOAD.scale_tokens,
    scale_outputs: ScaleOutputs = WORKLOAD.scale_outputs,
    scale_tools: ScaleTools = WORKLOAD.scale_tools,
    telemetry: TelemetryOf = WORKLOAD.telemetry,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for capacity.json and capacity.html, with a plot.", callback=made),
    ] = None,
    json: AsJson = False,
) -> None:
    """Find the most agents at once that keep an SLO, for each preset, with host memory and without.

    So many agents are always there: when one ends, the next one comes. The search doubles and bisects; each number
    is a simulated run for each seed. Who is held at the gate waits, and has few tokens/s: queueing is not serving.
    """
    arguments = locals()
    import sys

    from controlplane.lab.capacity.answer import as_json, ask, save, show
    from controlplane.lab.capacity.slo import Slo
    from controlplane.lab.capacity.systems import simulated

    slo = Slo(ttft_s=ttft, tokens_per_s=tokens_per_s)
    workload, hardware = described(Workload, arguments), described(Hardware, arguments)
    systems = simulated(workload, hardware, presets=preset, host_gb=host_gb, seeds=seed)
    answers = [ask(system, slo, limit, lambda line: typer.echo(line, err=True)) for system in systems]
    if json:
        typer.echo(as_json(answers))
    else:
        show(answers)
    if out is not None:
        typer.echo(f"page: {save(answers, out, sys.argv)}", err=True)
