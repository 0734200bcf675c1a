"""``penstock replay | engine-double | demo``: workloads in real time, against any endpoint or a double of one."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.options import (
    HARDWARE,
    WORKLOAD,
    ApiKey,
    AsJson,
    MaxContext,
    Nats,
    Node,
    Out,
    Programs,
    ScaleOutputs,
    ScaleTokens,
    ScaleTools,
    SharedPrefix,
    StateDir,
    TelemetryOf,
    Tiers,
    TimeScale,
    TokensPerWord,
    Trace,
    described,
    made,
    ranged,
)
from controlplane.lab.experiment import DEFAULT_TRACE, Hardware, Workload

if TYPE_CHECKING:
    from controlplane.lab.workload.run import RunResult


@ranged
def replay(
    trace: Trace = DEFAULT_TRACE,
    url: Annotated[str, typer.Option(help="An OpenAI-compatible endpoint.")] = "http://127.0.0.1:30000",
    arrival: Annotated[
        str,
        typer.Option(
            "--arrival",
            "-a",
            help="`poisson:RATE` in programs/s (open), `burst:RATE:N` (N at one instant), `closed:N`, or "
            "`batch:N` (the next N once all have ended).",
        ),
    ] = "poisson:0.1",
    seed: Annotated[int, typer.Option("--seed", "-s", min=0, help="Seed of the arrivals.")] = 1,
    programs: Programs = WORKLOAD.programs,
    max_context: MaxContext = WORKLOAD.max_context,
    scale_tokens: ScaleTokens = WORKLOAD.scale_tokens,
    scale_outputs: ScaleOutputs = WORKLOAD.scale_outputs,
    scale_tools: ScaleTools = WORKLOAD.scale_tools,
    shared_prefix: SharedPrefix = WORKLOAD.shared_prefix,
    tokens_per_word: TokensPerWord = 1,
    time_scale: TimeScale = 1.0,
    model: Annotated[str, typer.Option(help="Model name. Default: the first that the endpoint lists.")] = "",
    api_key: ApiKey = "",
    header: Annotated[
        list[str], typer.Option("--header", "-H", help='Sent with each request, as `"NAME: VALUE"`. Repeatable.')
    ] = [],
    identity: Annotated[str, typer.Option(help="How a program names itself: header, body or none.")] = "header",
    tool_role: Annotated[
        str, typer.Option(help="Role of tool messages; `user` if the chat template refuses `tool`.")
    ] = "tool",
    tool_slots: Annotated[
        int, typer.Option(help="How many tools may run at once; 0: no limit.")
    ] = WORKLOAD.tool_slots,
    tool_cpu: Annotated[
        float, typer.Option(help="Share of each tool's time to burn on real CPUs, 1 at most.")
    ] = 0.0,
    telemetry: TelemetryOf = WORKLOAD.telemetry,
    node: Node = "local",
    nats: Nats = None,
    state_dir: StateDir = None,
    no_bus: Annotated[bool, typer.Option("--no-bus", help="Send no tool events, and watch no daemon.")] = False,
    label: Annotated[str, typer.Option(help="Name of the run in tables.")] = "replay",
    out: Out = None,
    json: AsJson = False,
) -> None:
    """Replay agent programs against a serving endpoint: multi-turn, growing prompts, tools between turns.

    It runs until every program has ended, and counts every one. Completion times (JCT) are meaningful only with
    open arrivals; closed arrivals measure throughput. A figure that nothing was measured for is null in `--json`.
    It exits with 1 if a program failed.
    """
    arguments = locals()
    from contextlib import nullcontext

    from controlplane.lab.compare.terminal import show_runs
    from controlplane.lab.load.options import ReplayOptions, header_of
    from controlplane.lab.load.replay import replay as run
    from controlplane.lab.load.tools import ToolOptions
    from controlplane.lab.load.watch import StatusWatch
    from controlplane.lab.simulate import trace_of
    from controlplane.lab.workload.arrivals import parse_arrival
    from controlplane.transport.endpoint import resolve_url
    from controlplane.transport.roles import BusRole

    workload = described(Workload, arguments)
    scaled = workload.scale.apply(trace_of(workload))
    bus = None if no_bus else resolve_url(nats, node, state_dir, role=BusRole.AGENT)
    if bus is not None:
        _require_bus(bus)
    status_url = resolve_url(nats, node, state_dir, role=BusRole.READER)
    with nullcontext() if bus is None else StatusWatch(status_url, node) as watch:
        options = ReplayOptions(
            trace=scaled,
            workload=workload,
            url=url,
            arrival=parse_arrival(arrival),
            label=label,
            preset=label,
            seed=seed,
            model=model,
            api_key=api_key,
            headers=dict(map(header_of, header)),
            identity=identity,  # type: ignore[arg-type]
            tokens_per_word=tokens_per_word,
            tool_role=tool_role,
            tools=ToolOptions(slots=tool_slots, cpu_ratio=tool_cpu),
            time_scale=time_scale,
            nats=bus,
            node=node,
            observe=None if watch is None else watch.latest,
        )
        result = run(options)
    show_runs([result], trace=scaled, out=out, json=json)
    _require_success(result)


def _require_success(result: "RunResult") -> None:
    """Raise ``ControlPlaneError`` if a program failed, with the first error: figures of the rest are no run's."""
    from controlplane.core.model.errors import ControlPlaneError

    errors = [program.error for program in result.programs if program.failed]
    if errors:
        alike = f", {errors.count(errors[0])} of them" if len(set(errors)) > 1 else ""
        raise ControlPlaneError(f"{len(errors)} of {len(result.programs)} programs failed{alike}: {errors[0]}")


def _require_bus(bus: Callable[[], str]) -> None:
    """Raise ``EngineUnavailable`` at once if there is no bus, rather than wait for one that will never come."""
    from controlplane.core.model.errors import EngineUnavailable

    try:
        bus()
    except EngineUnavailable as error:
        raise EngineUnavailable(f"{error}; or use --no-bus to run without one") from None


@ranged
def engine_double(
    port: Annotated[int, typer.Option(help="Port to listen on; 0: a free one.")] = 30000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    profile: Annotated[str, typer.Option(help="Hardware profile, by name or file.")] = HARDWARE.profile,
    pool_tokens: Annotated[int | None, typer.Option(help="KV pool in tokens. Default: the profile's.")] = None,
    context_tokens: Annotated[
        int | None, typer.Option(help="Longest context in tokens. Default: the pool.")
    ] = None,
    tier: Tiers = [],
    time_scale: TimeScale = 1.0,
    tokens_per_word: Annotated[int, typer.Option(min=1, help="Tokens that one word stands for.")] = 1,
    script: Annotated[
        Path | None,
        typer.Option(
            help="What chat completions say, as JSON: {PART OF THE FIRST USER MESSAGE: "
            '[{"tokens": N, "calls": [{"tool": NAME, "arguments": {}}]}, ...]}. Default: words alone.'
        ),
    ] = None,
    hold_s: Annotated[
        float,
        typer.Option(min=1, max=1e6, help="Seconds of engine time after which a turn that is held gets a 503."),
    ] = 600.0,
    node: Node = "local",
    nats: Nats = None,
    state_dir: StateDir = None,
    no_bus: Annotated[
        bool,
        typer.Option(
            "--no-bus", help="Be a server without the plugin: nothing is told, nothing obeyed, no turn held."
        ),
    ] = False,
) -> None:
    """Serve the engine *double*: an OpenAI-compatible endpoint over a model of an engine, for demos and tests.

    It publishes and obeys what a real engine with Penstock's plugin would. It has no model: its words mean nothing.
    On `/v1/responses` it calls each tool that it is offered, then answers.
    """
    from controlplane.core.model.errors import EngineUnavailable
    from controlplane.core.model.types import seconds
    from controlplane.gate import GateLimits
    from controlplane.lab.double.options import DoubleOptions
    from controlplane.lab.double.script import read_script
    from controlplane.lab.double.server import serve
    from controlplane.transport.endpoint import resolve_url
    from controlplane.transport.roles import BusRole

    bus = None if no_bus else resolve_url(nats, node, state_dir, role=BusRole.ENGINE)
    if bus is not None:
        try:
            bus()
        except EngineUnavailable as error:  # as a real engine it serves, and joins the bus once there is one
            typer.echo(f"{error}. Until then every turn passes and nothing is published", err=True)
    serve(
        DoubleOptions(
            host=host,
            port=port,
            bus=bus,
            node=node,
            hardware=Hardware(
                profile=profile,
                pool_tokens=pool_tokens or HARDWARE.pool_tokens,
                max_context_tokens=context_tokens or HARDWARE.max_context_tokens,
                tiers=tuple(tier),
            ),
            time_scale=time_scale,
            tokens_per_word=tokens_per_word,
            script=read_script(script) if script is not None else {},
            gate=GateLimits(hold_ns=seconds(hold_s)),
            on_ready=lambda url: typer.echo(f"engine double listens on {url}", err=True),
        )
    )


def demo(
    trace: Annotated[
        str | None, typer.Option("--trace", help="A trace or `synthetic:NAME`, as for `penstock simulate`.")
    ] = None,
    rate: Annotated[
        list[float],
        typer.Option(
            "--rate", help="Live arrival rate in programs/s. Repeatable. Default: below saturation, and beyond."
        ),
    ] = [],
    programs: Annotated[int, typer.Option("--programs", "-n", min=1, help="Programs in each run.")] = 24,
    seed: Annotated[int, typer.Option("--seed", "-s", min=0, help="Seed of the arrivals.")] = 1,
    time_scale: TimeScale = 60.0,
    telemetry: TelemetryOf = WORKLOAD.telemetry,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the report and the runs.", callback=made)
    ] = Path("runs/demo"),
    all_figures: Annotated[
        bool, typer.Option("--all", help="Print every figure, not only the first ones.")
    ] = False,
) -> None:
    """Run the whole loop on this machine without a GPU: NATS, daemon and engine double on agent traces.

    The simulator predicts what the presets `fcfs` (the stock engine) and `penstock` do at several rates. Then both
    run live with the same arrivals. It ends with a verdict, a table and an HTML report; Ctrl-C ends it with what
    there is.
    """
    from controlplane.lab.demo.run import DemoOptions, run_demo

    whole = run_demo(
        DemoOptions(
            trace=trace,
            rates=tuple(rate),
            programs=programs,
            seed=seed,
            time_scale=time_scale,
            out=out,
            telemetry=telemetry,
            all_figures=all_figures,
        )
    )
    raise typer.Exit(0 if whole else 130)  # as a shell has it of what an interrupt ended
