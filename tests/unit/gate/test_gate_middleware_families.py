"""Parents and tenants as requests name them, through the middleware."""

import asyncio
import re

from test_gate_middleware import CHAT, Bench, Exchange

from controlplane.core.model.commands import Admit
from controlplane.core.model.events import TurnQueued

NAMELESS = {name: value for name, value in CHAT.items() if name != "program_id"}


async def answered(bench: Bench, program: str, **headers: str) -> Exchange:
    """A turn of an admitted program."""
    bench.gate.on_command(Admit(program_id=program))
    return await bench.answered(x_penstock_program_id=program, **headers)


def asked(bench: Bench) -> list[tuple[str, str]]:
    return [(event.program_id, event.parent_id) for event in bench.of(TurnQueued)]


async def test_turn_ids_cannot_be_guessed() -> None:
    bench = Bench()
    told = [(await answered(bench, "p")).headers["x-penstock-turn-id"] for _ in range(50)]
    assert len(set(told)) == 50
    assert all(re.fullmatch("[0-9a-f]{32}", turn) for turn in told)
    assert len({turn[:8] for turn in told}) == 50, "nothing of one tells of the next"


async def test_a_child_that_carries_a_turn_of_its_parents_enters() -> None:
    bench = Bench()
    turn = (await answered(bench, "parent")).headers["x-penstock-turn-id"]
    told = {"x_penstock_parent_id": "parent", "x_penstock_parent_turn": turn}
    child = await bench.answered(x_penstock_program_id="child", **told)
    assert (child.status, bench.app.requests[-1].identity.parent_id) == (200, "parent")
    body = {**CHAT, "custom_params": {"program_id": "second", "parent_id": "parent", "parent_turn": turn}}
    body.pop("program_id", None)
    second = await bench.answered(body)
    assert (second.status, asked(bench)) == (200, [])


async def test_a_long_id_of_another_tenant_becomes_a_digest() -> None:
    bench = Bench()
    await answered(bench, "p" * 250, x_penstock_tenant="ours")
    exchange = await bench.held(x_penstock_program_id="p" * 250, x_penstock_tenant="t" * 250)
    ((name, _),) = asked(bench)
    assert name.startswith("sha256-")
    exchange.leave()
    await asyncio.wait((exchange.task,))


async def test_claude_codes_sub_agents_ride_their_sessions_slot_by_its_name() -> None:
    bench = Bench()
    session = {"x_claude_code_session_id": "session"}
    first = await bench.held(NAMELESS, **session)
    bench.gate.on_command(Admit(program_id="session"))
    await first.task
    before = asked(bench)
    child = await bench.answered(NAMELESS, **session, x_claude_code_agent_id="a1")
    assert (child.status, asked(bench)) == (200, before)
    identity = bench.app.requests[-1].identity
    assert (identity.program_id, identity.parent_id) == ("session/a1", "session")
    await bench.answered(NAMELESS, **session, x_claude_code_agent_id="a2", x_claude_code_parent_agent_id="a1")
    assert bench.app.requests[-1].identity.parent_id == "session", "the root, as with every child of a child"
    # whose session has no slot
    stranger = await bench.held(NAMELESS, x_claude_code_session_id="other", x_claude_code_agent_id="a1")
    bench.gate.on_command(Admit(program_id="other"))
    await stranger.task
