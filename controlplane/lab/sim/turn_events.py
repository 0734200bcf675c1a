"""What the engine model publishes: of a turn its queueing, first token and end; contexts that moved; the pool."""

from controlplane.core.events import ContextMoved, FirstToken, PinReclaimed, PoolSampled, TurnEnded, TurnSubmitted
from controlplane.lab.sim.call import Progress
from controlplane.lab.sim.publisher import Publisher
from controlplane.lab.sim.scheduler import Scheduler


def submitted(publisher: Publisher, turn: Progress, projected_blocks: int, now_ns: int) -> TurnSubmitted:
    """The engine queued the turn."""
    call = turn.call
    return TurnSubmitted(
        **publisher.stamp(now_ns),
        program_id=call.program_id,
        turn_id=call.turn_id,
        projected_blocks=projected_blocks,
        prompt_tokens=call.prompt_tokens,
        trace=call.trace,
    )


def first_token(publisher: Publisher, turn: Progress, now_ns: int) -> FirstToken:
    """Its prompt is prefilled, for the first time."""
    call = turn.call
    return FirstToken(
        **publisher.stamp(now_ns),
        program_id=call.program_id,
        turn_id=call.turn_id,
        launch_delay_ns=turn.scheduled_ns - turn.queued_ns,
        prefill_ns=now_ns - turn.scheduled_ns,
        prompt_tokens=call.prompt_tokens,
        cached_tokens=turn.cached_tokens,
        loaded_tokens=turn.loaded_tokens,
    )


def ended(publisher: Publisher, turn: Progress, now_ns: int) -> TurnEnded:
    """It finished, or was aborted."""
    call = turn.call
    return TurnEnded(
        **publisher.stamp(now_ns),
        program_id=call.program_id,
        turn_id=call.turn_id,
        prompt_tokens=call.prompt_tokens,
        output_tokens=turn.produced_tokens,
        cached_tokens=turn.cached_tokens,
        service_ns=turn.service_ns,
        tool=call.tool,
        tool_calls=call.tool_calls,
        ok=not turn.aborted or turn.remaining_tokens == 0,
        recomputed_tokens=turn.recomputed_tokens,
    )


def context_moved(publisher: Publisher, program_id: str, below_tokens: int, now_ns: int) -> ContextMoved:
    """Nobody told it to, and it left the device, or made room below."""
    return ContextMoved(
        **publisher.stamp(now_ns),
        program_id=program_id,
        below_tokens=below_tokens,
    )


def pin_reclaimed(publisher: Publisher, program_id: str, now_ns: int) -> PinReclaimed:
    """A turn needed its room."""
    return PinReclaimed(**publisher.stamp(now_ns), program_id=program_id)


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
