"""``penstock what-if``: a recorded stretch again, under another decision or on another machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli import completion
from controlplane.cli.options import HARDWARE, Json, Out
from controlplane.core.model.errors import ConfigError
from controlplane.lab.experiment import DEFAULT_ARRIVAL, Workload

if TYPE_CHECKING:
    from controlplane.lab.whatif.replays import Replays, TraceWindow


def what_if(
    log: Annotated[
        Path,
        typer.Argument(
            help="A log that `penstock up --record` wrote, or still writes; or sessions that `penstock trace "
            "import` reads, of which a run under fcfs is simulated first."
        ),
    ],
    preset: Annotated[
        str,
        typer.Option("--preset", "-p", help="Decide by this preset instead.", autocompletion=completion.presets),
    ] = "",
    settings: Annotated[
        list[str],
        typer.Option("--set", help="KEY=VALUE of the configuration, as admission.beta=0.6. Repeatable."),
    ] = [],
    pool_tokens: Annotated[
        str, typer.Option(help="Another KV pool of each engine, in tokens, or a change: +20%, 2x.")
    ] = "",
    engines: Annotated[str, typer.Option(help="Another number of engines, or a change: -1, 2x.")] = "",
    agents: Annotated[str, typer.Option(help="As many times the agents: 2x, +50%, 0.5x.")] = "",
    since: Annotated[
        float | None,
        typer.Option(help="Begin so many seconds after the log's first event; before its last one, if negative."),
    ] = None,
    until: Annotated[float | None, typer.Option(help="End there, likewise.")] = None,
    repeat: Annotated[
        int,
        typer.Option(
            min=1, max=100, help="How often each side is simulated, with arrivals and tool times a little shifted."
        ),
    ] = 3,
    chunk_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens in one step of the engine's chunked prefill.")
    ] = HARDWARE.chunk_tokens,
    max_running: Annotated[
        int, typer.Option(min=1, help="Most turns that the engine runs at once.")
    ] = HARDWARE.max_running,
    out: Out = None,
    json: Json = False,
) -> None:
    """Replay a recorded stretch under another preset, other settings, or on another machine.

    The engine model is calibrated from that very stretch; programs arrive when they did, and their tools and their
    clients take the time that they took. First it says how far the replay of what was really decided is from what
    was measured, then what the alternative would have changed, with a 95% interval. Without an alternative it says
    how far the replay is off.

    Twice the agents: `--agents 2x`. One engine less: `--engines -1`. A fifth more memory: `--pool-tokens +20%`.
    """
    import sys

    from controlplane.lab.whatif.question import Question
    from controlplane.lab.whatif.replays import Replays, TraceWindow
    from controlplane.lab.workload.imports.formats import is_known

    question = Question(
        preset=preset, settings=tuple(settings), pool_tokens=pool_tokens, engines=engines, agents=agents
    )
    stretch = TraceWindow(
        log=log, since_s=since, until_s=until, repeat=repeat, chunk_tokens=chunk_tokens, max_running=max_running
    )
    try:
        replays = Replays(stretch)
    except ConfigError:
        if not is_known(log):
            raise
        replays = _simulated(stretch)
    answer = replays.ask(question)
    if json:
        import json as stdlib_json

        typer.echo(stdlib_json.dumps(answer.to_json(), indent=2))
    else:
        from controlplane.lab.whatif.show import show_answer

        show_answer(answer)
    if out is not None:
        from controlplane.lab.compare.html import ReportOptions, write_report
        from controlplane.lab.compare.terminal import save_runs

        save_runs(answer.runs, out)
        write_report(answer.runs, out / "report.html", ReportOptions(title="What if", command=tuple(sys.argv)))
        typer.echo(f"report: {out / 'report.html'}", err=True)


def _simulated(stretch: "TraceWindow") -> "Replays":
    """Of sessions, which tell of no engine: a run of them under fcfs, with a simulation's defaults."""
    from dataclasses import replace
    from tempfile import TemporaryDirectory

    from controlplane.lab.sweep.local import run_in_process
    from controlplane.lab.sweep.spec import SweepSpec
    from controlplane.lab.whatif.replays import Replays

    typer.echo(
        f"{stretch.log} has sessions and no engine: what was is a simulation under fcfs, {DEFAULT_ARRIVAL}, "
        f"{HARDWARE.profile}. For another: penstock simulate {stretch.log} --record run.jsonl",
        err=True,
    )
    spec = SweepSpec(
        workload=(Workload(trace=str(stretch.log)),),
        hardware=(HARDWARE,),
        presets=("fcfs",),
        arrivals=(DEFAULT_ARRIVAL,),
        seeds=(1,),
    )
    with TemporaryDirectory() as folder:
        record = Path(folder) / "run.jsonl"
        run_in_process(spec, record=record)
        return Replays(replace(stretch, log=record))
