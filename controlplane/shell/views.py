"""Programs as an operator sees them: what they do now, and for how long."""

import itertools
from collections.abc import Iterator, Mapping
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


def rows(ledger: Ledger, now_ns: int, *, ended: bool = False, most: int = 0) -> list[ProgramRow]:
    """Who waits in the order of the queue, then who has a slot, then the others; the first ``most``, or all for 0.

    A node may have a hundred thousand programs, and whoever looks must not hold the daemon up for them.
    """
    shown = itertools.islice(_in_order(ledger, ended), most or None)
    positions = {name: number for number, name in enumerate(itertools.islice(ledger.queue, most or None), start=1)}
    return [_row(program, positions, ledger, now_ns) for program in shown]


def _in_order(ledger: Ledger, ended: bool) -> Iterator[Program]:
    programs = ledger.programs
    yield from (programs[name] for name in ledger.queue)
    yield from (programs[name] for name in ledger.active)
    for program in programs.values():
        if program.program_id in ledger.queue or program.status is Status.ACTIVE:
            continue
        if ended or program.status is not Status.ENDED:
            yield program


def _row(program: Program, positions: Mapping[str, int], ledger: Ledger, now_ns: int) -> ProgramRow:
    return ProgramRow(
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
