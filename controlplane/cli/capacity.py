"""``penstock capacity``: the most agents at once that keep an SLO."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli import completion
from controlplane.cli.options import (
    HARDWARE,
    WORKLOAD,
    ApiKey,
    AsJson,
    MaxContext,
    ScaleOutputs,
    ScaleTokens,
    ScaleTools,
    SharedPrefix,
    TelemetryOf,
    TimeScale,
    TokensPerWord,
    Trace,
    described,
    made,
    ranged,
)
from controlplane.lab.experiment import Hardware, Workload

if TYPE_CHECKING:
    from controlplane.lab.capacity.systems import System

_MACHINE = ("profile", "pool_tokens", "host_gb", "telemetry")
_OF_THE_SIMULATOR = ("preset", *_MACHINE)
_OF_AN_ENDPOINT = ("tokens_per_word", "time_scale", "api_key")
_OF_A_WORKLOAD = (*_MACHINE, "max_context", "scale_tokens", "scale_outputs", "scale_tools", "shared_prefix")


@ranged
def capacity(
    context: typer.Context,
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
    url: Annotated[
        list[str],
        typer.Option(
            help="An OpenAI-compatible endpoint to ask in place of the simulator, NAME=URL. Repeatable; the first "
            "is what the others are compared with."
        ),
    ] = [],
    seed: Annotated[
        list[int],
        typer.Option("--seed", "-s", min=0, help="Which agents are drawn. Repeatable: figures are of all."),
    ] = [1, 2],
    limit: Annotated[int, typer.Option("--most", min=1, help="Agents beyond which nobody asks.")] = 512,
    max_context: MaxContext = WORKLOAD.max_context,
    scale_tokens: ScaleTokens = WORKLOAD.scale_tokens,
    scale_outputs: ScaleOutputs = WORKLOAD.scale_outputs,
    scale_tools: ScaleTools = WORKLOAD.scale_tools,
    shared_prefix: SharedPrefix = WORKLOAD.shared_prefix,
    telemetry: TelemetryOf = WORKLOAD.telemetry,
    tokens_per_word: TokensPerWord = 1,
    time_scale: TimeScale = 1.0,
    api_key: ApiKey = "",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for capacity.json and capacity.html, with a plot.", callback=made),
    ] = None,
    json: AsJson = False,
) -> None:
    """Find the most agents at once that keep an SLO, for each preset, with host memory and without, or at a URL.

    TRACE may also be a log that `penstock up --record` wrote: its programs, on its engines, as `what-if` has them.

    So many agents are always there: when one ends, the next one comes. The search doubles and bisects; each number
    is a run for each seed. Who is held at the gate waits, and has few tokens/s: queueing is not serving.
    """
    arguments = locals()
    import sys

    from controlplane.lab.capacity.answer import Answer, as_json, ask, save, show
    from controlplane.lab.capacity.recorded import is_recording, recorded
    from controlplane.lab.capacity.slo import Slo
    from controlplane.lab.capacity.systems import simulated

    slo = Slo(ttft_s=ttft, tokens_per_s=tokens_per_s)
    workload, hardware = described(Workload, arguments), described(Hardware, arguments)
    if url:
        _refuse(context, _OF_THE_SIMULATOR, "is of the simulator, and --url asks an endpoint")
        systems = _endpoints(workload, url, seed, tokens_per_word, time_scale, api_key)
    else:
        _refuse(context, _OF_AN_ENDPOINT, "is for --url")
        if is_recording(Path(trace)):
            why = "is not for a recording, which says what its machine and its agents were"
            _refuse(context, _OF_A_WORKLOAD, why)
            systems = recorded(Path(trace), presets=preset, seeds=seed)
        else:
            systems = simulated(workload, hardware, presets=preset, host_gb=host_gb, seeds=seed)
    answers: list[Answer] = []
    try:
        for system in systems:
            answer = ask(system, slo, limit, lambda line: typer.echo(line, err=True))
            answers.append(answer)
    finally:  # an endpoint may be gone, or somebody have seen enough: what was found is told
        if answers:
            typer.echo(as_json(answers)) if json else show(answers)
            if out is not None:
                typer.echo(f"page: {save(answers, out, sys.argv)}", err=True)


def _refuse(context: typer.Context, names: tuple[str, ...], why: str) -> None:
    """Raise ``BadParameter`` for an option that was given and would do nothing."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(why, param_hint=f"--{name.replace('_', '-')}")


def _endpoints(
    workload: Workload, urls: list[str], seeds: list[int], tokens_per_word: int, time_scale: float, api_key: str
) -> "list[System]":
    from controlplane.lab.capacity.endpoint import endpoints
    from controlplane.lab.capacity.systems import agents_of, programs_for
    from controlplane.lab.load.options import ReplayOptions
    from controlplane.lab.workload.arrivals import Closed

    options = ReplayOptions(
        trace=agents_of(workload, programs_for(1), seeds[0]),
        workload=workload,
        url="http://",
        arrival=Closed(1),
        tokens_per_word=tokens_per_word,
        time_scale=time_scale,
        api_key=api_key,
    )
    return endpoints(urls, options, seeds)
