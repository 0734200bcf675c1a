"""How long the next step takes, and how many decode steps can be computed at once."""

from collections.abc import Sequence

from controlplane.lab.sim.call import Progress
from controlplane.lab.sim.hardware import PS, Profile
from controlplane.lab.sim.kv_pool import KvPool
from controlplane.lab.sim.scheduler import Scheduler


def prefill_ps(profile: Profile, plan: Sequence[tuple[Progress, int]], pool: KvPool) -> int:
    """Of a prefill step: each call and how many tokens of it."""
    compute_ns = load_ps = 0
    for turn, tokens in plan:
        compute_ns += profile.prefill_ns(turn.kv_tokens, tokens)
        load_ps += pool.transfer_ps(turn)
    # Loads run layer by layer beside the computation, as HiCache's do.
    return profile.step_overhead_ns * PS + max(compute_ns * PS, load_ps)


def decode_steps(scheduler: Scheduler, pool: KvPool, start_ps: int, most_steps: int) -> int:
    """Decode steps from ``start_ps`` on during which nothing but tokens changes; at most ``most_steps``."""
    batch, cache = scheduler.batch, pool.cache
    steps = min(batch.steps_to_finish(), most_steps)
    steps = min(steps, batch.steps_with(pool.available_blocks))
    waits = len(scheduler.waiting) or scheduler.partial is not None
    if scheduler.fresh:
        return 1  # their first tokens are known when it is done
    if waits and not scheduler.full:
        return 1  # an end or a retraction has made room: prefill is tried again at the next boundary
    expiry_ns = cache.next_expiry_ns()
    if expiry_ns is not None and (waits or batch.growth_blocks(0, steps) > cache.free_blocks):
        steps = min(steps, 1 + batch.steps_within(expiry_ns * PS - start_ps - 1))
    return steps
