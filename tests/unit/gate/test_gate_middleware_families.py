"""Parents and tenants as requests name them, through the middleware."""

import asyncio
import re

import pytest
from test_gate_middleware import CHAT, Bench, Exchange, run, settle

from controlplane.core.commands import Admit
from controlplane.core.events import TurnQueued

NAMELESS = {name: value for name, value in CHAT.items() if name != "program_id"}
pytestmark = pytest.mark.asyncio


async def answered(bench: Bench, program: str, **headers: str) -> Exchange:
    """A turn of an admitted program."""
    bench.gate.on_command(Admit(program_id=program))
    exchange = bench.request(CHAT, x_penstock_program_id=program, **headers)
    await exchange.task
    return exchange


def asked(bench: Bench) -> list[tuple[str, str]]:
    return [(event.program_id, event.parent_id) for event in bench.events if isinstance(event, TurnQueued)]


async def test_turn_ids_cannot_be_guessed() -> None:
    async def story(bench: Bench) -> None:
        told = [(await answered(bench, "p")).headers["x-penstock-turn-id"] for _ in range(50)]
        assert len(set(told)) == 50
        assert all(re.fullmatch("[0-9a-f]{32}", turn) for turn in told)
        assert len({turn[:8] for turn in told}) == 50, "nothing of one tells of the next"

    await run(story)


async def test_ten_requests_that_name_an_active_strangers_program_as_parent_do_not_enter() -> None:
    async def story(bench: Bench) -> None:
        await answered(bench, "parent")
        strangers = [
            bench.request(CHAT, x_penstock_program_id=f"s{number}", x_penstock_parent_id="parent")
            for number in range(10)
        ]
        await settle()
        assert [exchange.sent for exchange in strangers] == [[]] * 10
        assert asked(bench) == [(f"s{number}", "") for number in range(10)]
        for number, exchange in enumerate(strangers):
            bench.gate.on_command(Admit(program_id=f"s{number}"))
            await exchange.task
        assert [request.identity.parent_id for request in bench.app.requests] == [""] * 11

    await run(story)


async def test_a_child_that_carries_a_turn_of_its_parents_enters() -> None:
    async def story(bench: Bench) -> None:
        turn = (await answered(bench, "parent")).headers["x-penstock-turn-id"]
        told = {"x_penstock_parent_id": "parent", "x_penstock_parent_turn": turn}
        child = bench.request(CHAT, x_penstock_program_id="child", **told)
        await child.task
        assert (child.status, bench.app.requests[-1].identity.parent_id) == (200, "parent")
        body = {**CHAT, "custom_params": {"program_id": "second", "parent_id": "parent", "parent_turn": turn}}
        body.pop("program_id", None)
        second = bench.request(body)
        await second.task
        assert (second.status, asked(bench)) == (200, [])

    await run(story)


async def test_two_tenants_that_use_one_id_are_two_programs() -> None:
    async def story(bench: Bench) -> None:
        ours = await answered(bench, "p", x_penstock_tenant="ours")
        for tenant in ("theirs", ""):
            exchange = bench.request(CHAT, x_penstock_program_id="p", x_penstock_tenant=tenant)
            await settle()
            assert exchange.sent == [], "it has no slot"
            exchange.leave()
            await settle()
        assert asked(bench) == [("p@theirs", ""), ("p@", "")]
        again = bench.request(CHAT, x_penstock_program_id="p", x_penstock_tenant="ours")
        await again.task
        turn = ours.headers["x-penstock-turn-id"]
        named = {"x_penstock_parent_id": "p", "x_penstock_parent_turn": turn}
        stolen = bench.request(CHAT, x_penstock_program_id="child", x_penstock_tenant="theirs", **named)
        await settle()
        assert (stolen.sent, asked(bench)[2:]) == ([], [("child", "")]), "the proof is another tenant's"
        stolen.leave()
        await asyncio.wait((stolen.task,))

    await run(story)


async def test_a_long_id_of_another_tenant_becomes_a_digest() -> None:
    async def story(bench: Bench) -> None:
        await answered(bench, "p" * 250, x_penstock_tenant="ours")
        exchange = bench.request(CHAT, x_penstock_program_id="p" * 250, x_penstock_tenant="t" * 250)
        await settle()
        ((name, _),) = asked(bench)
        assert name.startswith("sha256-")
        exchange.leave()
        await asyncio.wait((exchange.task,))

    await run(story)


async def test_claude_codes_sub_agents_ride_their_sessions_slot_by_its_name() -> None:
    async def story(bench: Bench) -> None:
        session = {"x_claude_code_session_id": "session"}
        first = bench.request(NAMELESS, **session)
        await settle()
        bench.gate.on_command(Admit(program_id="session"))
        await first.task
        before = asked(bench)
        child = bench.request(NAMELESS, **session, x_claude_code_agent_id="a1")
        await child.task
        assert (child.status, asked(bench)) == (200, before)
        identity = bench.app.requests[-1].identity
        assert (identity.program_id, identity.parent_id) == ("session/a1", "session")
        below = bench.request(NAMELESS, **session, x_claude_code_agent_id="a2", x_claude_code_parent_agent_id="a1")
        await below.task
        assert bench.app.requests[-1].identity.parent_id == "session", "the root, as with every child of a child"
        stranger = bench.request(NAMELESS, x_claude_code_session_id="other", x_claude_code_agent_id="a1")
        await settle()
        assert stranger.sent == [], "whose session has no slot"
        bench.gate.on_command(Admit(program_id="other"))
        await stranger.task

    await run(story)
