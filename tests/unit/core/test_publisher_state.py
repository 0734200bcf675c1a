"""A publisher's whole state replaces what was believed of it, and nothing else."""

from support.core_driver import Driver, Publisher, fixed, of

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import Status


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
    assert set(d.ledger.turns.running) == {"t2", "t3"}


def test_a_gate_lists_what_it_holds_and_whom_it_lets_pass() -> None:
    d = Driver(fixed(1))
    d.ask("gone", "t1")
    d.ask("kept", "t2", tokens=30)
    held = [
        ev.OpenTurn(program_id="kept", turn_id="t2"),
        ev.OpenTurn(program_id="child", turn_id="t3", parent_id="kept"),
    ]
    tell(d, d.gate, role="gate", held_turns=held, grants=[ev.Grant(program_id="free")])
    assert list(d.ledger.programs.queue) == ["kept"]
    assert (d.program("kept").queued_turns, d.program("gone").queued_turns) == (2, 0)
    assert d.program("free").status is Status.ACTIVE
    assert d.counts.admitted_unasked == 0


def test_a_granted_child_stands_for_its_root() -> None:
    d = Driver(fixed(1))
    d.ask("child", parent="root")
    tell(d, d.gate, role="gate", grants=[ev.Grant(program_id="child")])
    assert (d.program("root").status, d.program("child").status) == (Status.ACTIVE, Status.ACTIVE)
    assert d.ledger.programs.charges.active_roots == 1


def test_a_state_that_is_said_again_is_of_long_ago() -> None:
    """What hooks say again has states in it, too: they replace nothing, and the words behind them count."""
    d, again = Driver(), Publisher("node/tool/1")
    d.run_turn("gone")
    d.tools.skip(3)
    d.start_tool("a")
    tell(d, again, role="tool", open_tools=[ev.OpenTool(program_id="a", call_id="old", tool="bash", started=True)])
    assert (d.program("a").open_tools, list(d.ledger.publishers.resync)) == (1, [again.name])
    d.send(again(ev.ProgramEnded, program_id="gone"))
    assert d.program("gone").status is Status.ENDED


def test_an_agent_lists_its_tools() -> None:
    d = Driver()
    d.start_tool("a", "gone")
    d.start_tool("a", "kept")
    tools = [
        ev.OpenTool(program_id="a", call_id="kept", tool="bash", started=True),
        ev.OpenTool(program_id="b", call_id="new", tool="bash", started=False),
    ]
    tell(d, d.tools, role="tool", open_tools=tools)
    assert (d.ledger.tools.active, d.ledger.tools.waiting) == (1, 1)
    assert (d.program("a").open_tools, d.program("b").open_tools) == (1, 1)


def test_pins_come_with_the_time_that_is_left() -> None:
    d = Driver()
    d.run_turn("a")
    tell(d, d.engine, role="engine", pins=[ev.Pin(program_id="a", ttl_ns=70)])
    assert d.program("a").retained_until_ns == d.now_ns + 70


def taken_back(d: Driver) -> list[cmd.Pause]:
    """What the next tick takes back."""
    return of(cmd.Pause, d.tick())


def test_a_gate_that_missed_a_pause_is_told_again() -> None:
    d = Driver(fixed(1))
    d.ask("p", "t1")
    (admit,) = of(cmd.Admit, d.tick())
    d.submit("p", "t1")
    d.finish("p", "t1")
    d.end("p")
    assert len(taken_back(d)) == 1
    tell(d, d.gate, role="gate", grants=[ev.Grant(program_id="p", command_id=admit.command_id)])
    assert d.program("p").status is Status.ENDED
    assert [pause.program_id for pause in taken_back(d)] == ["p"]
    assert taken_back(d) == []


def test_a_slot_that_a_gate_kept_is_not_taken_back_from_a_program_that_runs_again() -> None:
    d = Driver(fixed(1))
    d.ask("p", "t1")
    (admit,) = of(cmd.Admit, d.tick())
    d.run_turn("p", "t1")
    d.end("p")
    taken_back(d)
    tell(d, d.gate, role="gate", grants=[ev.Grant(program_id="p", command_id=admit.command_id)])
    d.wait(6)
    d.submit("p", "t2")
    assert d.program("p").status is Status.ACTIVE
    assert taken_back(d) == []


def test_a_program_that_was_forgotten_since_its_grant_is_not_taken_for_active() -> None:
    d = Driver(fixed(1))
    d.controller.numbering.sent = 100
    tell(d, d.gate, role="gate", grants=[ev.Grant(program_id="long-gone", command_id=7)])
    assert "long-gone" not in d.ledger.programs.by_name
    assert [pause.program_id for pause in taken_back(d)] == ["long-gone"]


def test_a_grant_of_a_time_that_is_not_remembered_holds() -> None:
    d = Driver(fixed(1))
    d.controller.numbering.begin(1000)
    tell(d, d.gate, role="gate", grants=[ev.Grant(program_id="p", command_id=7)])
    assert d.program("p").status is Status.ACTIVE
    assert taken_back(d) == []


def test_a_goodbye_comes_before_the_grant_of_a_program_that_is_forgotten() -> None:
    """All is lost, stream and snapshot: the agent says goodbye once more, and then the gate tells of its grant."""
    d = Driver(fixed(1))
    d.controller.numbering.begin(1000)
    d.end("p")
    tell(d, d.gate, role="gate", grants=[ev.Grant(program_id="p", command_id=7)])
    assert d.program("p").status is Status.ENDED
    assert [pause.program_id for pause in taken_back(d)] == ["p"]
