"""No tenant reaches another's programs, or keeps them out, however many ids it sends and whatever it claims."""

import asyncio

import pytest
from gate_virtual_time import Beat, Bench, in_virtual_time, ticket

from controlplane.core.model.commands import Admit, Adopt, Refuse
from controlplane.core.model.events import TurnQueued
from controlplane.core.model.types import seconds
from controlplane.gate import Refused
from controlplane.gate.identity import Identity
from controlplane.gate.tenants import Tenants


def named(tenants: Tenants, program_id: str, **whose: str) -> str:
    """What the gate calls that program of theirs."""
    return tenants.scope(Identity(program_id=program_id, **whose)).program_id


def test_who_claims_the_name_of_one_who_is_vouched_for_is_somebody_else() -> None:
    tenants = Tenants(10, "x-team")
    assert named(tenants, "p", account="red") == "p"
    assert named(tenants, "p", tenant="red") == "p@red"
    assert named(tenants, "p", account="red") == "p"
    assert named(tenants, "q", tenant="red") == "q"
    assert named(tenants, "q", account="red") == "q@red"
    assert tenants.share("red", "p", "q@red"), "both are the vouched one's"
    assert tenants.share("red", "q", "p@red"), "both are the claimed one's"
    assert not tenants.share("red", "p", "q")


def test_thousands_of_ids_have_no_id_forgotten_whose_program_is_in_use() -> None:
    live = {f"live-{number}" for number in range(200)}
    tenants = Tenants(300, in_use=live.__contains__)
    for name in sorted(live):
        named(tenants, name, account="ours")
    for number in range(5_000):
        named(tenants, f"flood-{number}", account="theirs")
    assert all(named(tenants, name, account="ours") == name for name in live)
    assert named(tenants, "live-0", account="theirs") == "live-0@theirs"


def test_where_all_ids_are_in_use_the_table_grows_and_none_is_lost() -> None:
    tenants = Tenants(2, in_use=lambda name: True)
    for number in range(200):
        named(tenants, f"p{number}", account="ours")
    assert all(named(tenants, f"p{number}", account="theirs") == f"p{number}@theirs" for number in range(200))


@in_virtual_time(max_programs=8)
async def test_the_gate_knows_which_ids_are_in_use(bench: Bench) -> None:
    tenants = bench.gate.tenants
    for name in ("granted", "held", "parent", "child", "gone"):
        assert named(tenants, name, account="ours") == name
    bench.gate.on_command(Admit(program_id="granted"))
    bench.gate.on_command(Admit(program_id="parent"))
    bench.gate.on_command(Adopt(program_id="child", parent_id="parent"))
    waiting = bench.enter("held/1")
    await bench.settle()
    for number in range(50):
        named(tenants, f"flood-{number}", account="theirs")
    for name in ("granted", "held", "parent", "child"):
        assert named(tenants, name, account="theirs") == f"{name}@theirs"
    assert named(tenants, "gone", account="theirs") == "gone", "it was nobody's any more"
    waiting.cancel()


@in_virtual_time(max_held=4, hard_factor=4)
async def test_a_flood_that_fills_the_queue_keeps_no_other_account_out(bench: Bench) -> None:
    waiting = [bench.enter(f"flood-{number}/1", account="theirs") for number in range(4)]
    await bench.settle()
    with pytest.raises(Refused) as refused:
        await bench.gate.enter(ticket("flood-4/1", account="theirs"))
    assert (refused.value.status, refused.value.code) == (429, "queue_full")
    waiting += [bench.enter(f"small-{number}/1", account="ours") for number in range(2)]
    await bench.settle()
    assert not any(task.done() for task in waiting)
    for account in ("ours", "theirs"):  # each has its even part of four
        with pytest.raises(Refused):
            await bench.gate.enter(ticket(f"{account}/1", account=account))
    for task in waiting:
        task.cancel()
    await bench.settle()
    again = bench.enter("flood-5/1", account="theirs")
    await bench.settle()
    assert not again.done(), "who left is not counted any more"
    again.cancel()


@in_virtual_time(max_held=4, hard_factor=4)
async def test_accounts_that_somebody_makes_up_have_no_more_room_than_one(bench: Bench) -> None:
    waiting = [bench.enter(f"p{number}/1", account=f"key-{number}") for number in range(50)]
    await bench.settle()
    assert bench.gate.health()["held_turns"] == 4
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@in_virtual_time()
async def test_a_daemon_is_asked_again_for_who_was_refused_for_a_time(bench: Bench) -> None:
    """Its operator may have raised the budget; a client that comes too soon is answered here."""

    async def refused(name: str) -> Refused:
        with pytest.raises(Refused) as found:
            await bench.gate.enter(ticket(name))
        return found.value

    waiting = bench.enter("p/1")
    await bench.settle()
    bench.gate.on_command(Refuse(program_id="p", ttl_ns=seconds(3600), reason="spent"))
    with pytest.raises(Refused):
        await waiting
    await bench.heartbeats_for(5)
    assert (await refused("p/2")).retry_after_s == 3595
    await bench.heartbeats_for(6)
    asked = len(bench.of(TurnQueued))
    again = bench.enter("p/3")
    await bench.settle()
    assert len(bench.of(TurnQueued)) == asked + 1
    bench.gate.on_command(Admit(program_id="p"))
    assert (await again).hold_ns == 0


@in_virtual_time()
async def test_without_a_daemon_a_refusal_stands(bench: Bench) -> None:
    waiting = bench.enter("p/1")
    await bench.settle()
    bench.gate.on_command(Refuse(program_id="p", ttl_ns=seconds(3600), reason="spent"))
    with pytest.raises(Refused):
        await waiting
    await asyncio.sleep(60)
    with pytest.raises(Refused):
        await bench.gate.enter(ticket("p/2"))
    bench.gate.on_heartbeat(Beat())
