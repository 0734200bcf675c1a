"""Trees of any shape and depth, as agents report them: who is expected back when, decided, saved and explained."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.core_driver import Driver, of, recounted, sums

from controlplane.core.estimators.program_forecast import ProgramForecaster
from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.steps import run
from controlplane.core.model.types import Program, Status
from controlplane.core.policies.presets import PRESETS
from controlplane.core.scheduling.subagents import update_parent_etas
from controlplane.daemon.bus import snapshot
from controlplane.operate import tree
from controlplane.wire.decisions import RunRecord

# By shape: the parent of each number's program.
SHAPES = {
    "chain": lambda number, many: number - 1,
    "chain, from its end": lambda number, many: number + 1 if number < many - 1 else None,
    "wide": lambda number, many: 0,
    "comb": lambda number, many: number - 1 if number % 2 else max(0, number - 2),
    "cycle": lambda number, many: (number + 1) % many,
    "of itself": lambda number, many: number,
}


def name(number: int | None) -> str:
    return "" if number is None or number < 0 else f"p{number}"


def reported(parents: list[int | None], *, asks: bool = True) -> Driver:
    """Each arrives, starts the tool in which its children run, and asks for a turn."""
    d = Driver(PRESETS["penstock"])
    d.pool(total=100, free=100)
    for number, parent in enumerate(parents):
        own = name(number)
        d.send(d.tools(ev.ProgramArrived, program_id=own, parent_id=name(parent)))
        d.start_tool(own)
        if asks:
            d.ask(own)
    return d


@pytest.mark.parametrize(("shape", "many"), [*((shape, 400) for shape in SHAPES), ("chain", 5000), ("wide", 5000)])
def test_a_tree_of_any_shape_is_decided_about_saved_and_ended(shape: str, many: int) -> None:
    d = reported([SHAPES[shape](number, many) if number or shape != "wide" else None for number in range(many)])
    for _ in range(3):
        d.tick(2)
    assert sums(d.ledger) == sums(recounted(d.ledger))
    assert max(map(len, d.ledger.programs.children.values()), default=0) <= 4096  # those beyond are roots
    pieces = snapshot.pieces(
        d.controller.state, preset="", stream_sequence=1, stream_created="", now_ns=1, time_scale=1
    )
    state = snapshot.restore(snapshot.read(b"".join(pieces)), d.controller.preset)
    assert state.ledger.records() == d.ledger.records()
    for number in range(many):
        d.end(name(number))
    pauses = of(cmd.Pause, d.tick(2))
    assert all(each.status is Status.ENDED for each in d.ledger.programs.by_name.values())
    assert pauses


@given(st.lists(st.integers(-1, 12), min_size=1, max_size=12), st.sets(st.integers(0, 11)))
def test_a_parent_is_expected_back_when_the_last_below_it_has_ended(parents: list[int], ended: set[int]) -> None:
    d = reported([parent % len(parents) if parent >= 0 else None for parent in parents], asks=False)
    for number in ended:
        d.end(name(number))
    everyone, forecaster = d.ledger.programs.by_name, ProgramForecaster(d.ledger.estimates)

    def left_ns(program: Program) -> int:
        """By the definition, one level below the other."""
        below = [
            each
            for each in everyone.values()
            if each.parent_id == program.program_id and each.status is not Status.ENDED
        ]
        return max((own_ns(child) + (left_ns(child) if child.delegating else 0) for child in below), default=0)

    def own_ns(program: Program) -> int:
        return round(forecaster.ahead(program, program.kv_blocks or 1)[1] * forecaster.lifetime_ns)

    run(update_parent_etas(d.ledger, d.now_ns))
    for program in everyone.values():
        root = everyone[program.root_id]
        waits = program.delegating and program.root_id in d.ledger.programs.children
        if waits and Status.ENDED not in (root.status, program.status):
            assert program.back_at_ns == d.now_ns + left_ns(program)


def test_a_deep_tree_is_explained() -> None:
    many = 5000
    runs = [
        RunRecord(
            at="",
            program_id=name(n),
            parent_id=name(n - 1),
            began_ns=n,
            ended_ns=3 * many - n,
            turns=1,
            account=None,
        )
        for n in range(many)
    ]
    shown = tree.tree(runs, "p0")
    assert shown is not None
    lines = list(tree.lines(shown))
    assert f"{many} programs" in lines[0]
    assert len(json.dumps(lines)) < 1000 * many
    path = tree.critical_path(shown)
    assert (len(path), path[0].program_id, path[many - 1].program_id) == (2 * many - 1, "p0", name(many - 1))
