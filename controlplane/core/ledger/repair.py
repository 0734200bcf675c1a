"""A ledger whose records agree again, after an error has left an event or a decision half applied.

What publishers hold decides: turns that are held or run, and tool calls. Who is whose child, who stands in the
queue, and every count are made to follow from it. Of a ledger whose records agree nothing is changed.
"""

from collections.abc import Callable
from typing import Any

from controlplane.core.ledger import Ledger
from controlplane.core.ledger.programs import waiting_roots
from controlplane.core.model.types import Program, Status


def mend(ledger: Ledger, now_ns: int, *, without: str = "", suspects: bool = False) -> Ledger:
    """Another ledger of the same records, which are changed where they contradict each other.

    The program ``without`` is forgotten with all that it has open; with ``suspects`` all that are quarantined are.
    """
    programs = ledger.programs.by_name
    _drop(programs, lambda name, program: name == without or (suspects and program.quarantined))
    for name, program in programs.items():
        _find_root(name, program, programs)
    _count(ledger)
    for program in programs.values():
        _settle_status(program, programs[program.root_id])
    for program in programs.values():
        _settle_times(program, programs[program.root_id], now_ns)
    if ledger.turns.running:
        ledger.turns.engine_idle_since_ns = 0
    _settle_tables(ledger)
    mended = Ledger(snapshot=ledger.records())
    mended.publishers.lateness, mended.turns.sizes = ledger.publishers.lateness, ledger.turns.sizes
    return mended


def _find_root(name: str, program: Program, programs: dict[str, Program]) -> None:
    """A child's root is the program without a parent that its line ends at; where there is none it is a root."""
    line, at = {name}, program
    while at.parent_id and (above := programs.get(at.root_id)) is not None and at.root_id not in line:
        line.add(at.root_id)
        at = above
    if not program.parent_id or at is program or at.parent_id:
        program.parent_id, program.root_id = "", name
    else:
        program.root_id = at.program_id


def _count(ledger: Ledger) -> None:
    """What programs have open, from the tables of it; what is nobody's is dropped."""
    programs = ledger.programs.by_name
    for table in (ledger.gates.held, ledger.turns.running, ledger.tools.calls):
        _drop(table, lambda _, work: work.program_id not in programs)
    for program in programs.values():
        program.open_turns = program.open_tools = program.delegating = 0
        program.queued_turns = program.queued_blocks = 0
    for turn in ledger.turns.running.values():
        programs[turn.program_id].open_turns += 1
    for call in ledger.tools.calls.values():
        programs[call.program_id].open_tools += 1
        programs[call.program_id].delegating += call.delegates
    for held in ledger.gates.held.values():
        root = programs[programs[held.program_id].root_id]
        root.queued_turns += 1
        root.queued_blocks += held.blocks


def _settle_status(program: Program, root: Program) -> None:
    if program.queued_turns and program.status in (Status.PAUSED, Status.ENDED):
        program.status = Status.WAITING  # whoever asks is answered
    if program is not root and program.status is Status.ACTIVE and root.status is not Status.ACTIVE:
        program.status = Status.ENDED if root.status is Status.ENDED and not root.queued_turns else Status.PAUSED
    if program.status is not Status.ACTIVE:
        program.lends = False


def _settle_times(program: Program, root: Program, now_ns: int) -> None:
    if program.status is Status.ACTIVE:
        program.queued_at_ns = 0
    elif program.queued_turns:
        program.queued_at_ns = program.queued_at_ns or now_ns
    if program.open_turns or program.open_tools:
        program.idle_since_ns = 0
    elif program.status is Status.ACTIVE and not root.queued_turns:
        program.idle_since_ns = program.idle_since_ns or now_ns


def _settle_tables(ledger: Ledger) -> None:
    programs, tools = ledger.programs, ledger.tools
    all_programs = programs.by_name
    waiting = {root.program_id for root in waiting_roots(all_programs.values())}
    _drop(programs.queue, lambda name, _: name not in waiting)
    missing = sorted(waiting - programs.queue.keys(), key=lambda name: all_programs[name].queued_at_ns)
    programs.queue |= dict.fromkeys(missing)
    active = {
        name: root for name, root in all_programs.items() if root.status is Status.ACTIVE and not root.parent_id
    }
    programs.askers |= {name: None for name, root in active.items() if root.queued_turns}
    _drop(programs.unasked, lambda name, _: name not in active)
    _drop(ledger.runs.farewells, lambda name, _: name not in all_programs)
    _drop(tools.queue, lambda key, _: key not in tools.calls or tools.calls[key].has_slot)


def _drop(table: dict[str, Any], is_wrong: Callable[[str, Any], bool]) -> None:
    for key in [key for key, work in table.items() if is_wrong(key, work)]:
        del table[key]
