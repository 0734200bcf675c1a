"""The engines: the memory that each has, and its answers to commands."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from controlplane.core.ledger.engine_turns import EngineLoad
from controlplane.core.ledger.gates import Gates
from controlplane.core.ledger.groups import Groups
from controlplane.core.ledger.persisted import persisted
from controlplane.core.ledger.programs import Charges, Programs
from controlplane.core.ledger.publishers import Publishers
from controlplane.core.ledger.turns import Turns
from controlplane.core.model import events as ev
from controlplane.core.model.commands import Release
from controlplane.core.model.places import node_of, place_of, stands_before
from controlplane.core.model.types import Replica, Status, Tier

_MOST_MOVING = 4096
_TIERS = frozenset(Tier)
_MOST_GATES = 256
_BLOCKS = (
    "total_blocks",
    "free_blocks",
    "evictable_blocks",
    "retained_blocks",
    "host_total_blocks",
    "host_used_blocks",
)
_SUMMED = (*_BLOCKS, "turns_running", "turns_waiting")


def _no_listing() -> dict[str, bool] | None:
    """A node's daemon takes each engine that tells of itself."""
    return None


def _listing(serving: Iterable[str], draining: Iterable[str]) -> dict[str, bool]:
    """By place: whether it takes programs."""
    return dict.fromkeys(serving, True) | dict.fromkeys(draining, False)


@dataclass(slots=True, kw_only=True, eq=False)
class Summed:
    """Each of several engines with what was placed on it, by name in their order, and the sums it was made of.

    ``lent``: those who lend their room are counted too. ``placed_blocks``: what all of them are charged with
    together, of ``charged_blocks`` each. Made, and made anew, by ``scheduling.demand``.
    """

    made_of: tuple[int, int] = (-1, -1)  # the count of ``Engines.changes``, and the prefix that all share
    charges: Charges | None = None
    load: EngineLoad | None = None
    plain: dict[str, Replica] = field(default_factory=dict)
    lent: dict[str, Replica] = field(default_factory=dict)
    charged_blocks: dict[str, int] = field(default_factory=dict)
    placed_blocks: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Engines:
    """What they told of themselves."""

    publishers: Publishers
    programs: Programs
    gates: Gates
    groups: Groups
    turns: Turns
    pools: dict[str, ev.PoolSampled] = persisted(dict)  # by place of the engine: its latest
    retractions: dict[str, int] = persisted(dict)  # by publisher: the last total it reported
    moving: dict[int, Tier] = persisted(dict)  # by command_id: where its KV will be once it is applied
    unpinned: dict[str, None] = persisted(dict)  # programs whose pins ended with a cache; their engines are told
    listed: dict[str, bool] | None = persisted(_no_listing)  # a fleet's, as ``_listing`` has them
    pool: ev.PoolSampled | None = field(init=False)  # what all have together
    counted: dict[str, ev.PoolSampled] = field(default_factory=dict)  # by place, as they are summed up in it
    touched: set[str] = field(default_factory=set)  # places of samples: ``demand`` takes them
    summed: Summed = field(default_factory=Summed)
    known_behind: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)  # by gate, at such a count
    changes: int = 0  # counts what came, went, or takes programs no more, or again

    def __post_init__(self) -> None:
        self._recount()

    # What others read

    @property
    def samples(self) -> dict[str, ev.PoolSampled]:
        """By place, the latest of every engine: also of those that decode, for which nothing is decided."""
        return self.pools | self.turns.handoffs.decoders

    def sample_of(self, place: str) -> ev.PoolSampled | None:
        return self.pools.get(place) or self.turns.handoffs.decoders.get(place)

    def takes(self, place: str) -> bool:
        return self.listed is None or self.listed.get(place, False)

    def behind(self, gate: str) -> Sequence[str]:
        """The engines, in the order of their names, that the gate at this place can send turns to.

        A gate before a router of prefill engines has another port than they have.
        """
        changes, names = self.known_behind.get(gate, (-1, ()))
        if changes != self.changes:
            open_engines = [name for name in sorted(self.pools) if self.takes(name)]
            names = tuple(name for name in open_engines if stands_before(gate, name)) or tuple(
                name
                for name in open_engines
                if self.pools[name].disaggregation == ev.PREFILL and node_of(name) == node_of(gate)
            )
            if len(self.known_behind) > _MOST_GATES:
                self.known_behind.clear()
            self.known_behind[gate] = (self.changes, names)
        return names

    @property
    def are_several(self) -> bool:
        """Whether a program's engine is chosen: also of a fleet that has one left, since others come and go."""
        return len(self.pools) > (1 if self.listed is None else 0)

    # Events

    def pool_sampled(self, event: ev.PoolSampled, now_ns: int) -> None:
        place = place_of(event.publisher)
        self.turns.handoffs.give_up(now_ns)
        if self.listed is not None and place not in self.listed and event.disaggregation != ev.DECODE:
            return  # it left the fleet, and does not know it
        # A publisher's first sample does not tell when its retractions happened.
        before = self.retractions.get(event.publisher, event.retractions)
        self.turns.signals.retractions += max(0, event.retractions - before)
        self.retractions[event.publisher] = event.retractions
        if event.disaggregation == ev.DECODE:
            self.turns.handoffs.decoders[place] = event
            return
        first, size = next(iter(self.pools), place), max(1, event.block_tokens)
        if place == first and size != self.programs.estimates.block_tokens:
            self._resize_blocks(size)
        self.turns.has_blocks_of(place, size)
        sample = in_blocks_of(event, self.programs.estimates.block_tokens)
        known, self.pools[place] = self.pools.get(place), sample
        if known is None:
            self._update_pools()
        else:
            self._update_sample(place, sample)

    def command_applied(self, event: ev.CommandApplied, now_ns: int) -> None:
        self.publishers.counts.commands_applied += 1
        tier = self.moving.pop(event.command_id, None)
        program = self.programs.by_name.get(event.program_id)
        if program is None or program.status is Status.ENDED:
            return
        if tier is not None:
            program.kv_tier = tier
        elif event.moved_to in _TIERS and program.replica == place_of(event.publisher) and not program.open_turns:
            program.kv_tier = Tier(event.moved_to)  # by its node's daemon, of which a fleet hears only this

    def command_rejected(self, event: ev.CommandRejected, now_ns: int) -> None:
        self.publishers.counts.commands_rejected += 1
        program, place = self.programs.by_name.get(event.program_id), place_of(event.publisher)
        if program is not None and program.replica != place and place in self.pools and program.replica:
            return  # every engine hears every command: this one does not have the program
        if self.moving.pop(event.command_id, None) is not None:
            return  # its KV stays where it is, and a pin that the move would have ended has ended
        if program is not None:
            program.retained_until_ns = 0  # only pins are believed before they are confirmed

    def context_moved(self, event: ev.ContextMoved, now_ns: int) -> None:
        """It counts as being below while a return would find enough of it there not to be a cold one."""
        program = self.programs.by_name.get(event.program_id)
        if program is None or program.status is Status.ENDED or program.open_turns:
            return  # what a turn uses is on the device
        if program.replica not in ("", place_of(event.publisher)):
            return  # another engine, where it ran before
        own_tokens = program.context_tokens - program.shared_blocks * self.programs.estimates.block_tokens
        enough = event.below_tokens > 0 and event.below_tokens >= self.turns.cold_return_ratio * own_tokens
        program.kv_tier = Tier.HOST if enough else Tier.NONE

    def pin_reclaimed(self, event: ev.PinReclaimed, now_ns: int) -> None:
        """A pin that is given up is none any more: nobody releases it, or goes by it when he chooses an engine.

        It is not asked for again: its room was needed. Of a pin that was asked for anew meanwhile, and is believed
        to have gone as well, the deadline ends it in the engine.
        """
        program = self.programs.by_name.get(event.program_id)
        if program is not None and program.replica in ("", place_of(event.publisher)):
            program.retained_until_ns = 0

    def cache_flushed(self, event: ev.CacheFlushed, now_ns: int) -> None:
        """All contexts there are gone at once: what is asked for next is computed as a whole."""
        for place in [each for each in self.pools if event.empties(each)]:
            pinned = (p for p in self.programs.by_name.values() if p.retained_until_ns > now_ns)
            self.unpinned |= {each.program_id: None for each in pinned if each.replica in (place, "")}
            self.forget_contexts(place)

    def releases_due(self) -> Iterator[Release]:
        """What tells engines, once, of pins that ended with a cache: not all that are told of a flush empty it."""
        yield from (Release(program_id=name, reason="its engine's cache was flushed") for name in self.unpinned)
        self.unpinned.clear()

    # What follows

    def expect_move(self, command_id: int, tier: Tier) -> None:
        """A command that moves KV was sent; where it is now is known once the engine has answered."""
        self.moving[command_id] = tier
        if len(self.moving) > _MOST_MOVING:
            del self.moving[next(iter(self.moving))]

    def handle_loss(self, place: str) -> None:
        """The engine there is gone, and its memory with it, unless it is the last that was known.

        Its programs keep their slots, and their place in the queue: they are placed again (docs/adr/0049).
        """
        self.turns.handoffs.decoders.pop(place, None)
        if place not in self.pools or (len(self.pools) == 1 and self.listed is None):
            return
        if len(self.pools) > 1:  # of the last one it stays known what it had: nobody is let in by guesses
            del self.pools[place]
            self.turns.block_tokens.pop(place, None)
            self._update_pools()
        self.forget_contexts(place)
        self.programs.leave(place)

    def list_all(self, serving: Iterable[str], draining: Iterable[str]) -> None:
        """A fleet has these, and no others. Who is on one that drains goes on elsewhere with its next turn."""
        before, self.listed = self.listed, _listing(serving, draining)
        for place in draining:
            if before is None or before.get(place, True):
                self.programs.leave(place, gone=False)
        self._update_pools()

    def lists(self, serving: Iterable[str], draining: Iterable[str]) -> bool:
        return self.listed == _listing(serving, draining)

    def forget_contexts(self, replica: str) -> None:
        """The replica holds no KV any more; nor does anybody for programs that never ran."""
        self.groups.flushed(replica)
        for program in self.programs.by_name.values():
            if program.replica in (replica, ""):
                program.retained_until_ns = 0
                program.kv_tier = Tier.NONE
                program.emptied = not program.open_turns

    def _update_pools(self) -> None:
        """An engine came or went: sum up anew what all engines have, and what each is charged with."""
        self._sum_up()
        if self.programs.charges.several != self.are_several:
            self._recount()

    def _update_sample(self, place: str, event: ev.PoolSampled) -> None:
        """A sample of an engine that is known: of very many engines only that one is summed up anew."""
        before, together = self.counted.get(place), self.pool
        self.touched.add(place)
        if before is None:
            return  # it takes no programs
        if together is None or len(self.counted) < 2 or before.block_tokens != event.block_tokens:
            self._sum_up()
            return
        self.counted[place] = event
        if _most_blocks(event) != _most_blocks(before):
            self._bound_turns()
        more = {name: getattr(event, name) - getattr(before, name) for name in _SUMMED}
        self.pool = replace(together, **{name: getattr(together, name) + by for name, by in more.items() if by})

    def _sum_up(self) -> None:
        self.counted = dict(self._open_pools())
        self.pool = whole(self.counted)
        self._bound_turns()
        self.changes += 1

    def _bound_turns(self) -> None:
        """No turn can need more than the largest engine has, nor than its model takes."""
        self.turns.most_blocks = max(map(_most_blocks, self.counted.values()), default=0)

    def _open_pools(self) -> Mapping[str, ev.PoolSampled]:
        """Those that count as room; all, where none takes programs."""
        if self.listed is None:
            return self.pools
        return {place: pool for place, pool in self.pools.items() if self.takes(place)} or self.pools

    def _recount(self) -> None:
        self._sum_up()
        self.programs.recount(several=self.are_several)
        self.turns.recount()

    def _resize_blocks(self, block_tokens: int) -> None:
        """Blocks hold ``block_tokens`` from now on: turns may have been queued before the engine said so.

        Of several engines the first says so, and what the others tell in blocks of their own is taken in those.
        """
        programs, estimates = self.programs.by_name, self.programs.estimates
        ratio = estimates.block_tokens / block_tokens
        own = {place: self.turns.block_tokens.get(place, estimates.block_tokens) for place in self.pools}
        estimates.block_tokens = block_tokens
        for place, size in own.items():
            self.turns.has_blocks_of(place, size)
            self.pools[place] = in_blocks_of(self.pools[place], block_tokens)
        for program in programs.values():
            program.kv_blocks = ceil(program.kv_blocks * ratio)
            program.shared_blocks = min(program.kv_blocks, ceil(program.shared_blocks * ratio))
            program.group_blocks = ceil(program.group_blocks * ratio)
            program.queued_blocks = 0
        for held in self.gates.held.values():
            held.blocks = max(1, ceil(held.blocks * ratio))
            programs[programs[held.program_id].root_id].queued_blocks += held.blocks
        for turn in self.turns.running.values():
            turn.blocks = ceil(turn.blocks * ratio)
        self._recount()


def _most_blocks(pool: ev.PoolSampled) -> int:
    longest = -(-pool.context_tokens // max(1, pool.block_tokens))
    return min(pool.total_blocks, longest) if longest else pool.total_blocks


def in_blocks_of(sample: ev.PoolSampled, tokens: int) -> ev.PoolSampled:
    """The sample, as if the engine's blocks held so many ``tokens``."""
    size = max(1, sample.block_tokens)
    if size == tokens:
        return sample
    return replace(
        sample,
        block_tokens=tokens,
        **{name: getattr(sample, name) * size // tokens for name in _BLOCKS},
    )


def whole(pools: Mapping[str, ev.PoolSampled]) -> ev.PoolSampled | None:
    """What all engines have together, in blocks of one size; None before the first sample."""
    samples = list(pools.values())
    if len(samples) < 2:
        return samples[0] if samples else None
    together: dict[str, Any] = {name: sum(getattr(each, name) for each in samples) for name in _SUMMED}
    return ev.PoolSampled(block_tokens=samples[0].block_tokens, **together)
