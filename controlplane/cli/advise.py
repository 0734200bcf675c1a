"""``penstock advise``: what a recorded stretch says should be changed, and what a daemon has changed by itself."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.ask import daemon
from controlplane.cli.options import Api, Json, Node, StateDir
from controlplane.cli.stretch import LOG, of_a_stretch

if TYPE_CHECKING:
    from controlplane.lab.whatif.replays import Replays


class Goal(StrEnum):
    """What a change is to make better."""

    JCT = "mean_jct_s"
    TTFT = "p95_ttft_s"
    HITS = "hit_rate"


@of_a_stretch
def advise(
    log: Annotated[Path | None, LOG] = None,
    goal: Annotated[Goal, typer.Option(help="The figure that is to become better.")] = Goal.JCT,
    settings: Annotated[
        list[str],
        typer.Option("--set", help="Try only this KEY=VALUE of the configuration, by itself. Repeatable."),
    ] = [],
    *,
    replays: Callable[[Path], "Replays"],
    stop: Annotated[
        bool,
        typer.Option("--stop", help="Stop a daemon's automatic advice, and take back what it changed."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Let it go on as the daemon's file says.")] = False,
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    json: Json = False,
) -> None:
    """Say what a recorded stretch would have gained by: presets, settings, a larger pool. Nothing is changed.

    Each candidate is asked as `penstock what-if` asks it. Advised are those whose interval excludes no change and
    whose change is more than what the replay of the recorded decisions is off by.

    Without a LOG it shows what the daemon of --node has changed by itself, where its file says `auto = true` below
    `[advise]`, and why. --stop ends that at once.
    """
    if log is None:
        _automatic(node, state_dir, api, stop=stop, resume=resume, json=json)
        return
    if stop or resume:
        raise typer.BadParameter("they are for a daemon: leave out the LOG", param_hint="--stop, --resume")
    from controlplane.lab.compare.terminal import progress_bar
    from controlplane.lab.whatif.advice import advise as judge
    from controlplane.lab.whatif.advice import candidates
    from controlplane.lab.whatif.question import Question

    read = replays(log)
    asked = [Question(settings=(each,)) for each in settings] or candidates(read)
    with progress_bar(unit="candidates") as advance:
        found = judge(read, goal, asked, lambda done, total: advance("simulated", done, total))
    if json:
        import json as stdlib_json

        said = found[0].answer.to_json() if found else {}
        shared = {
            key: said.get(key) for key in ("format", "stretch", "actual", "replayed", "replay_error", "notes")
        }
        listed = {"goal": str(goal), "candidates": [each.to_json() for each in found]}
        typer.echo(stdlib_json.dumps(shared | listed, indent=2))
    else:
        from controlplane.lab.whatif.show import show_advice

        show_advice(found, goal)


def _automatic(node: str, state_dir: Path | None, api: str | None, *, stop: bool, resume: bool, json: bool) -> None:
    from controlplane.operate.advise import show_automatic

    if stop and resume:
        raise typer.BadParameter("give one of them", param_hint="--stop, --resume")
    with daemon(api, node, state_dir) as client:
        if stop or resume:
            client.call("StopAdvice", undo=resume)
        show_automatic(client.call("GetStatus"), json=json)
