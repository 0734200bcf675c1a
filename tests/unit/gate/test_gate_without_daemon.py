"""What the gate does when the daemon falls silent, and when it is back."""

import asyncio

from gate_virtual_time import Beat, Bench, in_virtual_time, ticket

from controlplane.core.model.commands import Admit
from controlplane.core.model.events import TurnQueued
from controlplane.core.model.types import seconds
from controlplane.gate import Mode
from controlplane.gate.authority import Authority
from controlplane.gate.limits import GateLimits


@in_virtual_time()
async def test_after_a_loss_the_last_limit_is_kept_then_one_slot_a_second_opens(bench: Bench) -> None:
    bench.gate.on_heartbeat(Beat(limit=2))
    tasks = {number: bench.enter(f"p{number}/1") for number in range(6)}

    def inside() -> list[int]:
        return [number for number, task in tasks.items() if task.done()]

    await asyncio.sleep(4.9)
    assert inside() == []
    await asyncio.sleep(0.2)
    assert inside() == [0, 1], "the longest held first, up to the last limit"
    assert bench.gate.health()["mode"] == "keeping"
    await asyncio.sleep(29)
    assert inside() == [0, 1]
    await asyncio.sleep(1)
    assert inside() == [0, 1, 2]
    assert bench.gate.health()["mode"] == "opening"
    await asyncio.sleep(1)
    assert inside() == [0, 1, 2, 3]
    await asyncio.sleep(2)
    assert inside() == [0, 1, 2, 3, 4, 5]
    assert bench.gate.counters.released_locally == 6
    assert bench.gate.counters.daemon_lost == 1


@in_virtual_time()
async def test_while_lost_a_slot_that_comes_free_goes_to_whoever_waited_longest(bench: Bench) -> None:
    bench.gate.on_heartbeat(Beat(limit=1))
    await asyncio.sleep(6)
    first = ticket("a/1")
    assert bench.gate.try_enter(first) is not None, "fewer have a slot than the limit"
    second, third = bench.enter("b/1"), bench.enter("c/1")
    await bench.settle()
    bench.gate.leave(first)
    await bench.settle()
    assert not second.done(), "its tool runs: it will be back"
    bench.gate.end_program("a")
    await bench.settle()
    assert second.done()
    assert not third.done()
    third.cancel()


@in_virtual_time()
async def test_while_lost_tools_that_run_make_no_room_for_more_programs(bench: Bench) -> None:
    """Each program's turns are short and its tools long: the limit is of programs, not of turns at a time."""
    bench.gate.on_heartbeat(Beat(limit=3))
    await asyncio.sleep(6)
    entered = set()
    for second in range(24):  # of the thirty in which the limit is kept
        for number in range(20):
            turn = ticket(f"p{number}/{second}")
            if bench.gate.try_enter(turn) is not None:
                entered.add(number)
                bench.gate.leave(turn)
        await asyncio.sleep(1)
    assert entered == {0, 1, 2}
    assert bench.gate.health()["mode"] == "keeping"


@in_virtual_time()
async def test_while_lost_granted_programs_pass(bench: Bench) -> None:
    bench.gate.on_heartbeat(Beat(limit=2))
    bench.gate.on_command(Admit(program_id="granted"))
    await asyncio.sleep(6)
    assert bench.gate.try_enter(ticket("a/1")) is not None
    assert bench.gate.try_enter(ticket("granted/1")) is not None
    assert bench.gate.try_enter(ticket("b/1")) is None


@in_virtual_time()
async def test_while_lost_no_limit_means_none(bench: Bench) -> None:
    bench.gate.on_heartbeat(Beat(limit=0))
    await asyncio.sleep(6)
    for number in range(100):
        assert bench.gate.try_enter(ticket(f"p{number}/1")) is not None


@in_virtual_time()
async def test_a_daemon_that_is_back_decides_again_and_is_asked_for_all_that_is_held(bench: Bench) -> None:
    bench.gate.on_heartbeat(Beat(limit=1))
    await asyncio.sleep(6)
    running = ticket("a/1")
    assert bench.gate.try_enter(running) is not None
    waiting = bench.enter("b/1")
    await bench.settle()
    assert bench.of(TurnQueued) == [], "nobody is there to ask"
    bench.gate.on_heartbeat(Beat(boot_id="boot-2", limit=1))
    assert [event.turn_id for event in bench.of(TurnQueued)] == ["b/1"]
    assert bench.gate.health()["mode"] == "governed"
    bench.gate.leave(running)
    await bench.settle()
    assert not waiting.done(), "only the daemon lets turns in now"
    assert bench.gate.try_enter(ticket("a/2")) is None, "a grant given without the daemon has ended"
    bench.gate.on_command(Admit(program_id="b"))
    await waiting


@in_virtual_time()
async def test_a_grant_given_without_the_daemon_is_no_claim_to_a_slot(bench: Bench) -> None:
    bench.gate.on_heartbeat(Beat(limit=2))
    bench.gate.on_command(Admit(program_id="granted"))
    await asyncio.sleep(6)
    assert bench.gate.try_enter(ticket("let-in/1")) is not None
    assert bench.granted == ["granted"], "the daemon asks for this as soon as it is back"
    bench.gate.on_heartbeat(Beat(boot_id="boot-2", limit=2))
    bench.gate.on_command(Admit(program_id="let-in"))
    assert bench.granted == ["granted", "let-in"]


@in_virtual_time()
async def test_a_restarted_daemon_is_asked_at_once_even_if_its_lease_never_ended(bench: Bench) -> None:
    waiting = bench.enter("p/1")
    await asyncio.sleep(0.5)
    bench.gate.on_heartbeat(Beat(boot_id="boot-2"))
    assert len(bench.of(TurnQueued)) == 2
    waiting.cancel()


def test_no_heartbeat_can_claim_a_lease_for_ever() -> None:
    authority = Authority(GateLimits())
    authority.renew(Beat(lease_ttl_ns=1 << 62), 0)
    assert authority.mode(seconds(599)) is Mode.GOVERNED
    assert authority.mode(seconds(600)) is Mode.KEEPING


def test_a_lease_is_never_shorter_than_a_second_of_the_wall() -> None:
    authority = Authority(GateLimits(time_scale=60.0))
    authority.renew(Beat(lease_ttl_ns=seconds(5)), 0)
    assert authority.mode(seconds(59)) is Mode.GOVERNED
    assert authority.mode(seconds(60)) is Mode.KEEPING


def test_the_lease_is_counted_from_receipt_not_from_the_hand_over() -> None:
    authority = Authority(GateLimits())
    authority.renew(Beat(), seconds(10))
    authority.renew(Beat(), seconds(3))
    assert authority.mode(seconds(14.9)) is Mode.GOVERNED
