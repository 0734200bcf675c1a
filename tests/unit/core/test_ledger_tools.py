"""What tools do to the ledger."""

from support.core_driver import Driver

from controlplane.core import events as ev
from controlplane.core.types import Status, seconds


def enqueue(d: Driver, name: str, call: str = "") -> None:
    d.send(d.tools(ev.ToolEnqueued, program_id=name, call_id=call or f"{name}.call", tool="bash"))


def counts(d: Driver) -> tuple[int, int]:
    return d.ledger.tools.active, d.ledger.tools.waiting


def test_a_tool_waits_runs_and_ends() -> None:
    d = Driver()
    d.run_turn("a")
    enqueue(d, "a")
    assert (counts(d), d.program("a").open_tools, d.program("a").idle_since_ns) == ((0, 1), 1, 0)
    d.wait(1)
    d.start_tool("a")
    assert (counts(d), d.program("a").open_tools) == ((1, 0), 1)
    assert d.program("a").tool_started_at_ns == d.now_ns
    d.wait(1)
    d.end_tool("a")
    assert (counts(d), d.program("a").open_tools, d.program("a").idle_since_ns) == ((0, 0), 0, d.now_ns)
    assert d.ledger.estimates.tools["bash"].all.ascending == [seconds(1)]


def test_a_tool_that_was_never_enqueued() -> None:
    d = Driver()
    d.start_tool("a")
    assert counts(d) == (1, 0)
    assert d.program("a").tool_started_at_ns == d.now_ns


def test_a_repeated_beginning_changes_nothing() -> None:
    d = Driver()
    d.start_tool("a")
    d.start_tool("a")
    enqueue(d, "a")
    assert (counts(d), d.program("a").open_tools) == ((1, 0), 1)


def test_parallel_tools_end_the_gap_only_together() -> None:
    d = Driver()
    d.run_turn("a")
    d.start_tool("a", "one")
    d.start_tool("a", "two")
    d.end_tool("a", "one")
    assert d.program("a").idle_since_ns == 0
    d.end_tool("a", "two")
    assert d.program("a").idle_since_ns == d.now_ns


def test_an_end_before_its_beginning() -> None:
    d = Driver()
    start = d.tools(ev.ToolStarted, program_id="a", call_id="c", tool="bash")
    end = d.tools(ev.ToolEnded, program_id="a", call_id="c", tool="bash", duration_ns=9)
    d.send(end, start)
    assert (counts(d), d.program("a").open_tools, d.counts.late) == ((0, 0), 0, 1)
    assert d.ledger.estimates.tools["bash"].all.ascending == [9]


def test_an_end_that_never_began_is_a_contradiction_and_teaches_nothing() -> None:
    d = Driver()
    d.end_tool("a")
    assert (d.counts.contradictions, d.program("a").quarantined) == (1, True)
    assert "bash" not in d.ledger.estimates.tools
    d.start_tool("a")
    d.end_tool("a")
    assert "bash" not in d.ledger.estimates.tools


def test_a_program_that_ends_while_its_tool_runs_contradicts_nobody() -> None:
    d = Driver()
    d.run_turn("a")
    d.start_tool("a")
    d.end("a")
    assert (counts(d), d.program("a").open_tools) == ((0, 0), 0)
    d.end_tool("a")
    assert (d.counts.contradictions, d.counts.late, d.program("a").status) == (0, 1, Status.ENDED)


def test_an_instant_tool_teaches_no_duration() -> None:
    d = Driver()
    d.start_tool("a")
    d.end_tool("a", duration_s=0)
    assert "bash" not in d.ledger.estimates.tools


def test_a_crowded_host_is_known_by_its_tools() -> None:
    d = Driver()
    d.cpus(2)
    d.start_tool("a")
    d.end_tool("a")
    assert len(d.ledger.estimates.tools["bash"].uncrowded.ascending) == 1
    d.start_tool("a")
    enqueue(d, "b")
    d.end_tool("a")
    assert len(d.ledger.estimates.tools["bash"].uncrowded.ascending) == 1
    assert len(d.ledger.estimates.tools["bash"].all.ascending) == 2


def test_who_began_to_act_is_told_once_a_gap() -> None:
    d = Driver()
    d.submit("a")
    d.finish("a", tool="bash", calls=1)
    d.start_tool("a", "one")
    d.start_tool("a", "two")
    assert [program.program_id for program in d.ledger.programs.take_changed(10)] == ["a"]
    d.start_tool("a", "three")
    assert d.ledger.programs.take_changed(10) == []
    d.run_turn("a", "a.2")
    d.start_tool("a", "four")
    assert [program.program_id for program in d.ledger.programs.take_changed(10)] == ["a"]


def test_of_many_that_began_to_act_so_many_are_told_and_the_others_next_time() -> None:
    d = Driver()
    for name in ("a", "b", "c"):
        d.run_turn(name, f"{name}.1")
    assert [program.program_id for program in d.ledger.programs.take_changed(2)] == ["a", "b"]
    assert [program.program_id for program in d.ledger.programs.take_changed(2)] == ["c"]


def test_two_programs_may_use_the_same_call_id() -> None:
    d = Driver()
    for name in ("a", "b"):
        d.controller.receive(ev.ToolStarted(program_id=name, call_id="call_1", tool="bash"), d.now_ns)
    assert d.ledger.tools.active == 2
    d.controller.receive(ev.ToolEnded(program_id="a", call_id="call_1", tool="bash", duration_ns=1), d.now_ns)
    assert (d.program("a").open_tools, d.program("b").open_tools) == (0, 1)
