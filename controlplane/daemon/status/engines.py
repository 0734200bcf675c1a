"""Engines as an operator sees them: what each has, what runs there, and who went from one to another."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from typing import Protocol

from controlplane.core.ledger import Ledger
from controlplane.core.ledger.publishers import SequenceTracker
from controlplane.core.model.commands import Command, Place
from controlplane.core.model.events import DECODES, PoolSampled
from controlplane.core.model.places import kind_of, place_of, stands_before
from controlplane.core.model.types import seconds

_ANSWERS_WITHIN_NS = seconds(5)
_BUSY_REPORTS_NS = seconds(15)  # far more than one step takes
_MOST_DOWN = 5  # engines that are named
_MOST_MOVES = 64  # the latest, that are told of


class Known(Protocol):
    """An engine that a roster names: where it is reached, and what it may be given."""

    @property
    def place(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def has_plugin(self) -> bool: ...
    @property
    def standing(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """One engine. The fields are those of the message, in ``proto/penstock/v1/control.proto``."""

    place: str
    address: str = ""
    standing: str = ""
    has_plugin: bool = True
    kv_total_blocks: int = 0
    kv_free_blocks: int = 0
    kv_evictable_blocks: int = 0
    kv_retained_blocks: int = 0
    kv_demand_blocks: int = 0
    kv_use_ratio: float = 0.0
    host_total_blocks: int = 0
    host_used_blocks: int = 0
    turns: int = 0
    programs: int = 0
    waiting: int = 0
    heard_ns: int = 0
    silent: bool = False
    passive: str = ""
    disaggregation: str = ""

    @property
    def needs_attention(self) -> bool:
        return self.silent or self.passive not in ("", DECODES) or self.standing not in ("", "serving")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounts:
    """How many engines there are, and how many of them are what. ``moves``: of programs between them, ever."""

    known: int
    serving: int
    draining: int
    gone: int
    silent: int
    moves: int
    down: tuple[str, ...] = ()  # the places of some that are gone or silent


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A program was sent from one engine to another: when, and why."""

    at_ns: int
    program_id: str
    from_place: str
    to_place: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineListing:
    """The engines that were asked for, by name. ``total``: how many there are, shown or not."""

    engines: Sequence[EngineRow]
    total: int
    moves: Sequence[Move]


class MoveLog:
    """The latest moves that were decided, the newest first."""

    def __init__(self) -> None:
        self.latest: deque[Move] = deque(maxlen=_MOST_MOVES)

    def record(self, commands: Sequence[Command], at_ns: int) -> None:
        for command in commands:
            if isinstance(command, Place) and command.leaves:
                self.latest.appendleft(
                    Move(
                        at_ns=at_ns,
                        program_id=command.program_id,
                        from_place=command.leaves,
                        to_place=command.replica,
                        reason=command.reason,
                    )
                )


def count_engines(ledger: Ledger, roster: Iterable[Known], now_ns: int) -> EngineCounts:
    """How many there are of each standing. O(engines), and cheap: a status has it."""
    pools, standings, silent, down = ledger.engines.samples, Counter[str](), 0, list[str]()
    named = {each.place: each for each in roster}
    for place in pools.keys() | named.keys():
        standing = _standing(ledger, named.get(place), place) or "serving"
        standings[standing] += 1
        is_silent = standing == "serving" and _is_silent(ledger, place, now_ns)
        silent += is_silent
        if is_silent or standing == "gone":
            down.append(place)
    return EngineCounts(
        known=sum(standings.values()),
        serving=standings["serving"],
        draining=standings["draining"],
        gone=standings["gone"],
        silent=silent,
        moves=ledger.programs.moves,
        down=tuple(nsmallest(_MOST_DOWN, down)),
    )


def silent_gates(ledger: Ledger, now_ns: int) -> tuple[str, ...]:
    """The places of some gates that were asked for their state and did not answer. O(engines and gates)."""
    newest: dict[str, SequenceTracker] = {}  # a server that restarted is another publisher at the same place
    for publisher in ledger.publishers.serving:
        place, sequence = place_of(publisher), ledger.publishers.sequences[publisher]
        known = newest.get(place)
        if _is_gate(place) and (known is None or sequence.heard_at_ns >= known.heard_at_ns):
            newest[place] = sequence
    return tuple(nsmallest(_MOST_DOWN, (place for place, last in newest.items() if _is_overdue(last, now_ns))))


def gateless_engines(ledger: Ledger) -> tuple[str, ...]:
    """The places of some engines that no gate was heard before, where turns reach engines unasked.

    A gate that nothing was asked of yet may have said nothing.
    """
    if not ledger.publishers.counts.admitted_unasked:
        return ()
    engines, sequences = ledger.engines, ledger.publishers.sequences
    gates = {
        place
        for publisher in ledger.publishers.serving
        if _is_gate(place := place_of(publisher)) or sequences[publisher].is_gate
    }
    behind = {each for gate in gates for each in engines.behind(gate)}
    alone = (
        each
        for each in engines.pools
        if each not in behind and not any(stands_before(gate, each) for gate in gates)
    )
    return tuple(nsmallest(_MOST_DOWN, alone))


def each_engine(ledger: Ledger, roster: Iterable[Known], now_ns: int) -> Iterator[EngineRow]:
    """Every engine that a roster names or that was heard, by name; a row tells what is when it is asked for.

    O(engines + programs with a slot or in line); one by one, for who lets others go on in between.
    """
    programs, pools = ledger.programs, ledger.engines.samples
    named = {each.place: each for each in roster}
    placed = Counter(programs.by_name[name].replica for name in programs.active)
    waiting = Counter(programs.by_name[name].replica for name in programs.queue)
    for place in sorted(pools.keys() | named.keys()):
        yield _row(place, ledger, named.get(place), placed[place], waiting[place], now_ns)


def engine_listing(rows: Sequence[EngineRow], moves: MoveLog, *, most: int = 0) -> EngineListing:
    """At most ``most`` (0: no bound) of the rows: those that need attention, then the fullest; by name again."""
    shown = rows
    if most and len(rows) > most:
        first = sorted(rows, key=lambda row: (not row.needs_attention, -row.kv_use_ratio, row.place))
        shown = sorted(islice(first, most), key=lambda row: row.place)
    return EngineListing(engines=shown, total=len(rows), moves=tuple(moves.latest))


def _row(place: str, ledger: Ledger, engine: Known | None, programs: int, waiting: int, now_ns: int) -> EngineRow:
    known = ledger.engines.sample_of(place) or PoolSampled(total_blocks=0, free_blocks=0)
    demand, standing = _demand_blocks(ledger, place), _standing(ledger, engine, place)
    return EngineRow(
        place=place,
        address=engine.address if engine is not None else "",
        standing=standing,
        has_plugin=engine is None or engine.has_plugin,
        kv_total_blocks=known.total_blocks,
        kv_free_blocks=known.free_blocks,
        kv_evictable_blocks=known.evictable_blocks,
        kv_retained_blocks=known.retained_blocks,
        kv_demand_blocks=demand,
        kv_use_ratio=demand / known.total_blocks if known.total_blocks else 0.0,
        host_total_blocks=known.host_total_blocks,
        host_used_blocks=known.host_used_blocks,
        turns=_turns(ledger, place),
        programs=programs,
        waiting=waiting,
        heard_ns=_last_seen_ago_ns(ledger, place, now_ns),
        silent=standing in ("", "serving") and _is_silent(ledger, place, now_ns),
        passive=known.reason,
        disaggregation=known.disaggregation,
    )


def _standing(ledger: Ledger, engine: Known | None, place: str) -> str:
    """As the roster has it, or as it was told to the ledger last; empty where no fleet lists its engines."""
    if engine is not None:
        return engine.standing
    if ledger.engines.listed is None:
        return ""
    return "serving" if ledger.engines.takes(place) else "draining"


def _demand_blocks(ledger: Ledger, place: str) -> int:
    """What the active programs there need, the prefix that they share once; of a single engine, all of it."""
    charges = ledger.programs.charges
    if not charges.several:
        return ledger.programs.demand_blocks if place in ledger.engines.pools else 0
    return charges.demanded_of(place, ledger.programs.shared_blocks)


def _turns(ledger: Ledger, place: str) -> int:
    if ledger.programs.charges.several:
        return ledger.turns.load.turns[place]
    return len(ledger.turns.running) if place in ledger.engines.pools else 0


def _last_seen_ago_ns(ledger: Ledger, place: str, now_ns: int) -> int:
    """Since the engine was heard, 1 at least; 0: it was never, or is forgotten."""
    sequence = _sequence(ledger, place)
    return max(1, now_ns - sequence.heard_at_ns) if sequence is not None else 0


def _is_silent(ledger: Ledger, place: str, now_ns: int) -> bool:
    """Whether it was never heard, was asked for its state and did not answer, or runs turns and tells nothing.

    It tells of its pool once a second while it has any. One that has none may tell nothing for long.
    """
    sequence = _sequence(ledger, place)
    if sequence is None:
        return True
    if _turns(ledger, place) and now_ns - sequence.heard_at_ns >= _BUSY_REPORTS_NS:
        return True
    return _is_overdue(sequence, now_ns)


def _is_gate(place: str) -> bool:
    return kind_of(place.rpartition("/")[2]) == "gate"


def _is_overdue(sequence: SequenceTracker, now_ns: int) -> bool:
    asked = sequence.unanswered
    return asked > 1 or (asked > 0 and now_ns - sequence.asked_at_ns >= _ANSWERS_WITHIN_NS)


def _sequence(ledger: Ledger, place: str) -> SequenceTracker | None:
    pool = ledger.engines.sample_of(place)
    return ledger.publishers.sequences.get(pool.publisher) if pool is not None else None
