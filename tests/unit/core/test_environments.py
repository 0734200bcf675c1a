"""Environments of programs that wait: for whom they are made, when, and for whom no longer."""

from support.core_driver import Driver, fixed, of

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.steps import run
from controlplane.core.scheduling.rules_and_state import ControlRules


def driver(window: int = 1, ahead: int = 2) -> Driver:
    return Driver(fixed(window), ControlRules(prepare_ahead=ahead, stall_s=60))


def want(d: Driver, *names: str) -> None:
    for name in names:
        d.send(d.tools(ev.EnvironmentWanted, program_id=name))


def told(d: Driver, after_s: float = 0.0) -> tuple[list[str], list[str]]:
    """Whose environment is to be made now, and whose not."""
    commands = d.tick(after_s)
    prepared = [command.program_id for command in of(cmd.PrepareEnvironment, commands)]
    return prepared, [command.program_id for command in of(cmd.CancelEnvironment, commands)]


def test_who_is_let_in_and_who_is_next_each_once() -> None:
    d = driver()
    want(d, "a", "b", "c", "d")
    assert told(d) == ([], []), "nobody has a turn yet"
    for name in ("a", "b", "c", "d"):
        d.ask(name)
    commands = d.tick()
    assert [(c.program_id, c.reason) for c in of(cmd.PrepareEnvironment, commands)] == [
        ("a", "it is let in"),
        ("b", "one of the next 2 in the queue"),
        ("c", "one of the next 2 in the queue"),
    ]
    assert told(d, 1) == ([], [])
    d.run_turn("a")
    d.end("a")
    assert told(d) == (["d"], []), "b is let in, and was told before"
    assert list(d.controller.ledger.tools.environments) == ["c", "d"]


def test_who_leaves_the_queue_needs_none_until_it_comes_back() -> None:
    d = driver()
    want(d, "a", "b")
    d.ask("x")
    d.tick()
    d.ask("a")
    d.ask("b")
    assert told(d) == (["a", "b"], [])
    d.send(d.gate(ev.TurnAbandoned, program_id="a", turn_id="a.1", reason="the client went"))
    assert told(d) == ([], ["a"])
    assert told(d, 1) == ([], [])
    d.ask("a", "a.2")
    assert told(d) == (["a"], [])
    d.end("b")
    assert told(d) == ([], [])
    assert list(d.controller.ledger.tools.environments) == ["a"]


def test_without_a_gate_the_first_turn_is_the_sign() -> None:
    d = driver()
    want(d, "a")
    assert told(d) == ([], [])
    d.submit("a")
    assert told(d) == (["a"], [])
    assert d.controller.ledger.tools.environments == {}


def test_a_publisher_that_is_gone_wants_nothing() -> None:
    d = driver()
    want(d, "a", "b")
    run(d.ledger.publisher_states.forget(d.tools.name, d.now_ns))
    assert d.controller.ledger.tools.environments == {}
