"""``penstock advise``: what a recorded stretch says should be changed."""

from enum import StrEnum
from typing import Annotated

import typer

from controlplane.cli.options import HARDWARE, Json
from controlplane.cli.what_if import ChunkTokens, Log, MaxRunning, Repeat, Since, Until


class Goal(StrEnum):
    """What a change is to make better."""

    JCT = "mean_jct_s"
    TTFT = "p95_ttft_s"
    HITS = "hit_rate"


def advise(
    log: Log,
    goal: Annotated[Goal, typer.Option(help="The figure that is to become better.")] = Goal.JCT,
    since: Since = None,
    until: Until = None,
    repeat: Repeat = 3,
    chunk_tokens: ChunkTokens = HARDWARE.chunk_tokens,
    max_running: MaxRunning = HARDWARE.max_running,
    json: Json = False,
) -> None:
    """Say what a recorded stretch would have gained by: presets, settings, a larger pool. Nothing is changed.

    Each candidate is asked as `penstock what-if` asks it. Advised are those whose interval excludes no change and
    whose change is more than what the replay of the recorded decisions is off by.
    """
    from controlplane.lab.compare.terminal import progress_bar
    from controlplane.lab.whatif.advice import advise as judge
    from controlplane.lab.whatif.advice import candidates
    from controlplane.lab.whatif.replays import Replays, Stretch

    replays = Replays(
        Stretch(
            log=log,
            since_s=since,
            until_s=until,
            repeat=repeat,
            chunk_tokens=chunk_tokens,
            max_running=max_running,
        )
    )
    with progress_bar(unit="candidates") as advance:
        found = judge(replays, goal, candidates(replays), lambda done, total: advance("simulated", done, total))
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
