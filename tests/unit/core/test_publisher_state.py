"""A publisher's whole state replaces what was believed of it, and nothing else."""

from support.core_driver import Driver, Publisher, fixed, of

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.types import Status


def tell(d: Driver, publisher: Publisher, **state: object) -> None:
    d.send(publisher(ev.PublisherState, **state))


def test_an_engine_lists_its_turns() -> None:
    d = Driver()
    d.submit("gone", "t1")
    d.submit("kept", "t2", blocks=7)
    d.ask("waits", "t3")
    new = [
        ev.OpenTurn(program_id="kept", turn_id="t2", blocks=9),
        ev.OpenTurn(program_id="waits", turn_id="t3", blocks=5),
    ]
    tell(d, d.engine, role="engine", open_turns=new)
    assert (d.program("gone").open_turns, d.program("gone").idle_since_ns) == (0, d.now_ns)
    assert (d.program("kept").open_turns, d.program("kept").kv_blocks) == (1, 7)
    assert (d.program("waits").open_turns, d.program("waits").queued_turns) == (1, 0)
    assert set(d.ledger.state.running) == {"t2", "t3"}


def test_an_engines_turns_bring_their_parents() -> None:
    d = Driver(fixed(1))
    tell(d, d.engine, role="engine", open_turns=[ev.OpenTurn(program_id="c", turn_id="t", parent_id="r")])
    assert (d.program("c").root_id, d.ledger.totals.active_roots) == ("r", 1)


def test_a_gate_lists_what_it_holds_and_whom_it_lets_pass() -> None:
    d = Driver(fixed(1))
    d.ask("gone", "t1")
    d.ask("kept", "t2", tokens=30)
    held = [
        ev.OpenTurn(program_id="kept", turn_id="t2"),
        ev.OpenTurn(program_id="child", turn_id="t3", parent_id="kept"),
    ]
    tell(d, d.gate, role="gate", held_turns=held, granted=["free"])
    assert list(d.ledger.queue) == ["kept"]
    assert (d.program("kept").queued_turns, d.program("gone").queued_turns) == (2, 0)
    assert d.program("free").status is Status.ACTIVE
    assert d.counts.admitted_unasked == 0


def test_a_granted_child_stands_for_its_root() -> None:
    d = Driver(fixed(1))
    d.ask("child", parent="root")
    tell(d, d.gate, role="gate", granted=["child"])
    assert (d.program("root").status, d.program("child").status) == (Status.ACTIVE, Status.ACTIVE)
    assert d.ledger.totals.active_roots == 1


def test_a_turn_that_was_granted_and_is_still_held_is_granted_again() -> None:
    d = Driver(fixed(1))
    d.ask("a")
    assert d.admitted() == ["a"]
    tell(d, d.gate, role="gate", held_turns=[ev.OpenTurn(program_id="a", turn_id="a.1")])
    assert d.admitted() == ["a"]


def test_an_agent_lists_its_tools() -> None:
    d = Driver()
    d.start_tool("a", "gone")
    d.start_tool("a", "kept")
    tools = [
        ev.OpenTool(program_id="a", call_id="kept", tool="bash", started=True),
        ev.OpenTool(program_id="b", call_id="new", tool="bash", started=False),
    ]
    tell(d, d.tools, role="tool", open_tools=tools)
    assert (d.ledger.totals.tools_active, d.ledger.totals.tools_waiting) == (1, 1)
    assert (d.program("a").open_tools, d.program("b").open_tools) == (1, 1)


def test_pins_come_with_the_time_that_is_left() -> None:
    d = Driver()
    d.run_turn("a")
    tell(d, d.engine, role="engine", pins=[ev.Pin(program_id="a", ttl_ns=70)])
    assert d.program("a").retained_until_ns == d.now_ns + 70


def test_other_publishers_slices_stay() -> None:
    d = Driver()
    d.submit("a")
    d.start_tool("a")
    d.ask("b")
    tell(d, d.host)
    assert (d.program("a").open_turns, d.program("a").open_tools, d.program("b").queued_turns) == (1, 1, 1)


def test_what_was_missing_no_longer_matters() -> None:
    d = Driver()
    late = d.engine(ev.TurnSubmitted, program_id="a", turn_id="t", projected_blocks=5)
    tell(d, d.engine, role="engine")
    assert d.ledger.state.sequences["node/engine/1"].missing == []
    d.send(late)
    assert (d.counts.duplicates, "a" in d.ledger.programs) == (1, False)
    assert of(cmd.StateRequest, d.tick()) == []


def test_an_unnumbered_state_is_applied_too() -> None:
    d = Driver()
    d.send(ev.PublisherState(publisher="x/engine/1", open_turns=[ev.OpenTurn(program_id="a", turn_id="t")]))
    assert d.program("a").open_turns == 1


def test_a_late_event_of_a_replaced_boot_is_dropped() -> None:
    """It must not pass for yet another boot, and take the live one's turns away."""
    d = Driver()
    old, new = Publisher("node/engine/old"), Publisher("node/engine/new")
    d.send(old(ev.TurnSubmitted, program_id="a", turn_id="1", projected_blocks=1))
    d.program("a").retained_until_ns = d.now_ns + 1
    d.send(new(ev.TurnSubmitted, program_id="b", turn_id="2", projected_blocks=1))
    assert d.program("a").open_turns == 0
    assert d.program("a").retained_until_ns == 0, "the KV went with the engine"
    d.send(old(ev.TurnSubmitted, program_id="a", turn_id="3", projected_blocks=1))
    assert (d.program("a").open_turns, d.program("b").open_turns) == (0, 1)
    assert d.counts.late == 1


def test_only_the_latest_replaced_boots_are_remembered() -> None:
    d = Driver()
    for boot in range(100):
        d.send(Publisher(f"node/engine/{boot}")(ev.PoolSampled, total_blocks=1, free_blocks=1))
    assert len(d.controller.state.ledger.retired) == 64
