"""Who may ride a parent's slot at the gate: the announced, and those who prove it."""

import asyncio

import pytest
from gate_virtual_time import Beat, Bench, in_virtual_time, ticket

from controlplane.core.model.commands import Admit, Adopt, Pause
from controlplane.core.model.events import ProgramArrived, TurnQueued
from controlplane.gate.programs import Proofs


def active_parent(bench: Bench, *, leaves: bool = True) -> None:
    bench.gate.on_command(Admit(program_id="parent"))
    turn = ticket("parent/1")
    assert bench.gate.try_enter(turn) is not None
    if leaves:
        bench.gate.leave(turn)


@in_virtual_time()
async def test_ten_strangers_who_name_an_active_program_as_parent_wait_like_anybody(bench: Bench) -> None:
    active_parent(bench)
    waiting = [
        bench.enter(f"s{number}/1", parent_id="parent", parent_turn=guess)
        for number, guess in enumerate(["", "parent", "parent/2", "s1/1", *["guessed"] * 6])
    ]
    await bench.settle()
    assert not any(task.done() for task in waiting)
    assert [(event.program_id, event.parent_id) for event in bench.of(TurnQueued)] == [
        (f"s{number}", "") for number in range(10)
    ]
    assert bench.of(ProgramArrived) == []
    assert (bench.gate.counters.unproven, bench.gate.health()["held_programs"]) == (10, 10)
    bench.gate.on_command(Admit(program_id="s3"))
    await bench.settle()
    assert [task.done() for task in waiting].index(True) == 3


@in_virtual_time()
async def test_a_turn_of_its_parent_proves_a_child_from_then_on(bench: Bench) -> None:
    active_parent(bench)
    assert bench.gate.try_enter(ticket("child/1", parent_id="parent", parent_turn="parent/1")) is not None
    assert bench.gate.try_enter(ticket("child/2")) is not None
    assert bench.gate.try_enter(ticket("grandchild/1", parent_id="child", parent_turn="child/1")) is not None
    assert bench.sent == [
        ProgramArrived(program_id="child", parent_id="parent"),
        ProgramArrived(program_id="grandchild", parent_id="parent"),
    ]
    assert bench.gate.parent_of("child") == "parent"
    assert bench.gate.health()["busy_programs"] == 1
    bench.gate.on_command(Pause(program_id="parent"))
    assert bench.gate.try_enter(ticket("child/3")) is None


@in_virtual_time()
async def test_where_children_have_slots_of_their_own_one_asks_and_its_proof_is_told_once(bench: Bench) -> None:
    active_parent(bench)
    bench.gate.on_heartbeat(Beat(slots_for_children=True))
    for turn, proof in (("child/1", "parent/1"), ("stranger/1", "guessed")):
        assert bench.gate.try_enter(ticket(turn, parent_id="parent", parent_turn=proof)) is None
    waiting = bench.enter("child/2", parent_id="parent", parent_turn="parent/1")
    await bench.settle()
    assert [(told.program_id, told.parent_id) for told in bench.of(ProgramArrived)] == [("child", "parent")]
    assert (bench.gate.parent_of("child"), waiting.done()) == ("", False)
    bench.gate.on_command(Admit(program_id="child"))
    await waiting
    assert bench.gate.try_enter(ticket("child/3", parent_id="parent", parent_turn="parent/1")) is not None
    assert len(bench.of(ProgramArrived)) == 1


@in_virtual_time()
async def test_a_child_that_was_announced_needs_no_proof(bench: Bench) -> None:
    active_parent(bench)
    assert bench.gate.on_command(Adopt(program_id="child", parent_id="parent"))
    assert bench.gate.try_enter(ticket("child/1", parent_id="parent")) is not None
    assert (bench.sent, bench.gate.counters.unproven) == ([], 0)


@in_virtual_time()
async def test_a_child_that_is_announced_while_it_is_held_goes_at_once(bench: Bench) -> None:
    active_parent(bench)
    waiting = [bench.enter(f"child/{turn}", parent_id="parent") for turn in range(2)]
    stranger = bench.enter("stranger/1", parent_id="parent")
    await bench.settle()
    bench.gate.on_command(Adopt(program_id="child", parent_id="parent", reason="its agent said so"))
    assert [entered.reason for entered in await asyncio.gather(*waiting)] == ["its agent said so"] * 2
    assert not stranger.done()
    for turn in range(2):
        bench.gate.leave(ticket(f"child/{turn}"))
    health = bench.gate.health()
    assert (health["running_turns"], health["busy_programs"]) == (0, 0)
    stranger.cancel()


@in_virtual_time()
async def test_a_child_whose_parent_waits_too_goes_with_its_grant(bench: Bench) -> None:
    waiting = [bench.enter("child/1", parent_id="parent"), bench.enter("parent/1")]
    await bench.settle()
    bench.gate.on_command(Adopt(program_id="child", parent_id="parent"))
    await bench.settle()
    assert not any(task.done() for task in waiting)
    assert [turn.parent_id for turn in bench.gate.state().held_turns] == ["parent", ""]
    bench.gate.on_command(Admit(program_id="parent"))
    await asyncio.gather(*waiting)


@in_virtual_time()
async def test_a_slot_that_the_child_has_goes_over_to_its_root(bench: Bench) -> None:
    bench.gate.on_command(Admit(program_id="child"))
    running = ticket("child/1")
    assert bench.gate.try_enter(running) is not None
    held = bench.enter("parent/1")
    await bench.settle()
    bench.gate.on_command(Adopt(program_id="child", parent_id="parent"))
    await held
    assert bench.granted == ["parent"]
    assert bench.gate.try_enter(ticket("child/2")) is not None
    bench.gate.leave(running)
    bench.gate.on_command(Pause(program_id="parent"))
    assert bench.gate.try_enter(ticket("child/3")) is None


@in_virtual_time()
async def test_without_the_daemon_proofs_and_what_was_announced_hold(bench: Bench) -> None:
    await bench.heartbeats_for(1, limit=1)
    active_parent(bench, leaves=False)
    bench.gate.on_command(Adopt(program_id="announced", parent_id="parent"))
    await asyncio.sleep(10)
    assert bench.gate.health()["mode"] == "keeping"
    assert bench.gate.try_enter(ticket("announced/1")) is not None
    assert bench.gate.try_enter(ticket("proven/1", parent_id="parent", parent_turn="parent/1")) is not None
    assert bench.gate.try_enter(ticket("stranger/1", parent_id="parent")) is None


@in_virtual_time()
async def test_another_tenants_programs_are_nobodys_children_here(bench: Bench) -> None:
    active_parent(bench)
    assert bench.gate.tenants.share("ours", "parent")
    assert bench.gate.tenants.share("theirs", "child")
    bench.gate.on_command(Adopt(program_id="child", parent_id="parent", tenant="ours"))
    bench.gate.on_command(Adopt(program_id="child", parent_id="parent"))
    assert bench.gate.try_enter(ticket("child/1")) is None
    bench.gate.on_command(Adopt(program_id="mine", parent_id="parent", tenant="ours"))
    assert bench.gate.try_enter(ticket("mine/1")) is not None


def test_proofs_are_few_and_the_latest() -> None:
    proofs = Proofs(most_programs=3)
    for number in range(20):
        proofs.remember("p", f"p/{number}")
    assert [number for number in range(20) if proofs.prove("p", f"p/{number}")] == list(range(12, 20))
    for name in ("q", "r", "p", "s"):
        proofs.remember(name, f"{name}/x")
    assert [name for name in "pqrs" if proofs.prove(name, f"{name}/x")] == ["p", "r", "s"]
    proofs.forget("p")
    assert not proofs.prove("p", "p/x")


@pytest.mark.parametrize("anonymous", [True, False])
@in_virtual_time()
async def test_of_requests_that_name_nobody_no_proof_is_kept(bench: Bench, anonymous: bool) -> None:
    bench.gate.on_command(Admit(program_id="p"))
    await bench.gate.enter(ticket("p/1", anonymous=anonymous))
    entered = bench.gate.try_enter(ticket("child/1", parent_id="p", parent_turn="p/1"))
    assert (entered is None) is anonymous


def ended_family(bench: Bench) -> None:
    """A child that rode its parent's slot, whose run is over."""
    active_parent(bench)
    bench.gate.on_command(Adopt(program_id="child", parent_id="parent"))
    turn = ticket("child/1")
    assert bench.gate.try_enter(turn) is not None
    bench.gate.leave(turn)
    bench.gate.on_command(Pause(program_id="parent", reason="ended"))


@in_virtual_time()
async def test_an_ended_childs_name_may_be_another_runs_childs(bench: Bench) -> None:
    ended_family(bench)
    bench.gate.on_command(Admit(program_id="other"))
    bench.gate.on_command(Adopt(program_id="child", parent_id="other"))
    assert bench.gate.parent_of("child") == "other"
    assert bench.gate.try_enter(ticket("child/2")) is not None
    bench.gate.on_command(Pause(program_id="other"))
    assert bench.gate.try_enter(ticket("child/3")) is None


@in_virtual_time()
async def test_its_held_turn_goes_with_its_new_parents_grant(bench: Bench) -> None:
    ended_family(bench)
    waiting = [bench.enter("child/2"), bench.enter("parent/2")]
    await bench.settle()
    bench.gate.on_command(Admit(program_id="other"))
    bench.gate.on_command(Adopt(program_id="child", parent_id="other"))
    await bench.settle()
    assert [task.done() for task in waiting] == [True, False]
    assert bench.gate.health()["held_turns"] == 1
    bench.gate.on_command(Admit(program_id="parent"))
    await bench.settle()
    assert waiting[1].done()


@in_virtual_time()
async def test_a_childs_name_stays_its_parents_while_that_runs(bench: Bench) -> None:
    active_parent(bench)
    bench.gate.on_command(Adopt(program_id="child", parent_id="parent"))
    bench.gate.on_command(Admit(program_id="other"))
    bench.gate.on_command(Adopt(program_id="child", parent_id="other"))
    assert bench.gate.parent_of("child") == "parent"


@in_virtual_time()
async def test_a_turn_of_its_new_parent_proves_it_too(bench: Bench) -> None:
    ended_family(bench)
    bench.gate.on_command(Admit(program_id="other"))
    assert bench.gate.try_enter(ticket("other/1")) is not None
    assert bench.gate.try_enter(ticket("child/2", parent_id="other", parent_turn="guessed")) is None
    assert bench.gate.try_enter(ticket("child/3", parent_id="other", parent_turn="other/1")) is not None
    assert bench.of(ProgramArrived)[-1] == ProgramArrived(program_id="child", parent_id="other")
