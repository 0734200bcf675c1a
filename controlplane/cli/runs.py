"""The commands that run workloads, or look at what they left."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import completion
from controlplane.cli.calibrate import calibrate
from controlplane.cli.sweep import sweep, sweep_report
from controlplane.cli.tools import tools_app
from controlplane.lab.workload.telemetry import Telemetry

Trace = Annotated[
    str | None,
    typer.Argument(
        help="A trace file (JSON lines, .gz), or `synthetic:NAME`: swe-bench, swe-bench-verified, bfcl-v4, "
        "swe-like, five-kinds, ilr-like (ilr-1 to ilr-4). Or several: `mix:A+B*2` mixed, `change:A>B` one after "
        "the other. Default: real traces beside this checkout if there are any, else synthetic:swe-bench."
    ),
]
Arrivals = Annotated[
    list[str],
    typer.Option(
        "--arrival",
        "-a",
        help="`poisson:RATE` in programs/s (open), `burst:RATE:N` (N at one instant) or `closed:N`. Repeatable.",
    ),
]
Programs = Annotated[int, typer.Option("--programs", "-n", min=0, help="Programs to run; 0: all of the trace.")]
MaxContext = Annotated[
    int, typer.Option("--max-context", min=0, help="Reject programs whose context grows beyond so many tokens.")
]
Humans = Annotated[
    bool, typer.Option("--humans/--no-humans", help="Keep programs in which a person thinks between turns.")
]
ScaleTokens = Annotated[float, typer.Option(help="Factor on prompt tokens, printed with the result.")]
ScaleOutputs = Annotated[float, typer.Option(help="Factor on output tokens.")]
ScaleTools = Annotated[float, typer.Option(help="Factor on tool times.")]
ScaleTurns = Annotated[
    int, typer.Option(min=1, help="Each program's turns so many times over, with lengths as much shorter.")
]
Tiers = Annotated[
    list[str],
    typer.Option(
        "--tier",
        help="KV memory below the device: NAME:TOKENS:GB_PER_S, as dram:2000000:50. Repeatable, fastest first.",
    ),
]
SharedPrefix = Annotated[int, typer.Option(min=0, help="Leading tokens that all programs share (system prompt).")]
TelemetryOf = Annotated[
    Telemetry,
    typer.Option(
        help="What programs tell beside their id: nothing (`none`), what replies call (`turns`), runs and tools of "
        "every second one (`half`) or of all (`full`)."
    ),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the runs (JSON) and report.html.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print summaries as JSON.")]
TimeScale = Annotated[float, typer.Option(min=0.01, max=100, help="Go so many times faster than real time.")]
Node = Annotated[str, typer.Option(help="Name of the serving node.")]
Nats = Annotated[str | None, typer.Option("--nats", help="NATS URL. Default: the node's endpoint file.")]
StateDir = Annotated[Path | None, typer.Option(help="Where the daemon keeps its endpoint file.")]


def simulate(
    trace: Trace = None,
    preset: Annotated[
        list[str], typer.Option("--preset", "-p", help="Repeatable.", autocompletion=completion.presets)
    ] = ["fcfs", "penstock"],
    arrival: Arrivals = ["poisson:0.05"],
    seed: Annotated[list[int], typer.Option("--seed", "-s", help="Of the arrivals. Repeatable.")] = [1],
    profile: Annotated[
        str, typer.Option(help="Hardware: h200-llama31-8b (measured), h100, b200, rtx3090 (analytic), or a file.")
    ] = "h200-llama31-8b",
    pool_tokens: Annotated[int, typer.Option(min=0, help="KV pool; 0: the profile's.")] = 0,
    chunk_tokens: Annotated[int, typer.Option(min=1, help="Chunked prefill: tokens of a step at most.")] = 8192,
    max_running: Annotated[int, typer.Option(min=1, help="Turns that run in an engine at once.")] = 256,
    tier: Tiers = [],
    replicas: Annotated[int, typer.Option(min=1, help="Engines side by side, each with that pool.")] = 1,
    routing: Annotated[
        str,
        typer.Option(
            help="Which engine a turn goes to: session (where the KV is, unless leaving costs less), round_robin, "
            "least_loaded, single. Default: the preset's, session."
        ),
    ] = "",
    link_gb_per_s: Annotated[
        float, typer.Option(min=0.0, help="Bandwidth for KV between engines, 10^9 bytes/s; 0: none is sent.")
    ] = 50.0,
    programs: Programs = 0,
    max_context: MaxContext = 0,
    humans: Humans = True,
    scale_tokens: ScaleTokens = 1.0,
    scale_outputs: ScaleOutputs = 1.0,
    scale_tools: ScaleTools = 1.0,
    scale_turns: ScaleTurns = 1,
    shared_prefix: SharedPrefix = 2000,
    cpus: Annotated[
        float, typer.Option(help="CPUs of the tool host, as admission sees them, and as --contention shares them.")
    ] = 8.0,
    tool_slots: Annotated[int, typer.Option(min=0, help="Tools that run at once; 0: no limit.")] = 0,
    tools: Annotated[
        str,
        typer.Option(help="`replay`: tools take what the trace says; or draw from a file of `penstock tools fit`."),
    ] = "replay",
    contention: Annotated[
        bool, typer.Option("--contention", help="Tools share the --cpus: too many at once slow each other down.")
    ] = False,
    cpu_share: Annotated[
        list[str],
        typer.Option(
            help="With --contention: CPUs that a tool uses while it runs, 0: it only waits. `SHARE` for all, "
            "`TOOL=SHARE` for some (`*` and `?` match); the first that fits counts. Default 1. Repeatable."
        ),
    ] = [],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="TOML file: its control rules hold for all runs, its policies for its own preset.",
        ),
    ] = None,
    telemetry: TelemetryOf = Telemetry.FULL,
    record: Annotated[Path | None, typer.Option(help="Write the event log of a single run here.")] = None,
    out: Out = None,
    json: AsJson = False,
) -> None:
    """Try policies on a trace in virtual time, with the daemon's own decision code.

    Runs every preset at every arrival with every seed, and prints them side by side.
    """
    from controlplane.config import load
    from controlplane.lab.output import progress_bar, show_runs
    from controlplane.lab.runs import (
        SimulateOptions,
        default_workload,
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
    workload = load_workload(
        trace or default_workload(), programs=programs, max_context_tokens=max_context, humans=humans
    )
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


def replay(
    trace: Trace = None,
    url: Annotated[str, typer.Option(help="An OpenAI-compatible endpoint.")] = "http://127.0.0.1:30000",
    arrival: Annotated[str, typer.Option("--arrival", "-a", help="`poisson:RATE` or `closed:N`.")] = "poisson:0.1",
    seed: Annotated[int, typer.Option("--seed", "-s", help="Of the arrivals.")] = 1,
    programs: Programs = 0,
    max_context: MaxContext = 0,
    scale_tokens: ScaleTokens = 1.0,
    scale_outputs: ScaleOutputs = 1.0,
    scale_tools: ScaleTools = 1.0,
    shared_prefix: SharedPrefix = 2000,
    tokens_per_word: Annotated[
        int, typer.Option(min=1, help="For the engine double: tokens a word stands for.")
    ] = 1,
    time_scale: TimeScale = 1.0,
    model: Annotated[str, typer.Option(help="Default: the first that the endpoint lists.")] = "",
    identity: Annotated[str, typer.Option(help="How a program names itself: header, body or none.")] = "header",
    tool_role: Annotated[str, typer.Option(help="`user` for chat templates that refuse tool messages.")] = "tool",
    tool_slots: Annotated[int, typer.Option(min=0, help="Tools that run at once; 0: no limit.")] = 0,
    tool_cpu: Annotated[float, typer.Option(help="Share of each tool's time that is really burnt on CPUs.")] = 0.0,
    telemetry: TelemetryOf = Telemetry.FULL,
    node: Node = "local",
    nats: Nats = None,
    state_dir: StateDir = None,
    no_bus: Annotated[bool, typer.Option("--no-bus", help="Send no tool events, and watch no daemon.")] = False,
    label: Annotated[str, typer.Option(help="Name of the run in tables.")] = "replay",
    out: Out = None,
    json: AsJson = False,
) -> None:
    """Replay agent programs against a serving endpoint: multi-turn, growing prompts, tools between turns.

    Runs until every program has ended and counts every one. Completion times (JCT) mean something with open
    arrivals only: closed ones measure throughput.
    """
    from contextlib import nullcontext

    from controlplane.lab.load.options import ReplayOptions
    from controlplane.lab.load.replay import replay as run
    from controlplane.lab.load.tools import ToolOptions
    from controlplane.lab.load.watch import StatusWatch
    from controlplane.lab.output import show_runs
    from controlplane.lab.runs import default_workload, load_workload
    from controlplane.lab.workload.arrivals import parse_arrival
    from controlplane.lab.workload.scale import Scale
    from controlplane.wire.endpoint import resolve_url
    from controlplane.wire.roles import BusRole

    scale = Scale(tokens=scale_tokens, outputs=scale_outputs, tools=scale_tools)
    workload = load_workload(
        trace or default_workload(), programs=programs, max_context_tokens=max_context, scale=scale
    )
    bus = None if no_bus else resolve_url(nats, node, state_dir, role=BusRole.AGENT)
    if bus is not None:
        _require_bus(bus)
    heard = resolve_url(nats, node, state_dir, role=BusRole.READER)
    with nullcontext() if bus is None else StatusWatch(heard, node) as watch:
        options = ReplayOptions(
            trace=workload,
            url=url,
            arrival=parse_arrival(arrival),
            label=label,
            preset=label,
            seed=seed,
            model=model,
            identity=identity,  # type: ignore[arg-type]
            shared_prefix_tokens=shared_prefix,
            tokens_per_word=tokens_per_word,
            tool_role=tool_role,
            tools=ToolOptions(slots=tool_slots, cpu_ratio=tool_cpu),
            time_scale=time_scale,
            nats=bus,
            node=node,
            telemetry=telemetry,
            observe=None if watch is None else watch.latest,
            scale=scale,
        )
        result = run(options)
    show_runs([result], trace=workload, out=out, json=json)


def _require_bus(bus: Callable[[], str]) -> None:
    """Say at once that there is none, rather than wait for one that was never meant to be."""
    from controlplane.core.errors import EngineUnavailable

    try:
        bus()
    except EngineUnavailable as error:
        raise EngineUnavailable(f"{error}; or give --no-bus to do without") from None


def engine_double(
    port: Annotated[int, typer.Option(help="0: a free one.")] = 30000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    profile: Annotated[str, typer.Option(help="Hardware profile, by name or file.")] = "h200-llama31-8b",
    pool_tokens: Annotated[int | None, typer.Option(help="KV pool; default: the profile's.")] = None,
    context_tokens: Annotated[int | None, typer.Option(help="Longest context; default: the pool.")] = None,
    tier: Tiers = [],
    time_scale: TimeScale = 1.0,
    tokens_per_word: Annotated[int, typer.Option(min=1, help="Tokens that one word stands for.")] = 1,
    node: Node = "local",
    nats: Nats = None,
    state_dir: StateDir = None,
    no_bus: Annotated[bool, typer.Option("--no-bus", help="Publish nothing, obey nobody.")] = False,
) -> None:
    """Serve the engine *double*: an OpenAI-compatible endpoint over a model of an engine, for demos and tests.

    It publishes and obeys what a real engine with Penstock's plugin does. It is no engine: its words mean nothing.
    """
    from controlplane.lab.double.options import DoubleOptions
    from controlplane.lab.double.server import serve
    from controlplane.lab.sim.lower_tiers import parse_tier
    from controlplane.wire.endpoint import resolve_url
    from controlplane.wire.roles import BusRole

    bus = None if no_bus else resolve_url(nats, node, state_dir, role=BusRole.ENGINE)
    serve(
        DoubleOptions(
            host=host,
            port=port,
            bus=bus,
            node=node,
            profile=profile,
            pool_tokens=pool_tokens,
            context_tokens=context_tokens,
            tiers=tuple(map(parse_tier, tier)),
            time_scale=time_scale,
            tokens_per_word=tokens_per_word,
            on_ready=lambda url: typer.echo(f"engine double listens on {url}", err=True),
        )
    )


def demo(
    trace: Annotated[str | None, typer.Option("--trace", help="As for `penstock simulate`.")] = None,
    rate: Annotated[
        list[float],
        typer.Option("--rate", help="Live arrivals, programs/s. Repeatable. Default: around the onset."),
    ] = [],
    programs: Annotated[int, typer.Option("--programs", "-n", min=1)] = 40,
    seed: Annotated[int, typer.Option("--seed", "-s")] = 1,
    time_scale: TimeScale = 60.0,
    telemetry: TelemetryOf = Telemetry.FULL,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the report and the runs go.")] = Path("runs/demo"),
) -> None:
    """The whole loop on this machine, no GPU: NATS, daemon and engine double on agent traces.

    First preset `fcfs` (the stock engine), then `penstock`, with the same arrivals; then both in the simulator at
    more rates. Ends with a table and an HTML report.
    """
    from controlplane.lab.demo import DemoOptions, run_demo

    run_demo(
        DemoOptions(
            trace=trace,
            rates=tuple(rate),
            programs=programs,
            seed=seed,
            time_scale=time_scale,
            out=out,
            telemetry=telemetry,
        )
    )


def report(
    runs: Annotated[list[Path], typer.Argument(help="Saved runs (JSON), as --out writes them.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Compare saved runs: a table here, plots in a self-contained HTML file."""
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


def log_replay(file: Annotated[Path, typer.Argument(help="A log that `penstock up --record` wrote.")]) -> None:
    """Replay a recorded run: the same events must give the same commands. Exit 1 if they do not."""
    from controlplane.shell.log_replay import replay_log

    result = replay_log(file)
    if result.note:
        typer.echo(result.note)
    typer.echo(f"{result.events} events, {result.ticks} ticks, {result.commands} commands")
    for difference in result.differences:
        typer.echo(difference)
    if result.differing:
        typer.secho(f"{result.differing} commands differ", fg="red")
        raise typer.Exit(1)
    typer.echo("the replay gave the same commands")


def log_show(file: Annotated[Path, typer.Argument(help="A log that `penstock up --record` wrote.")]) -> None:
    """Print a recorded run, one record a line, times in seconds since its first record."""
    from controlplane.wire.log import read_log

    first_ns: int | None = None
    for record in read_log(file):
        now_ns = getattr(record, "now_ns", None)
        first_ns = now_ns if first_ns is None else first_ns
        at = "" if now_ns is None or first_ns is None else f"{(now_ns - first_ns) / 1e9:12.6f}  "
        body = getattr(record, "event", None) or getattr(record, "command", None) or record
        typer.echo(f"{at}{str(body)[:400]}")


def register(app: typer.Typer) -> None:
    """Add these commands to ``penstock``."""
    for command in (simulate, sweep, sweep_report, calibrate, replay, engine_double, demo, report):
        app.command(command.__name__.replace("_", "-"))(command)
    log = typer.Typer(no_args_is_help=True, help="Read and replay recorded runs.")
    log.command("replay")(log_replay)
    log.command("show")(log_show)
    app.add_typer(log, name="log")
    app.add_typer(tools_app, name="tools")
