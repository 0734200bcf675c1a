"""``penstock regret``: what decisions cost and brought."""

from typing import Annotated

import typer

from controlplane.cli.options import Json, Logs, Nodes, StateDir, logs_of

_BY = "kind, policy, tool, class, tenant, cause, outcome or program"


def regret(
    logs: Logs = None,
    by: Annotated[str, typer.Option("--by", help=f"Sum up by {_BY}.")] = "kind",
    node: Nodes = None,
    state_dir: StateDir = None,
    hindsight: Annotated[
        bool,
        typer.Option(
            "--hindsight",
            help="Also the least that a recorded run had to compute again, had its turns been known beforehand.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Tell what each kind of decision cost and gained, in tokens and seconds, and what hindsight would have paid.

    A pin costs the memory that it holds and gains the prefill that the next turn is spared; a release, a demotion
    or a pause frees memory and may cost a prefill; a hold at the gate costs its wait and keeps others' contexts;
    what followed no decision is told as `no decision`. `computed again` sums up to what the engines computed twice.
    The row that lost most is first.

    The log in the state directory is read, even if the daemon does not run now. A recorded run gives the same
    verdicts, and also the contexts that were found without any decision, so that its regret is over every gap.
    """
    from controlplane.core.model.errors import ConfigError, near
    from controlplane.operate.regret import BY, read_regret, rows, show_regret

    if by not in BY:
        raise ConfigError(f"by: expected {_BY}, got {by!r}{near(by, BY)}", field="by")
    report = read_regret([*logs_of(node, state_dir, logs).values()], hindsight=hindsight)
    found = rows(report.judged, by)
    show_regret(report, found, by, json=json)
