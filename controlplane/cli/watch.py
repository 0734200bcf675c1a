"""Commands that look at a running daemon: top, status, gain, engines, tenants, programs and so on."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import completion
from controlplane.cli.ask import daemon, until_interrupted, when_up
from controlplane.cli.options import FLEET, Api, Fleet, Json, JsonLines, Node, Nodes, StateDir, logs_of

Contains = Annotated[
    str,
    typer.Option("--contains", help="Only programs with this in their id, or tenant's, engine's or tool's name."),
]


def top(
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    fleet: Fleet = False,
) -> None:
    """Watch a node or a fleet live: window, pressures, rates, findings, engines, and what each program does.

    It asks the daemon once a second. The plots begin with what the daemon remembers; the newest bar is on the
    right. A row is green while the engine works for the program, cyan while its tool runs, yellow while it waits.
    Where there are several engines, each has a row with its pool: red if it is gone or does not answer, yellow if
    it is drained or passive.

    Keys: q quits, arrows and PgUp, PgDn select a program, Enter shows all that is known of it, / filters, s sorts
    by the next column, ? shows all keys.
    """
    from controlplane.operate.top.app import watch

    with until_interrupted():
        watch(lambda: daemon(api, FLEET if fleet else node, state_dir))


def status(
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    wait: Annotated[
        float, typer.Option("--wait", help="Seconds to wait for a daemon that is still starting.", min=0)
    ] = 0.0,
    json: Json = False,
) -> None:
    """Print a node's state: window, pressures, queue, configuration, orders."""
    from controlplane.operate.tables import show_status

    show_status(when_up(lambda client: client.call("GetStatus"), api, node, state_dir, wait_s=wait), json=json)


def gain(node: Node = "local", state_dir: StateDir = None, api: Api = None, json: Json = False) -> None:
    """Tell what the preset gains over `fcfs`, as the experiment of the daemon's file measures it.

    Its intervals hold however often they are looked at.
    """
    from controlplane.operate.gain import show_gain

    with daemon(api, node, state_dir) as client:
        show_gain(client.call("GetStatus"), json=json)


def engines(
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    fleet: Fleet = False,
    limit: Annotated[
        int, typer.Option(help="Most engines to list, those in trouble and the fullest; 0: all.", min=0)
    ] = 0,
    json: Json = False,
) -> None:
    """List the engines: what each pool has and is asked for, which programs are there, and who moved last."""
    from controlplane.operate.tables import show_engines

    with daemon(api, FLEET if fleet else node, state_dir) as client:
        show_engines(client.call("ListEngines", limit=limit), json=json)


def tenants(
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    fleet: Fleet = False,
    json: Json = False,
) -> None:
    """List the tenants: what each holds and has had of the KV memory, by weight, and what is left of its budgets.

    Tenants are tables of the configuration, `[tenants.NAME]`; whoever is in none shares `default`. KV token-s are
    tokens of KV memory times the seconds for which they were held. `penstock explain` tells whose turn it was when
    a program was let in.
    """
    from controlplane.operate.tables import show_tenants

    with daemon(api, FLEET if fleet else node, state_dir) as client:
        show_tenants(client.call("GetStatus"), json=json)


def programs(
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    ended: Annotated[bool, typer.Option("--ended", help="Include programs that ended in the last minute.")] = False,
    contains: Contains = "",
    limit: Annotated[int, typer.Option(help="Most programs to list, some of each group; 0: all.", min=0)] = 0,
    json: Json = False,
) -> None:
    """List the programs: those that wait, in queue order, then those that have a slot, then the others."""
    from controlplane.operate.tables import show_programs

    with daemon(api, node, state_dir) as client:
        show_programs(client.programs(ended=ended, contains=contains, limit=limit), json=json)


def queue(
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    contains: Contains = "",
    limit: Annotated[int, typer.Option(help="Most programs to list, from the front; 0: all.", min=0)] = 0,
    json: Json = False,
) -> None:
    """List the programs that wait for a slot, in queue order."""
    from controlplane.operate.tables import show_programs

    with daemon(api, node, state_dir) as client:
        show_programs(client.programs(queued=True, contains=contains, limit=limit), json=json, waits=True)


def decisions(
    program: Annotated[
        str,
        typer.Argument(
            help="Only decisions about this program.", metavar="[PROGRAM]", autocompletion=completion.programs
        ),
    ] = "",
    node: Node = "local",
    state_dir: StateDir = None,
    api: Api = None,
    json: JsonLines = False,
) -> None:
    """Print each decision as it is made, with its reason, until Ctrl-C.

    On a terminal like decisions of one second share a line: `admit x 12: a, b, c …: reason`.
    """
    from controlplane.operate.decisions import show_decisions

    with daemon(api, node, state_dir) as client, until_interrupted():
        show_decisions(client.watch("WatchDecisions", program_id=program), json=json)


def explain(
    program: Annotated[
        str,
        typer.Argument(
            help="Default: list the programs that you can ask about.",
            metavar="[PROGRAM]",
            autocompletion=completion.decided,
        ),
    ] = "",
    node: Nodes = None,
    log: Annotated[
        list[Path] | None,
        typer.Option("--log", help="A decision log by its file, such as one copied from another host. Repeatable."),
    ] = None,
    state_dir: StateDir = None,
    last: Annotated[int, typer.Option(help="How many of the latest decisions to print; 0: all.", min=0)] = 0,
    json: JsonLines = False,
) -> None:
    """Explain why a program waited, was let in, placed, moved, pinned or let go.

    It prints each decision with its rule, its numbers, who else could have been chosen, what came of it, and its
    verdict: what it gained and cost, in tokens and seconds (`penstock regret` sums those up). It reads the log in
    the state directory, even if the daemon does not run now. Without a program it lists their names.

    In a fleet two daemons decide about a program: the fleet's places it, its node's keeps it. Name both
    (`--node fleet --node gpu7`, or `--log FILE` for a log of another host) and the decisions are told in one order,
    by their hosts' clocks, with the way of each turn that waited at both: where how long, and where it ran.

    Of a program that had sub-agents and has ended it shows the tree, too, what it has had of its budget with them,
    and the critical path: what its time was made of, and how much of that it waited at the gate.
    """
    from controlplane.operate.printing import echo

    paths = logs_of(node, state_dir, log)
    for line in _explained(paths, program, last, as_json=json) if program else _names(paths):
        echo(line)


def _explained(paths: Mapping[str, Path], program: str, last: int, *, as_json: bool) -> Iterator[str]:
    """What the logs say of a program, a line or a JSON document at a time. Raises ``UnknownProgram``."""
    from controlplane.operate import tree
    from controlplane.operate.explain import lines, stories, ways
    from controlplane.operate.printing import json_line
    from controlplane.wire.decisions import Record, read_decisions

    retained: dict[str, list[Record]] = {source: [] for source in paths}
    logs = {source: tree.keep(read_decisions(path), retained[source]) for source, path in paths.items()}
    entries = stories(logs, program)
    trees = list(filter(None, (tree.tree(records, program) for records in retained.values())))[:1]
    of_whom = list(filter(None, (tree.whose(records, program) for records in retained.values())))[:1]
    if not (entries or trees or of_whom):
        raise _unknown(program, paths)
    if as_json:
        documents = [each.entries() for each in entries[-last:]]
        for record in (*documents, *({"tree": each, "critical_path": tree.critical_path(each)} for each in trees)):
            yield json_line(record)
        return
    yield from lines(entries[-last:])
    yield from ways(entries[-last:])
    yield from tree.lines(trees[0]) if trees else ()
    yield from of_whom


def _names(paths: Mapping[str, Path]) -> list[str]:
    from controlplane.operate.explain import names
    from controlplane.wire.decisions import read_decisions

    return names(record for path in paths.values() for record in read_decisions(path))


def _unknown(program: str, paths: Mapping[str, Path]) -> Exception:
    from controlplane.core.model.errors import UnknownProgram

    where, latest = ", ".join(map(str, paths.values())), ", ".join(_names(paths)[-10:]) or "none"
    return UnknownProgram(
        f"nothing was decided about {program!r} in {where}; what holds it now, if it waits: `penstock queue`; "
        f"the latest programs: {latest}"
    )
