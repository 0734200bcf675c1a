"""What events about tools do to the ledger; a part of ``handlers``."""

from typing import TYPE_CHECKING

from controlplane.core import events as ev
from controlplane.core.records import Environment, ToolCall, tool_key
from controlplane.core.types import Program, Status, seconds

if TYPE_CHECKING:
    from controlplane.core.ledger import Ledger

_CLOCKS_NS = seconds(0.25)  # two publishers' clocks are not known better beside each other than batches take


def tool_enqueued(ledger: "Ledger", event: ev.ToolEnqueued, now_ns: int) -> None:
    key = tool_key(event.program_id, event.call_id)
    if key not in ledger.state.tools:
        _open_tool(ledger, event, now_ns, started=False)
    call = ledger.state.tools.get(key)
    if event.wants_slot and call is not None and not call.started:
        ledger.queue_tool(key)


def tool_started(ledger: "Ledger", event: ev.ToolStarted, now_ns: int) -> None:
    key = tool_key(event.program_id, event.call_id)
    call = ledger.state.tools.get(key)
    if call is None:
        _open_tool(ledger, event, now_ns, started=True)
    elif not call.started:
        ledger.let_tool_start(key)  # told, or it has lost patience
        call.started = True
        ledger.estimates.tool_wait.add(now_ns - call.enqueued_at_ns)
        ledger.program(event.program_id, now_ns).tool_started_at_ns = now_ns


def _open_tool(ledger: "Ledger", event: ev.ToolEnqueued | ev.ToolStarted, now_ns: int, *, started: bool) -> None:
    key = tool_key(event.program_id, event.call_id)
    if ledger.state.early_ends.pop(key, None) is not None:
        return
    program = ledger.program(event.program_id, now_ns)
    call = ToolCall(
        program_id=event.program_id,
        call_id=event.call_id,
        publisher=event.publisher,
        tool=event.tool,
        started=started,
        enqueued_at_ns=0 if started else now_ns,
    )
    ledger.state.tools[key] = call
    ledger.count_tool(call, 1)
    program.open_tools += 1
    program.idle_since_ns = 0
    if _is_of_before(ledger, program, event, now_ns):
        ledger.state.counts.late += 1
        return
    program.called_nothing = False
    program.tool = program.gap_tool = event.tool
    if started:
        program.tool_started_at_ns = now_ns
    if not program.gap_has_tool:
        program.gap_has_tool = True
        ledger.changed[program.program_id] = None


def _is_of_before(ledger: "Ledger", program: Program, event: ev.Event, now_ns: int) -> bool:
    """Whether the call began before the program's last turn did or ended, and is told late: it says nothing of the
    gap behind that turn.

    A publisher that was cut off tells all of it at once, on a connection of its own: its calls may come behind the
    turn that they came before.
    """
    began_ns = now_ns - ledger.lateness.of(event.publisher, event.at_ns, now_ns)
    return began_ns < program.turned_ns - (0 if program.open_turns else _CLOCKS_NS)


def tool_ended(ledger: "Ledger", event: ev.ToolEnded, now_ns: int) -> None:
    program = ledger.program(event.program_id, now_ns)
    key = tool_key(event.program_id, event.call_id)
    call = ledger.state.tools.get(key)
    if call is None and program.status is Status.ENDED:
        ledger.state.counts.late += 1  # the program's end has closed it
    elif call is None:
        ledger.ended_early(key, event.publisher, now_ns, "tool call")
    waited_for_child = call is not None and call.delegates
    program.gap_delegates = program.gap_delegates or waited_for_child
    crowded = ledger.is_crowded
    ledger.drop_tool(key, now_ns)
    if event.duration_ns > 0 and not program.quarantined and not waited_for_child:
        ledger.estimates.tool_ended(event.tool, event.duration_ns, crowded=crowded)


def environment_wanted(ledger: "Ledger", event: ev.EnvironmentWanted, now_ns: int) -> None:
    ledger.program(event.program_id, now_ns)
    ledger.state.environments[event.program_id] = Environment(publisher=event.publisher)
