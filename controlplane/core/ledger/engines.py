"""The engines: the memory that each has, and its answers to commands."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from controlplane.core import events as ev
from controlplane.core.events import place_of
from controlplane.core.ledger.gates import Gates
from controlplane.core.ledger.kept import kept
from controlplane.core.ledger.programs import Programs
from controlplane.core.ledger.publishers import Publishers
from controlplane.core.ledger.turns import Turns
from controlplane.core.types import Status, Tier

_MOST_MOVING = 4096


@dataclass(slots=True, kw_only=True, eq=False)
class Engines:
    """What they told of themselves."""

    publishers: Publishers
    programs: Programs
    gates: Gates
    turns: Turns
    pools: dict[str, ev.PoolSampled] = kept(dict)  # by place of the engine: its latest
    retractions: dict[str, int] = kept(dict)  # by publisher: the last total it reported
    moving: dict[int, Tier] = kept(dict)  # by command_id: where its KV will be once it is applied
    pool: ev.PoolSampled | None = field(init=False)  # what all have together

    def __post_init__(self) -> None:
        self._recount()

    # Events

    def pool_sampled(self, event: ev.PoolSampled, now_ns: int) -> None:
        # A publisher's first sample does not tell when its retractions happened.
        before = self.retractions.get(event.publisher, event.retractions)
        self.turns.signals.retractions += max(0, event.retractions - before)
        self.retractions[event.publisher] = event.retractions
        place = place_of(event.publisher)
        self.pools[place] = event
        if event.block_tokens != self.programs.estimates.block_tokens and place == next(iter(self.pools)):
            self._resize_blocks(max(1, event.block_tokens))
        self._hear_pools()

    def command_applied(self, event: ev.CommandApplied, now_ns: int) -> None:
        self.publishers.counts.commands_applied += 1
        tier = self.moving.pop(event.command_id, None)
        program = self.programs.by_name.get(event.program_id)
        if tier is not None and program is not None and program.status is not Status.ENDED:
            program.kv_tier = tier

    def command_rejected(self, event: ev.CommandRejected, now_ns: int) -> None:
        self.publishers.counts.commands_rejected += 1
        program, place = self.programs.by_name.get(event.program_id), place_of(event.publisher)
        if program is not None and program.replica != place and place in self.pools and program.replica:
            return  # every engine hears every command: this one does not have the program
        if self.moving.pop(event.command_id, None) is not None:
            return  # its KV stays where it is, and a pin that the move would have ended has ended
        if program is not None:
            program.retained_until_ns = 0  # only pins are believed before they are confirmed

    # What follows

    def expect_move(self, command_id: int, tier: Tier) -> None:
        """A command that moves KV was sent; where it is now is known once the engine has answered."""
        self.moving[command_id] = tier
        if len(self.moving) > _MOST_MOVING:
            del self.moving[next(iter(self.moving))]

    def lose(self, place: str) -> None:
        """The engine there is gone, and its memory with it, unless it is the last that was known."""
        if len(self.pools) > 1 and place in self.pools:
            del self.pools[place]
            self._hear_pools()
            self.forget_contexts(place)

    def forget_contexts(self, replica: str) -> None:
        """The replica holds no KV any more; nor does anybody for programs that never ran."""
        for program in self.programs.by_name.values():
            if program.replica in (replica, ""):
                program.retained_until_ns = 0
                program.kv_tier = Tier.NONE

    def _hear_pools(self) -> None:
        """A sample came, or an engine went: sum up anew what all engines have, and what each is charged with."""
        self.pool = whole(self.pools)
        if self.programs.charges.several != (len(self.pools) > 1):
            self._recount()

    def _recount(self) -> None:
        self.pool = whole(self.pools)
        self.programs.recount(several=len(self.pools) > 1)
        self.turns.recount()

    def _resize_blocks(self, block_tokens: int) -> None:
        """Blocks hold ``block_tokens`` from now on: turns may have been queued before the engine said so."""
        programs, estimates = self.programs.by_name, self.programs.estimates
        ratio = estimates.block_tokens / block_tokens
        estimates.block_tokens = block_tokens
        for program in programs.values():
            program.kv_blocks = ceil(program.kv_blocks * ratio)
            program.shared_blocks = min(program.kv_blocks, ceil(program.shared_blocks * ratio))
            program.queued_blocks = 0
        for held in self.gates.held.values():
            held.blocks = max(1, ceil(held.blocks * ratio))
            programs[programs[held.program_id].root_id].queued_blocks += held.blocks
        for turn in self.turns.running.values():
            turn.blocks = ceil(turn.blocks * ratio)
        self._recount()


def whole(pools: Mapping[str, ev.PoolSampled]) -> ev.PoolSampled | None:
    """What all engines have together; None before the first sample. Their blocks are taken to be of one size."""
    samples = list(pools.values())
    if len(samples) < 2:
        return samples[0] if samples else None
    return ev.PoolSampled(
        total_blocks=sum(each.total_blocks for each in samples),
        free_blocks=sum(each.free_blocks for each in samples),
        evictable_blocks=sum(each.evictable_blocks for each in samples),
        retained_blocks=sum(each.retained_blocks for each in samples),
        block_tokens=samples[0].block_tokens,
        turns_running=sum(each.turns_running for each in samples),
        turns_waiting=sum(each.turns_waiting for each in samples),
        host_total_blocks=sum(each.host_total_blocks for each in samples),
        host_used_blocks=sum(each.host_used_blocks for each in samples),
    )
