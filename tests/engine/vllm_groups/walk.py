"""Random turns, pins, discards, evictions, preemptions, aborts and resets over vLLM's own scheduler.

    python walk.py [--steps 10000] [--seed 0] [--overlaps] MODEL_FOLDER [SHAPE ...]

It runs in vLLM's environment, without a model: whatever a step would have computed is made up. Beside it goes a
model of what must hold: who refers to which block, and how far each pin's next hit reaches. It prints a line of
JSON for each shape of groups.
"""

import argparse
import json
import os
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
os.environ.update(PENSTOCK_PLUGIN_PORT="8000", PENSTOCK_PLUGIN_BOARD="", PENSTOCK_PLUGIN_LABELS="penstock")

from shapes import MOST_TOKENS, SHAPES, Shape, make_scheduler
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from controlplane.core.model.commands import Discard, Label, Release, Retain
from controlplane.core.model.types import seconds
from controlplane.core.policies.engine_policies import STOCK, EnginePolicies
from controlplane.core.policies.memory.opportunistic import Opportunistic
from controlplane.core.policies.priority.mlfq import Mlfq
from controlplane.emit.emitter import Emitter
from engine_hooks.engine.settings import Settings
from engine_hooks.vllm.attached import Attached
from engine_hooks.vllm.scheduler_side import SchedulerSide

PROGRAMS = 12
SYSTEM = list(range(10, 100))  # what all programs begin with
POLICIES = (STOCK, EnginePolicies(priority=Mlfq(), memory=Opportunistic()))
CHECK_EVERY = 25
KINDS = {  # what happens, how often
    "nothing": 60,
    "begin": 60,
    "retain": 30,
    "discard": 5,
    "evict": 4,
    "preempt": 3,
    "release": 3,
    "abort": 2,
    "label": 2,
    "follow": 1,
    "reset": 1,
}
step_planned = Attached.step_planned


@dataclass(frozen=True, slots=True)
class Promise:
    """A pin keeps the hit that there was when it was taken."""

    lock: Any
    hashes: Sequence[bytes]
    tokens: int


class Walk:
    """One shape's scheduler with the plugin, programs, and what must hold."""

    def __init__(self, shape: Shape, model: Path, seed: int, *, overlaps: bool) -> None:
        self.side = SchedulerSide(Settings(pin_budget_ratio=0.95))
        chosen = AsyncScheduler if overlaps else Scheduler
        self.scheduler = make_scheduler(self.side.wraps(chosen), shape, model)
        assert self.side.attached is not None, self.side.passive_because
        self.attached: Attached = self.side.attached
        self.told: Counter[str] = Counter()
        self.attached._probe._send = self.attached._send = lambda event: self.told.update([type(event).__name__])
        self.random = random.Random(seed)
        self.hasher = get_request_block_hasher(self.pool.hash_block_size, sha256)
        self.contexts = {f"p{number}": list(SYSTEM) for number in range(PROGRAMS)}
        self.turns: dict[str, str] = {}  # of requests that are there: whose they are
        self.locks: dict[int, Promise] = {}  # what the plugin refers to, as it began to
        self.counts: Counter[str] = Counter()
        self.number = 0
        self.overlaps = overlaps  # a step is planned before the one before it has come to its end, as on a GPU
        self.in_flight: deque[tuple[Any, set[str]]] = deque()
        self._watch()

    @property
    def pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    def _watch(self) -> None:
        """Note the references that the plugin takes and gives back; look before a pin ends with its next turn."""
        view = self.attached._view
        unlock = view.unlock

        def watched(lock_key: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def lock(key: Any) -> Any:
                made = lock_key(key)
                if made is not None:
                    self.locks[id(made)] = Promise(made, key.hashes, self._hit(key.hashes))
                    self.counts["pins"] += 1
                    self.counts["pinned tokens"] += self.locks[id(made)].tokens
                return made

            return lock

        def given_back(lock: Any) -> None:
            del self.locks[id(lock)]
            unlock(lock)

        def before_planned(attached: Attached, output: Any) -> None:
            self.returned(output)
            step_planned(attached, output)

        for name in ("lock", "lock_held", "lock_left_behind"):
            setattr(view, name, watched(getattr(view, name)))
        view.unlock = given_back  # type: ignore[method-assign]
        Attached.step_planned = before_planned  # type: ignore[method-assign, assignment]

    # What happens

    def step(self) -> None:
        """One thing, and then a step of the engine."""
        self.number += 1
        getattr(self, self.random.choices(list(KINDS), list(KINDS.values()))[0])()
        self.engine_steps()
        if self.number % CHECK_EVERY == 0:
            self.check()

    def nothing(self) -> None:
        pass

    def _program(self) -> str:
        return self.random.choice(list(self.contexts))

    def begin(self) -> None:
        """A program's next turn; one that has grown large, or sometimes any, begins anew."""
        rng, pinned = self.random, list(self.attached._pins.programs)
        program = rng.choice(pinned) if pinned and rng.random() < 0.5 else self._program()
        if program in self.turns.values():
            return
        context, output = self.contexts[program], rng.choice((1, 5, 20, 80, 200))
        new = [rng.randrange(100, 30_000) for _ in range(rng.choice((3, 30, 150, 400)))]
        if len(context) + len(new) + output > MOST_TOKENS * 3 // 4 or rng.random() < 0.05:
            context = list(SYSTEM)
        elif rng.random() < 0.1:
            context = context[: rng.randrange(len(SYSTEM), len(context) + 1)]  # its client rewrote history
        self.counts["turns"] += 1
        name = f"r{self.counts['turns']}"
        labels = {"penstock": {"program_id": program}}
        params = SamplingParams(max_tokens=output, ignore_eos=True, temperature=0, extra_args=labels)
        self.contexts[program] = context + new
        self.turns[name] = program
        self.scheduler.add_request(Request(name, context + new, params, None, block_hasher=self.hasher))

    def _say(self, command: Any) -> None:
        self.attached.on_command(command)

    def retain(self) -> None:
        ttl = self.random.choice((0.0, 0.001, 60, 60, 60))
        self._say(Retain(command_id=self.number, program_id=self._program(), ttl_ns=seconds(ttl)))

    def release(self) -> None:
        self._say(Release(command_id=self.number, program_id=self._program()))

    def label(self) -> None:
        word = self.random.choice(("busy", "idle", "inactive", ""))
        self._say(Label(command_id=self.number, program_id=self._program(), label=word))

    def discard(self) -> None:
        """Nothing of it that is its own stays in the cache, but for what turns use; nobody else loses anything."""
        program = self._program()
        context = self.attached._contexts.find(program)
        hits = {name: self._hit(each.key.hashes) for name, each in self.attached._contexts if name != program}
        self._say(Discard(command_id=self.number, program_id=program))
        self.attached.step_begins()
        if context is not None:
            others = [each.key.hashes for _, each in self.attached._contexts]
            own = list(self._own(context.key.hashes, others))
            used = {block.block_hash for block in own if block.ref_cnt}
            left = [block for block in own if block.block_hash not in used]
            assert not left, f"a discard of {program} left {left}"
            for name, each in self.attached._contexts:
                assert self._hit(each.key.hashes) >= hits[name], f"a discard of {program} took from {name}"
            self.counts["discards"] += 1

    def _own(self, hashes: Sequence[bytes], others: Sequence[Sequence[bytes]]) -> Iterator[Any]:
        """Blocks with content of a context that no other known one begins with: all of the pool is looked at."""
        known = {each for other in others for each in other}
        own = {each for each in hashes if each not in known}
        fine = self.scheduler.kv_cache_manager.coordinator.enable_partial_hash_hits
        if fine and known.intersection(hashes):
            own -= set(hashes[: len(hashes) - len(own) + 4])  # a part of the first block may be theirs
        for block in self.pool.blocks:
            if block.block_hash is not None and block.block_hash[:-4] in own:
                yield block

    def abort(self) -> None:
        if self.turns:
            name = self.random.choice(list(self.turns))
            self.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
            self._over(name)

    def preempt(self) -> None:
        running = self.scheduler.running
        if running:
            self.scheduler._preempt_request(running.pop(), time.monotonic())
            self.counts["preempted"] += 1

    def evict(self) -> None:
        self.counts["evicted blocks"] += self.attached.evict(self.random.choice((1, 64, 512))) // self._page

    @property
    def _page(self) -> int:
        return self.attached._view.page_tokens

    def reset(self) -> None:
        """Succeeds exactly while no turn holds a block, whatever is pinned."""
        held = any(self._held())
        assert self.scheduler.reset_prefix_cache() is not held
        if not held:
            assert not self.locks and self.pool.get_num_free_blocks() == self.pool.num_gpu_blocks - 1
            self.counts["resets"] += 1

    def follow(self) -> None:
        """The daemon's word on policies."""
        beat = SimpleNamespace(engine_policies=self.random.choice(POLICIES).dumps(), lease_ttl_ns=seconds(60))
        self.attached.on_heartbeat(beat)

    def engine_steps(self) -> None:
        """A step is planned, and one that was planned before it comes to its end."""
        scheduler = self.scheduler
        if scheduler.has_requests():
            output = scheduler.schedule()
            samples = [
                name for name in output.num_scheduled_tokens if not scheduler.requests[name].is_prefill_chunk
            ]
            self.in_flight.append((output, set(samples)))
            moves = any(each.total_num_scheduled_tokens for each, _ in self.in_flight)
            turns = f"{len(scheduler.waiting)} turns wait, {len(scheduler.running)} run"
            assert moves or not self.turns, f"{turns}, and a step has nothing to do"
        while len(self.in_flight) > (self.overlaps and scheduler.has_requests()):
            self._step_ends(*self.in_flight.popleft())

    def _step_ends(self, output: Any, samples: set[str]) -> None:
        names = list(output.num_scheduled_tokens)
        made = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: position for position, name in enumerate(names)},
            sampled_token_ids=[[self.random.randrange(100, 30_000)] if name in samples else [] for name in names],
        )
        requests = {name: self.scheduler.requests[name] for name in names if name in self.scheduler.requests}
        self.scheduler.update_from_output(output, made)
        for name, request in requests.items():
            if request.is_finished() and name in self.turns:
                self.contexts[self.turns[name]] = list(request.all_token_ids)
                self._over(name)

    def _over(self, name: str) -> None:
        program = self.turns.pop(name, None)
        if program is not None and len(self.contexts[program]) > MOST_TOKENS // 2:
            self.contexts[program] = list(SYSTEM)

    # What must hold

    def _hit(self, hashes: Sequence[bytes]) -> int:
        """How far vLLM itself finds them cached."""
        coordinator = self.scheduler.kv_cache_manager.coordinator
        return int(coordinator.find_longest_cache_hit(hashes, len(hashes) * self.pool.hash_block_size)[1])

    def returned(self, output: Any) -> None:
        """A pinned program's turn is scheduled: it finds what was promised, as far as it still asks for it."""
        pins = self.attached._pins._held
        for new in output.scheduled_new_reqs:
            held, request = pins.get(self.turns.get(new.req_id, "")), self.scheduler.requests[new.req_id]
            if held is None:
                continue
            promise, found = self.locks[id(held.lock)], new.num_computed_tokens
            asked = list(request.block_hashes[: len(promise.hashes)]) == list(promise.hashes)
            if asked and request.num_tokens > len(promise.hashes) * self.pool.hash_block_size:
                assert found >= promise.tokens, (
                    f"{new.req_id} found {found} tokens, and {promise.tokens} were pinned"
                )
                self.counts["returns to a pin"] += 1
                self.counts["found tokens"] += found

    def _held(self) -> Iterator[Any]:
        """Every reference of the engine's own."""
        manager = self.scheduler.kv_cache_manager
        for each in manager.coordinator.single_type_managers:
            for blocks in each.req_to_blocks.values():
                yield from (block for block in blocks if not block.is_null)
            for pair in each._pending_cow_copies:
                yield from pair

    def check(self) -> None:
        """All blocks are accounted for, and pinned hits are there still."""
        holders = Counter(block.block_id for block in self._held())
        for promise in self.locks.values():
            holders.update(block.block_id for block in promise.lock.receipt)
            assert self._hit(promise.hashes) >= promise.tokens, "a pin lost a part"
        pool = self.pool
        references = {block.block_id: block.ref_cnt for block in pool.blocks[1:] if block.ref_cnt}
        assert references == dict(holders), "references without a holder, or the other way round"
        free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
        assert len(free) == len(set(free)) == pool.get_num_free_blocks()
        assert set(free).isdisjoint(holders) and len(free) + len(holders) == pool.num_gpu_blocks - 1
        told = self.attached._view.pool()
        assert told.free + told.evictable == len(free) * self._page and min(told.free, told.evictable) >= 0
        assert told.total == self.attached.pool_tokens == (pool.num_gpu_blocks - 1) * self._page
        pins, prompts = self.attached._pins, self.attached._prompts
        assert set(prompts) <= {request.request_id for request in self.scheduler.running}
        pinned = {id(each.lock) for each in pins._held.values()}
        assert pinned | {id(each) for each in prompts.values()} == set(self.locks), "a pin is lost, or a lock"
        assert pins.tokens == sum(len(self.locks[each].lock.receipt) for each in pinned) * self._page
        assert not self.side.guard.failures, self.side.guard.failures

    def end(self) -> None:
        """All turns come to an end, pins are let go, and the pool is as it was."""
        for _ in range(5000):
            if not self.scheduler.has_requests() and not self.in_flight:
                break
            self.engine_steps()
        assert not self.turns, self.turns
        self.check()
        for program in list(self.attached._pins.programs):
            self.attached._pins.release(program)
        self.check()
        assert all(block.ref_cnt == 0 for block in self.pool.blocks[1:])
        assert self.pool.get_num_free_blocks() == self.pool.num_gpu_blocks - 1
        assert self.scheduler.reset_prefix_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--steps", type=int, default=10_000, help="for each shape")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overlaps", action="store_true", help="steps do, as on a GPU")
    args = parser.parse_args()
    Emitter.start = lambda emitter, *more: None  # type: ignore[method-assign, assignment]
    init_none_hash(sha256)
    for name in args.shapes:
        walk = Walk(SHAPES[name], args.model, args.seed, overlaps=args.overlaps)
        try:
            for _ in range(args.steps):
                walk.step()
            walk.end()
        except AssertionError as error:
            sys.exit(f"{name}, step {walk.number}, seed {args.seed}: {error}\n{walk.counts}")
        sys.stdout.write(json.dumps({"shape": name, "steps": walk.number, **walk.counts, **walk.told}) + "\n")


if __name__ == "__main__":
    main()
