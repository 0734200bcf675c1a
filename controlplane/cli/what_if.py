"""``penstock what-if``: a recorded stretch again, under another decision or on another machine."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli import completion
from controlplane.cli.options import Json, Out
from controlplane.cli.stretch import LOG, of_a_stretch

if TYPE_CHECKING:
    from controlplane.lab.whatif.replays import Replays


@of_a_stretch
def what_if(
    log: Annotated[Path, LOG],
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
    *,
    replays: Callable[[Path], "Replays"],
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

    question = Question(
        preset=preset, settings=tuple(settings), pool_tokens=pool_tokens, engines=engines, agents=agents
    )
    answer = replays(log).ask(question)
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
