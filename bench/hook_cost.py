"""What the SGLang plugin's hooks cost the scheduler's thread (budget: 20 us an event, 1% of a step).

    python bench/hook_cost.py [--batch N] [--json]

The hooks run against doubles of the scheduler and its requests, with a real emitter whose bus is down, so that only
their own time is measured. The yardstick is one decode step of the measured hardware profile at the same batch.
"""

import argparse
import json
import time
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from controlplane.lab.sim.profile import load_profile
from engine_hooks.engine.settings import Settings
from engine_hooks.engine.view import PoolTokens
from engine_hooks.sglang.attached import Attached
from engine_hooks.sglang.engine_view import EngineView
from engine_hooks.sglang.scheduler_side import SchedulerSide

PROFILE = "h200-llama31-8b"
CONTEXT_TOKENS = 8000
ROUNDS = 2000
BUDGET_EVENT_US = 20.0
BUDGET_SHARE = 0.01


class ViewDouble(EngineView):
    """The real view, but for the pool: counters as cheap as the engine's own."""

    def pool(self) -> PoolTokens:
        return PoolTokens(total=1 << 20, free=1 << 19, evictable=1 << 18)

    def promised_tokens(self) -> int:
        return 0

    def live_request_ids(self) -> set[str]:
        return {request.rid for request in self.scheduler.running_batch.reqs}


def request_double(number: int) -> Any:
    """A double of SGLang's ``Req``."""
    return SimpleNamespace(
        rid=f"r{number}",
        origin_input_ids=array("q", [number]) * CONTEXT_TOKENS,
        output_ids=array("q"),
        extra_key=None,
        cache_salt=None,
        prefix_indices=array("q", [number]) * (CONTEXT_TOKENS - 200),
        sampling_params=SimpleNamespace(max_new_tokens=512, custom_params={"program_id": f"p{number}"}),
        finished_reason=None,
        extend_len=200,
        finished=lambda: True,
        routing_key=None,
    )


def side_over(scheduler: Any) -> SchedulerSide:
    """The scheduler side, as ``scheduler_made`` leaves it, over the double."""
    import engine_hooks.sglang.attached as module

    module.EngineView = ViewDouble  # type: ignore[misc]
    side = SchedulerSide(Settings(nats_url="nats://127.0.0.1:9"))
    side.scheduler_made(None, None, scheduler)
    return side


def mean_us(call: Callable[[], object], times: int) -> float:
    """Mean time of one call."""
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="steps, and turns, that are measured")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    batch = SimpleNamespace(reqs=[request_double(i) for i in range(args.batch)])
    tree = SimpleNamespace(tree_core=None, tree_components=[SimpleNamespace(name="FULL")])
    scheduler = SimpleNamespace(
        running_batch=batch, waiting_queue=[], max_total_num_tokens=1 << 20, server_args=None, tree_cache=tree
    )
    side = side_over(scheduler)
    around = side.around
    begins = around("step", before=Attached.step_begins)
    done = around("done", after=Attached.step_done)
    queued = around("queued", after=Attached.request_queued)
    planned = around("planned", after=Attached.prefill_planned)
    release = around("release", before=Attached.before_release, after=Attached.released)

    def nothing(*args: object) -> None:
        return None

    def turn(request: Any) -> None:
        queued(nothing, scheduler, request)
        planned(lambda *args: SimpleNamespace(reqs=[request]), scheduler)
        request.output_ids = array("q", [1])
        done(nothing, scheduler, SimpleNamespace(reqs=[request]))
        release(nothing, request, None)
        request.output_ids = array("q")

    for request in batch.reqs:
        queued(nothing, scheduler, request)
        request.output_ids = array("q", [1])
    done(nothing, scheduler, batch)
    step_us = mean_us(lambda: (begins(nothing), done(nothing, scheduler, batch)), args.rounds)
    fresh = iter([request_double(10_000 + i) for i in range(args.rounds)])
    turn_us = mean_us(lambda: turn(next(fresh)), args.rounds)
    if side.guard.failures:
        raise SystemExit(f"hooks failed, so that nothing was measured: {side.guard.failures}")

    decode_us = load_profile(PROFILE).decode_ps(args.batch, args.batch * CONTEXT_TOKENS) / 1e6
    result = {
        "batch": args.batch,
        "hooks_per_step_us": step_us,
        "hooks_per_turn_us": turn_us,
        "per_event_us": turn_us / 3,
        "decode_step_us": decode_us,
        "share_of_step": step_us / decode_us,
        "within_budget": turn_us / 3 <= BUDGET_EVENT_US and step_us / decode_us <= BUDGET_SHARE,
    }
    if args.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:20} {value:.4f}" if isinstance(value, float) else f"{name:20} {value}")
    print("three events a turn: gpu_submit, gpu_first_token, gpu_end")


if __name__ == "__main__":
    main()
