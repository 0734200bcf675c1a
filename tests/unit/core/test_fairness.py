"""Tenants take turns by weight over KV space-time, get their floors back, and nobody waits for ever."""

from collections import Counter
from dataclasses import replace

import pytest
from support.core_driver import Driver, fixed, of

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.tenancy import Tenancy, Tenant
from controlplane.core.policies.presets import PRESETS
from controlplane.core.scheduling.rules_and_state import ControlRules


def shared(window: int, **named: Tenant) -> Driver:
    """A node of ``window`` slots with those tenants and a pool of 1,000 blocks of a token each."""
    driver = Driver(fixed(window), ControlRules(tenancy=Tenancy(named=named), stall_s=86_400))
    driver.pool()
    return driver


def ask(d: Driver, name: str, account: str, turn: int = 1, tokens: int = 100) -> None:
    ids = {"program_id": name, "turn_id": f"{name}.{turn}"}
    d.send(d.gate(ev.TurnQueued, prompt_tokens=tokens, account=account, **ids))


def serve(d: Driver, seconds_each: float = 10.0) -> list[str]:
    """Who is let in now, runs a turn of so many seconds, and ends. The gate asks again, so that it is not lost."""
    let_in = d.admitted(1.0)
    for name in list(d.ledger.programs.queue)[:1]:
        ask(d, name, "")
    for name in let_in:
        d.submit(name, blocks=100)
    d.wait(seconds_each)
    for name in let_in:
        d.finish(name, prompt=100)
        d.end(name)
    return let_in


def test_of_two_that_wait_each_gets_slots_by_its_weight() -> None:
    d = shared(1, ours=Tenant(weight=3), theirs=Tenant())
    for number in range(60):
        ask(d, f"ours-{number}", "ours")
        ask(d, f"theirs-{number}", "theirs")
    served = Counter(name.partition("-")[0] for _ in range(60) for name in serve(d))
    assert served["ours"] == pytest.approx(3 * served["theirs"], rel=0.1)


def test_a_flood_does_not_go_before_another_tenants_newcomer() -> None:
    d = shared(1, ours=Tenant(), theirs=Tenant())
    for number in range(200):
        ask(d, f"flood-{number}", "ours")
    for _ in range(5):
        serve(d)
    d.wait(1000)  # all of the flood is overdue
    for number in range(200):
        ask(d, f"flood-{number}", "ours")
    ask(d, "alone", "theirs")
    assert "alone" in {name for _ in range(2) for name in serve(d)}


def test_unknown_accounts_share_the_default_tenant() -> None:
    d = shared(1, ours=Tenant())
    for account in ("", "somebody", "sha256:" + "0" * 64):
        ask(d, f"of-{account[:6]}", account)
    ask(d, "p", "ours")
    d.tick(1.0)
    assert {p.payer for p in d.ledger.programs.by_name.values()} == {"default", "ours"}
    assert set(d.ledger.accounts.by_tenant) == {"default", "ours"}


def test_a_key_belongs_to_the_tenant_whose_table_has_its_digest() -> None:
    digest = "sha256:" + "ab" * 32
    d = shared(1, ours=Tenant(keys=(digest.upper().replace("SHA256", "sha256"),)))
    ask(d, "p", digest)
    assert d.program("p").payer == "ours"


# Floors


def fill(d: Driver, tenant: str, programs: int, blocks: int = 240) -> list[str]:
    """So many programs of the tenant have slots, and each is between two turns."""
    names = [f"{tenant}-{number}" for number in range(programs)]
    for name in names:
        ask(d, name, tenant, tokens=blocks)
    let_in = [name for _ in range(programs) for name in d.admitted(1.0)]
    assert sorted(let_in) == names
    for name in names:
        d.submit(name, blocks=blocks)
        d.finish(name, prompt=blocks)
        d.start_tool(name)
    return names


def lending(**named: Tenant) -> Driver:
    preset = replace(PRESETS["thunderagent"], retention=PRESETS["fcfs"].retention)
    driver = Driver(preset, ControlRules(tenancy=Tenancy(named=named), stall_s=86_400))
    driver.pool()
    return driver


def test_a_share_that_was_lent_comes_back_at_a_turns_end_one_slot_at_a_time() -> None:
    d = lending(big=Tenant(weight=3), small=Tenant(share=0.25))
    fill(d, "big", 4)
    ask(d, "small-0", "small", tokens=240)
    commands = [command for _ in range(3) for command in d.tick(0.1)]
    (paused,) = of(cmd.Pause, commands)
    assert paused.reason == "tenant big gives back what it borrowed of tenant small's share"
    (admitted,) = of(cmd.Admit, commands + d.tick(6.0))
    assert admitted.program_id == "small-0"
    assert d.ledger.accounts.by_tenant["small"].given_back == 1


def test_no_more_comes_back_than_the_share() -> None:
    d = lending(big=Tenant(), small=Tenant(share=0.25))
    fill(d, "big", 4)
    for number in range(10):
        ask(d, f"small-{number}", "small", tokens=240)
    commands = [command for _ in range(30) for command in d.tick(0.2)]
    assert len(of(cmd.Pause, commands)) == 2, "the second one for the ten blocks that are still missing"
    assert len([each for each in of(cmd.Admit, commands) if each.program_id.startswith("small")]) == 2
