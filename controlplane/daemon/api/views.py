"""Programs as an operator sees them: what they do now, and for how long."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from controlplane.core.estimators.idleness import idleness
from controlplane.core.ledger import Ledger
from controlplane.core.model.types import Program, Status
from controlplane.core.scheduling.hold_reasons import HoldReasons

MOST_ROWS = 1000  # in one answer
_CYCLES = 5  # of a program's last ones, for its idleness
_ACTIVE_PHASES = ("reasoning", "acting", "held", "idle")


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
    moves: int
    waits_for: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCount:
    """How many of the active programs are in one phase, and their contexts."""

    phase: str
    programs: int
    context_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The programs that were asked for. ``total``: how many there are, shown or not."""

    programs: Sequence[ProgramRow]
    total: int
    phases: Sequence[PhaseCount]


def listing(
    ledger: Ledger,
    now_ns: int,
    *,
    ended: bool = False,
    queued: bool = False,
    contains: str = "",
    most: int = 0,
    page: int = 0,
    holds: HoldReasons | None = None,
) -> Listing:
    """Who waits in the order of the queue, then who has a slot, then the others; ``holds`` knows why they wait.

    At most ``most`` of them, and no more than ``MOST_ROWS``, which 0 stands for: a node may have a hundred thousand
    programs, and whoever looks must not hold the daemon up for them. Each of the three gets its part of the places,
    and what one does not need goes to the others: nobody sees a node where thousands wait and nothing runs. From
    ``page`` 1 on it is that page of all of them, in order. ``queued``: only who waits. ``contains``: only whose id,
    tenant, engine or tool has that in its name.
    """
    programs = ledger.programs.by_name
    groups: list[Collection[str]] = [ledger.programs.queue]
    if not queued:
        groups += [ledger.programs.active, ledger.programs.dormant]
    if ended:
        groups.append([name for name, program in programs.items() if program.status is Status.ENDED])
    if contains:
        groups = [[name for name in group if _has(programs[name], contains, ledger)] for group in groups]
    sizes = [len(group) for group in groups]
    places = min(most or MOST_ROWS, MOST_ROWS)
    if page:
        shown = list(itertools.islice(itertools.chain.from_iterable(groups), (page - 1) * places, page * places))
    else:
        each = zip(groups, fair_places(sizes, places), strict=True)
        shown = [name for group, count in each for name in itertools.islice(group, count)]
    positions = _positions(ledger.programs.queue, set(shown))
    return Listing(
        programs=[_row(programs[name], positions, ledger, holds, now_ns) for name in shown],
        total=sum(sizes),
        phases=_phases(ledger),
    )


def _positions(queue: Collection[str], wanted: set[str]) -> dict[str, int]:
    """In the queue, of those that wait, from 1."""
    found: dict[str, int] = {}
    left = sum(name in queue for name in wanted)
    for number, name in enumerate(queue, start=1):
        if not left:
            break
        if name in wanted:
            found[name] = number
            left -= 1
    return found


def _has(program: Program, wanted: str, ledger: Ledger) -> bool:
    if wanted in program.program_id or wanted in program.replica or wanted in program.tool:
        return True
    return wanted in _tenant(program, ledger)


def _tenant(program: Program, ledger: Ledger) -> str:
    return ledger.programs.whose(program).payer if ledger.accounts.tenancy.on else program.tenant


def fair_places(sizes: Sequence[int], places: int) -> list[int]:
    """Of ``places`` an equal share for each, but for who needs less."""
    shares = [0] * len(sizes)
    smallest_first = sorted(range(len(sizes)), key=lambda index: sizes[index])
    for done, index in enumerate(smallest_first):
        shares[index] = min(sizes[index], places // (len(sizes) - done))
        places -= shares[index]
    return shares


def _phases(ledger: Ledger) -> list[PhaseCount]:
    counts, tokens = dict.fromkeys(_ACTIVE_PHASES, 0), dict.fromkeys(_ACTIVE_PHASES, 0)
    for name in ledger.programs.active:
        program = ledger.programs.by_name[name]
        phase = _phase(program)
        counts[phase] += 1
        tokens[phase] += program.context_tokens
    return [PhaseCount(phase=phase, programs=counts[phase], context_tokens=tokens[phase]) for phase in counts]


def _row(
    program: Program, positions: Mapping[str, int], ledger: Ledger, holds: HoldReasons | None, now_ns: int
) -> ProgramRow:
    return ProgramRow(
        program_id=program.program_id,
        tenant=_tenant(program, ledger),
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
        held_by_operator=program.root_id in ledger.programs.ordered_held,
        moves=program.moves,
        waits_for=holds.now(program.program_id).text if holds and program.program_id in positions else "",
    )


def _phase(program: Program) -> str:
    if program.open_turns:
        return "reasoning"
    if program.queued_turns:
        return "held"
    return "acting" if program.open_tools else "idle"


def _since(at_ns: int, now_ns: int) -> int:
    return now_ns - at_ns if at_ns else 0
