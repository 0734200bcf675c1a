"""What publishers of the simulated world tell: their numbering, and the events of an engine's turns and pool."""

from typing import Any

from controlplane.core.model.causes import CHANGE_FIELDS
from controlplane.core.model.events import FirstToken, PoolSampled, TurnEnded, TurnSubmitted
from controlplane.lab.sim.call import Progress
from controlplane.lab.sim.scheduler import Scheduler


class Publisher:
    """Numbers events from 1; without a name it leaves them unnumbered (0)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sequence = 0

    def stamp(self, now_ns: int) -> dict[str, Any]:
        """What the next event says of itself: whose it is, its number, and when it was."""
        if self.name:
            self.sequence += 1
        return {"publisher": self.name, "sequence": self.sequence, "at_ns": now_ns}

    def of_turn(self, turn: Progress, now_ns: int) -> dict[str, Any]:
        """The same of a turn's next event, and which turn it is."""
        return {**self.stamp(now_ns), "program_id": turn.call.program_id, "turn_id": turn.call.turn_id}


def submitted(publisher: Publisher, turn: Progress, projected_blocks: int, now_ns: int) -> TurnSubmitted:
    """The engine queued the turn."""
    return TurnSubmitted(
        **publisher.of_turn(turn, now_ns),
        projected_blocks=projected_blocks,
        prompt_tokens=turn.call.prompt_tokens,
        trace=turn.call.trace,
        **{name: getattr(turn.call.change, name) for name in CHANGE_FIELDS},
    )


def first_token(publisher: Publisher, turn: Progress, now_ns: int) -> FirstToken:
    """Its prompt is prefilled, for the first time."""
    return FirstToken(
        **publisher.of_turn(turn, now_ns),
        launch_delay_ns=turn.scheduled_ns - turn.queued_ns,
        prefill_ns=now_ns - turn.scheduled_ns,
        prompt_tokens=turn.call.prompt_tokens,
        cached_tokens=turn.cached_tokens,
        loaded_tokens=turn.loaded_tokens,
    )


def ended(publisher: Publisher, turn: Progress, now_ns: int) -> TurnEnded:
    """It finished, or was aborted."""
    return TurnEnded(
        **publisher.of_turn(turn, now_ns),
        prompt_tokens=turn.call.prompt_tokens,
        output_tokens=turn.produced_tokens,
        cached_tokens=turn.cached_tokens,
        service_ns=turn.service_ns,
        tool=turn.call.tool,
        tool_calls=turn.call.tool_calls,
        ok=not turn.aborted or turn.remaining_tokens == 0,
        recomputed_tokens=turn.recomputed_tokens,
    )


def pool_sampled(
    publisher: Publisher, scheduler: Scheduler, block_tokens: int, context_tokens: int, now_ns: int
) -> PoolSampled:
    """The allocator's state."""
    cache = scheduler.pool.cache
    below = cache.below
    return PoolSampled(
        **publisher.stamp(now_ns),
        total_blocks=cache.total_blocks,
        free_blocks=cache.free_blocks,
        evictable_blocks=cache.evictable_blocks,
        retained_blocks=cache.pinned_blocks,
        block_tokens=block_tokens,
        turns_running=len(scheduler.turns) - len(scheduler.waiting),
        turns_waiting=len(scheduler.waiting),
        retractions=scheduler.retractions,
        host_total_blocks=below.total_blocks if below is not None else 0,
        host_used_blocks=below.used_blocks if below is not None else 0,
        context_tokens=context_tokens,
    )
