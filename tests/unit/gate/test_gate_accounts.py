"""Whom a gate vouches for, and whose turns it refuses: budgets that are spent."""

import hashlib
import json

import pytest
from test_gate_middleware import CHAT, Bench, settle

from controlplane.core.model.commands import Admit, Adopt, Refuse
from controlplane.core.model.events import TurnAbandoned, TurnQueued
from controlplane.core.model.types import seconds
from controlplane.gate.identity import BadIdentity, identify
from controlplane.gate.tenants import Tenants


def digest(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


@pytest.mark.parametrize(
    ("headers", "believed", "account"),
    [
        ({}, "", ""),
        ({"authorization": "Bearer sk-1"}, "", digest("sk-1")),
        ({"Authorization": "bearer  sk-1"}, "", digest("sk-1")),
        ({"x-api-key": "sk-2"}, "", digest("sk-2")),
        ({"api-key": "sk-3"}, "", digest("sk-3")),
        ({"authorization": "Bearer sk-1", "x-api-key": "sk-2"}, "", digest("sk-1")),
        ({"x-team": "red", "authorization": "Bearer sk-1"}, "", digest("sk-1")),
        ({"x-team": "red", "authorization": "Bearer sk-1"}, "x-team", "red"),
        ({"authorization": "Bearer sk-1"}, "x-team", digest("sk-1")),
        ({"x-penstock-tenant": "red"}, "", ""),
        ({"x-penstock-tenant": "red"}, "x-penstock-tenant", "red"),
    ],
)
def test_an_account_is_a_header_that_is_believed_or_the_digest_of_a_key(
    headers: dict[str, str], believed: str, account: str
) -> None:
    identity = identify([(name.encode(), value.encode()) for name, value in headers.items()], {}, believed)
    assert identity.account == account


def test_budgets_are_whole_numbers_above_zero() -> None:
    def of(turns: str) -> int:
        return identify([(b"x-penstock-budget-turns", turns.encode())], {}).budget_turns

    assert (of("40"), of("")) == (40, 0)
    for wrong in ("0", "-1", "1.5", "many", "1" * 20, "²"):
        with pytest.raises(BadIdentity, match="x-penstock-budget-turns: expected a whole number above 0"):
            of(wrong)


def test_two_keys_that_use_one_id_are_two_programs_and_no_claim_joins_them() -> None:
    tenants = Tenants(10)

    def name(**headers: str) -> str:
        named = [(key.replace("_", "-").encode(), value.encode()) for key, value in headers.items()]
        return tenants.identify([*named, (b"x-session-id", b"p")], {}).program_id

    assert name(authorization="Bearer ours", x_penstock_tenant="ours") == "p"
    spied = name(authorization="Bearer theirs", x_penstock_tenant="ours")
    assert spied == f"p@{digest('theirs')[:23]}"
    assert name(x_penstock_tenant="ours") == "p@ours"
    assert name(authorization="Bearer ours") == "p"


async def test_what_is_vouched_for_is_told_with_the_turn() -> None:
    bench = Bench()
    told = {"authorization": "Bearer sk", "x_penstock_budget_turns": "7", "x_penstock_budget_kv_token_s": "9"}
    exchange = await bench.held(**told)
    (queued,) = bench.of(TurnQueued)
    assert (queued.account, queued.budget_turns, queued.budget_kv_token_s) == (digest("sk"), 7, 9)
    bench.gate.on_command(Admit(program_id="p"))
    await exchange.task


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_spent_run_gets_a_429_with_the_reason_held_or_later_and_need_not_try_again(path: str) -> None:
    bench = Bench()
    held = await bench.held(path=path)
    bench.gate.on_command(Refuse(program_id="p", reason="its run has spent its budget of 2 turns"))
    await held.task
    later = await bench.answered(path=path)
    for exchange in (held, later):
        error = json.loads(exchange.body)["error"]
        assert (exchange.status, error["code"]) == (429, "budget_spent")
        assert error["message"] == "its run has spent its budget of 2 turns"
        assert exchange.headers["x-should-retry"] == "false"
        assert "retry-after" not in exchange.headers
    assert [event.reason for event in bench.of(TurnAbandoned)] == [error["message"]]
    assert bench.gate.counters.refused_budget == 2
    assert len(bench.of(TurnQueued)) == 1


async def test_a_tenant_whose_window_is_spent_hears_when_it_ends() -> None:
    bench = Bench()
    held = await bench.held()
    bench.gate.on_command(Refuse(program_id="p", ttl_ns=seconds(90.5), reason="spent"))
    await held.task
    assert (held.status, held.headers["retry-after"]) == (429, "91")
    assert "x-should-retry" not in held.headers
    bench.gate.on_command(Admit(program_id="p"))
    again = await bench.answered()
    assert again.status == 200


async def test_children_are_refused_with_their_root_and_a_running_turn_goes_on() -> None:
    bench = Bench()
    bench.gate.on_command(Admit(program_id="p"))
    bench.app.wait_for_disconnect = True
    running = bench.request()
    await settle()
    bench.gate.on_command(Adopt(program_id="child", parent_id="p"))
    bench.gate.on_command(Refuse(program_id="child", reason="spent"))
    child = await bench.answered({**CHAT, "program_id": "child"})
    root = await bench.answered()
    assert (child.status, root.status) == (429, 429)
    assert not running.task.done()
    running.leave()
    await running.task
    assert running.status == 200


async def test_a_refusal_is_of_one_program_only() -> None:
    bench = Bench()
    assert bench.gate.on_command(Refuse(program_id="stranger", reason="spent"))
    bench.gate.on_command(Admit(program_id="p"))
    exchange = await bench.answered()
    assert exchange.status == 200
