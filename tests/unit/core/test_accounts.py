"""What tenants and runs are charged with, and what happens when a budget is spent."""

import pytest
from support.core_driver import Driver, fixed, of

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.tenancy import Exhausted, Tenancy, Tenant
from controlplane.core.model.types import Status
from controlplane.core.scheduling.controller import Controller
from controlplane.core.scheduling.rules_and_state import ControlRules


def node(window: int = 0, **named: Tenant) -> Driver:
    driver = Driver(fixed(window), ControlRules(tenancy=Tenancy(named=named)))
    driver.pool(block_tokens=16)
    return driver


def ask(d: Driver, name: str, turn: int = 1, account: str = "ours", parent: str = "", **budgets: int) -> None:
    ids = {"program_id": name, "turn_id": f"{name}.{turn}", "parent_id": parent}
    d.send(d.gate(ev.TurnQueued, prompt_tokens=160, account=account, **ids, **budgets))


def turn(d: Driver, name: str, number: int = 1, lasts_s: float = 10.0, **asked: object) -> list[cmd.Command]:
    """One turn of 160 tokens; what is decided at its end."""
    ask(d, name, number, **asked)  # type: ignore[arg-type]
    d.tick()
    d.submit(name, f"{name}.{number}", blocks=10)
    d.wait(lasts_s)
    d.finish(name, f"{name}.{number}", prompt=160)
    return d.tick()


def test_what_was_expected_gives_way_to_what_is_held() -> None:
    d = node(1, ours=Tenant())
    turn(d, "p")
    use = d.ledger.accounts.by_tenant["ours"]
    assert use.pledged_token_s == pytest.approx(d.program("p").pledged_token_s)
    d.end("p")
    d.tick(1.0)
    assert use.pledged_token_s == 0


def test_what_a_root_had_that_turns_out_to_be_a_child_is_its_roots() -> None:
    d = node(ours=Tenant())
    turn(d, "root")
    turn(d, "late", account="")
    d.send(d.tools(ev.ProgramArrived, program_id="late", parent_id="root"))
    assert d.program("root").turns_begun == 2
    assert d.program("late").kv_token_s == 0
    assert d.program("late").payer == "ours"


def test_other_tables_hold_from_the_next_tick_on() -> None:
    d = node(ours=Tenant())
    turn(d, "p", account="theirs")
    assert d.program("p").payer == "default"
    d.controller.reconfigure(
        d.controller.preset, ControlRules(tenancy=Tenancy(named={"theirs": Tenant()})), d.now_ns
    )
    assert d.program("p").payer == "theirs"
    turn(d, "p", 2, account="theirs")
    assert d.ledger.accounts.by_tenant["theirs"].turns == 1


def of_tables(d: Driver, **named: Tenant) -> None:
    rules = ControlRules(tenancy=Tenancy(named=named))
    d.controller.reconfigure(d.controller.preset, rules, d.now_ns)


def running(d: Driver) -> None:
    ask(d, "p")
    d.tick()
    d.submit("p", "p.1", blocks=10)


def test_what_is_held_while_nobody_counts_is_nobodys() -> None:
    d = node(ours=Tenant())
    running(d)
    d.wait(30)
    of_tables(d)
    d.wait(50)
    of_tables(d, ours=Tenant())
    d.wait(20)
    d.finish("p", "p.1", prompt=160)
    assert d.ledger.accounts.of("ours").kv_token_s == pytest.approx(30 * 160)


# A run's budget


def test_a_run_that_has_had_its_turns_is_stopped_with_the_reason() -> None:
    d = node(ours=Tenant(program_turns=2))
    assert not of(cmd.Refuse, turn(d, "p"))
    (refused,) = of(cmd.Refuse, turn(d, "p", 2))
    assert refused.program_id == "p"
    assert refused.ttl_ns == 0
    assert refused.reason == "its run has spent its budget of 2 turns, its children's included"
    assert d.program("p").status is Status.ENDED
    ask(d, "p", 3)
    (again,) = of(cmd.Refuse, d.tick())
    assert again.reason == refused.reason
    assert not d.ledger.gates.held


def test_its_children_are_stopped_with_it() -> None:
    d = node(ours=Tenant(program_turns=3))
    turn(d, "root")
    turn(d, "child", parent="root", account="")
    d.start_tool("child")
    ask(d, "other", parent="root", account="")
    commands = turn(d, "child", 2, parent="root", account="")
    assert [each.program_id for each in of(cmd.Refuse, commands)] == ["root"]
    assert {d.program(name).status for name in ("root", "child", "other")} == {Status.ENDED}
    assert not d.ledger.gates.held
    ask(d, "child", 3, parent="root", account="")
    (again,) = of(cmd.Refuse, d.tick())
    assert again.program_id == "child"


def test_memory_is_a_budget_too_and_counts_in_a_long_turn() -> None:
    d = node(ours=Tenant(program_kv_token_s=160 * 30))
    ask(d, "p")
    d.tick()
    d.submit("p", blocks=10)
    assert not of(cmd.Refuse, d.tick(25.0))
    (refused,) = of(cmd.Refuse, d.tick(10.0))
    assert "4,800 KV token-seconds" in refused.reason


def test_a_client_may_allow_its_run_less_than_its_tenant_does_but_not_more() -> None:
    d = node(ours=Tenant(program_turns=3))
    turn(d, "small", budget_turns=1)
    turn(d, "large", budget_turns=100)
    assert list(d.ledger.accounts.stopped) == ["small"]
    turn(d, "large", 2)
    turn(d, "large", 3)
    assert list(d.ledger.accounts.stopped) == ["small", "large"]


def test_a_turn_that_slipped_through_is_the_last_one() -> None:
    d = node(ours=Tenant(program_turns=1))
    turn(d, "p")
    d.submit("p", "p.2")
    d.finish("p", "p.2")
    assert [each.program_id for each in of(cmd.Refuse, d.tick())] == ["p"]
    assert d.program("p").status is Status.ENDED


# A tenant's budget


def test_a_tenant_that_has_spent_its_turns_waits_for_its_next_window() -> None:
    d = node(ours=Tenant(turns=1, window_s=60))
    commands = turn(d, "p")
    (paused,) = of(cmd.Pause, commands)
    assert paused.reason == "tenant ours has spent its 1 turns in 60 s"
    ask(d, "p", 2)
    ask(d, "q")
    ask(d, "r", account="theirs")
    assert d.admitted(1.0) == ["r"]
    d.submit("r")
    assert d.admitted(20.0) == []
    assert sorted(d.admitted(40.0)) == ["p", "q"]


def test_a_window_that_was_made_shorter_ends_sooner() -> None:
    d = node(ours=Tenant(turns=1, window_s=3600))
    turn(d, "p")
    ask(d, "p", 2)
    assert d.admitted(30.0) == []
    shorter = Tenancy(named={"ours": Tenant(turns=1, window_s=60)})
    d.controller.reconfigure(d.controller.preset, ControlRules(tenancy=shorter), d.now_ns)
    assert d.admitted(30.0) == []
    assert d.admitted(60.0) == ["p"]


def test_or_is_refused_until_then() -> None:
    d = node(ours=Tenant(turns=1, window_s=60, exhausted=Exhausted.REFUSE))
    turn(d, "p", lasts_s=10)
    ask(d, "q")
    (refused,) = of(cmd.Refuse, d.tick())
    assert refused.program_id == "q"
    assert refused.ttl_ns == pytest.approx(50e9)
    assert d.ledger.accounts.by_tenant["ours"].refused == 1
    assert not of(cmd.Refuse, d.tick(1.0)), "it was told once"
    ask(d, "q")
    assert d.admitted(60.0) == ["q"]


def test_memory_that_a_tenant_has_held_counts_while_it_holds_it() -> None:
    d = node(ours=Tenant(kv_token_s=160 * 30, window_s=3600))
    ask(d, "p")
    d.tick()
    d.submit("p", blocks=10)
    d.tick(31.0)
    ask(d, "q")
    assert d.admitted(1.0) == []


def test_a_standby_keeps_the_accounts_and_tells_nobody() -> None:
    leader = node(ours=Tenant(program_turns=1))
    follower = Controller(leader.controller.preset, leader.controller.rules)
    ask(leader, "p")
    for event in (
        leader.gate(ev.TurnQueued, program_id="p", turn_id="p.1", prompt_tokens=160, account="ours"),
        leader.engine(ev.TurnSubmitted, program_id="p", turn_id="p.1", projected_blocks=10),
        leader.engine(ev.TurnEnded, program_id="p", turn_id="p.1", prompt_tokens=160),
    ):
        follower.receive(event, leader.now_ns)
    follower.follow(leader.now_ns + 10**9)
    assert list(follower.ledger.accounts.stopped) == ["p"]
    follower.take_over()
    assert not of(cmd.Refuse, follower.tick(leader.now_ns + 2 * 10**9))


def test_a_clients_own_budget_of_memory_holds_without_tenants_and_only_from_then_on() -> None:
    d = Driver(fixed(0))
    d.pool(block_tokens=16)
    turn(d, "p", account="")
    d.wait(100)
    turn(d, "p", 2, account="", budget_kv_token_s=160 * 15)
    assert d.program("p").kv_token_s == pytest.approx(160 * 10)
    d.wait(4)
    assert not of(cmd.Refuse, d.tick(0.5))
    assert of(cmd.Refuse, [each for _ in range(3) for each in d.tick(1.0)])
