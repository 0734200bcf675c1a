"""What tools do to the ledger."""

from support.core_driver import Driver

from controlplane.core.model import events as ev
from controlplane.core.model.types import Status


def counts(d: Driver) -> tuple[int, int]:
    return d.ledger.tools.active, d.ledger.tools.waiting


def test_an_end_before_its_beginning() -> None:
    d = Driver()
    start = d.tools(ev.ToolStarted, program_id="a", call_id="c", tool="bash")
    end = d.tools(ev.ToolEnded, program_id="a", call_id="c", tool="bash", duration_ns=9)
    d.send(end, start)
    assert (counts(d), d.program("a").open_tools, d.counts.late) == ((0, 0), 0, 1)
    assert d.ledger.estimates.tools["bash"].all.ascending == [9]


def test_a_program_that_ends_while_its_tool_runs_contradicts_nobody() -> None:
    d = Driver()
    d.run_turn("a")
    d.start_tool("a")
    d.end("a")
    assert (counts(d), d.program("a").open_tools) == ((0, 0), 0)
    d.end_tool("a")
    assert (d.counts.contradictions, d.counts.late, d.program("a").status) == (0, 1, Status.ENDED)
