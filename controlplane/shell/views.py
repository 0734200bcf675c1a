"""Programs as an operator sees them: what they do now, and for how long."""

from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.core.idleness import idleness
from controlplane.core.ledger import Ledger
from controlplane.core.types import Program, Status

_CYCLES = 5  # of a program's last ones, for its idleness


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRow:
    """One program. The fields are those of the message, in ``proto/penstock/v1/control.proto``."""

    program_id: str
    tenant: str
    parent_id: str
    status: Status
    phase: str
    tool: str
    queue_position: int
    turns: int
    context_tokens: int
    kv_blocks: int
    kv_tier: str
    age_ns: int
    hold_ns: int
    idle_ns: int
    retained_ns: int
    idleness_ratio: float
    replica: str
    held_by_operator: bool


def rows(ledger: Ledger, now_ns: int, *, ended: bool = False) -> list[ProgramRow]:
    """Who waits in the order of the queue, then the others in the order of their arrival."""
    programs = ledger.programs
    waiting = [programs[name] for name in ledger.queue]
    others = [p for p in programs.values() if p.program_id not in ledger.queue]
    shown = [p for p in (*waiting, *others) if ended or p.status is not Status.ENDED]
    return list(_rows(ledger, shown, now_ns))


def _rows(ledger: Ledger, programs: Iterable[Program], now_ns: int) -> Iterable[ProgramRow]:
    positions = {name: number for number, name in enumerate(ledger.queue, start=1)}
    for program in programs:
        yield ProgramRow(
            program_id=program.program_id,
            tenant=program.tenant,
            parent_id=program.parent_id,
            status=program.status,
            phase=_phase(program),
            tool=program.tool,
            queue_position=positions.get(program.program_id, 0),
            turns=program.turn_index,
            context_tokens=program.context_tokens,
            kv_blocks=program.kv_blocks,
            kv_tier=program.kv_tier.value,
            age_ns=now_ns - program.arrived_at_ns,
            hold_ns=_since(program.queued_at_ns, now_ns),
            idle_ns=_since(program.idle_since_ns, now_ns),
            retained_ns=max(0, program.retained_until_ns - now_ns),
            idleness_ratio=idleness(program, _CYCLES, now_ns),
            replica=program.replica,
            held_by_operator=program.root_id in ledger.state.ordered_held,
        )


def _phase(program: Program) -> str:
    if program.open_turns:
        return "reasoning"
    if program.queued_turns:
        return "held"
    return "acting" if program.open_tools else "idle"


def _since(at_ns: int, now_ns: int) -> int:
    return now_ns - at_ns if at_ns else 0
