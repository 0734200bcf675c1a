"""A turn's name that came with its request, from a gate before this one or from a forger."""

import pytest
from test_gate_middleware import Bench, Exchange, settle

from controlplane.core.model.commands import Admit
from controlplane.core.model.events import TurnQueued
from controlplane.gate.requests import new_turn_id, turn_id_from

HEADER = "x-penstock-turn-id"


def named(bench: Bench, turn_id: str, program: str = "p", **headers: str) -> Exchange:
    return bench.request(x_penstock_turn_id=turn_id, x_penstock_program_id=program, **headers)


async def answered(bench: Bench, turn_id: str, program: str = "p") -> str:
    """The name under which the turn of an admitted program ran."""
    bench.gate.on_command(Admit(program_id=program))
    exchange = named(bench, turn_id, program)
    await exchange.task
    request = bench.app.requests[-1]
    assert request is not None
    assert exchange.headers[HEADER] == request.ticket.turn_id
    return request.ticket.turn_id


async def test_a_turn_keeps_the_name_that_it_came_with() -> None:
    bench = Bench()
    turn_id = new_turn_id()
    exchange = named(bench, turn_id)
    await settle()
    assert [event.turn_id for event in bench.of(TurnQueued)] == [turn_id]
    bench.gate.on_command(Admit(program_id="p"))
    await exchange.task
    assert exchange.headers[HEADER] == turn_id
    assert bench.gate.health()["running_turns"] == 0


@pytest.mark.parametrize(
    "forged", ["", "7", "g" * 32, "A" * 32, "0" * 31, "0" * 33, "0" * 31 + "\n", "0" * 31 + "é"]
)
async def test_a_name_that_no_gate_would_make_is_not_taken(forged: str) -> None:
    bench = Bench()
    turn_id = await answered(bench, forged)
    assert turn_id != forged
    assert turn_id_from([(HEADER.encode(), turn_id.encode())]) == turn_id


async def test_a_name_that_is_here_is_not_taken_again() -> None:
    bench = Bench()
    turn_id = new_turn_id()
    bench.app.wait_for_disconnect = True
    first, again = named(bench, turn_id), named(bench, turn_id)
    other = named(bench, turn_id, "stranger")
    await settle()
    asked = [event.turn_id for event in bench.of(TurnQueued)]
    assert asked[0] == turn_id
    assert len(set(asked)) == 3
    for program in ("p", "stranger"):
        bench.gate.on_command(Admit(program_id=program))
    await settle()
    while_running = named(bench, turn_id)
    await settle()
    exchanges = (first, again, other, while_running)
    assert len({exchange.headers[HEADER] for exchange in exchanges}) == 4
    for exchange in exchanges:
        exchange.leave()
        await exchange.task


async def test_a_program_cannot_hide_its_turns_behind_the_name_of_one_that_ended() -> None:
    bench = Bench()
    turn_id = new_turn_id()
    assert await answered(bench, turn_id) == turn_id
    assert await answered(bench, turn_id) != turn_id


async def test_a_forged_name_proves_parenthood_of_the_program_that_it_was_sent_for_and_of_no_other() -> None:
    bench = Bench()
    await answered(bench, new_turn_id(), "parent")
    forged = new_turn_id()
    assert await answered(bench, forged, "forger") == forged
    child = named(bench, "", "child", x_penstock_parent_id="parent", x_penstock_parent_turn=forged)
    await settle()
    assert child.sent == [], "it queues: whoever picks a name for a turn of his own proves nothing of others"
    assert bench.gate.health()["counters"]["unproven"] >= 1  # type: ignore[index]
    bench.gate.on_command(Admit(program_id="child"))
    await child.task
