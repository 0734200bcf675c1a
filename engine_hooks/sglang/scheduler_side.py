"""The plugin in SGLang's scheduler process: hooks, commands and the emitter.

Commands arrive in the emitter's thread and are obeyed at the next scheduling step, in the scheduler's own thread:
the radix tree has no other.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from controlplane.core import commands as cmd
from controlplane.core.engine_policies import STOCK
from controlplane.core.events import CommandApplied, CommandRejected, Event, PublisherState
from controlplane.emit.emitter import Emitter
from engine_hooks.guard import log, make_guard
from engine_hooks.sglang.board import account
from engine_hooks.sglang.contexts import Contexts
from engine_hooks.sglang.engine_view import EngineView, extended_tokens, program_of
from engine_hooks.sglang.host_tier import HostTier
from engine_hooks.sglang.moves import Moves
from engine_hooks.sglang.pins import Pins
from engine_hooks.sglang.probe import Probe
from engine_hooks.sglang.settings import ENGINE, Settings, role_of
from engine_hooks.sglang.steering import Steering
from engine_hooks.sglang.verify import present, report_problems, unbound, unproven

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
BATCH = "sglang.srt.managers.schedule_batch.ScheduleBatch"
RELEASE = "sglang.srt.mem_cache.common.release_kv_cache"
PRIORITY = "sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority"
ADD_ONE = "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req"
RESETS = (
    "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.reset",
    "sglang.srt.mem_cache.radix_cache.RadixCache.reset",
)
EVICTIONS = (  # the first that there is: where room for an allocation is made
    "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.evict_for_alloc",
    "sglang.srt.mem_cache.radix_cache.RadixCache.evict",
)
HOST_EVICTIONS = ("sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.evict_host",)
CHUNKS = (  # 0.5.17 has neither
    "sglang.srt.managers.schedule_policy.PrefillAdder._check_prefill_budget",
    "sglang.srt.mem_cache.prefill_budget.PrefillBudget.available_chunk_tokens",
)
# Grants and the window are the HTTP side's; here they only tell whose context is waited for.
_OURS = (cmd.Retain, cmd.Release, cmd.Discard, cmd.SetPriority, cmd.Demote, cmd.Prefetch, cmd.Label)
_PARKING = (cmd.Admit, cmd.Restore, cmd.Pause)
_LEAST_ROOM_TOKENS = 8


class SchedulerSide:
    """Everything that the plugin keeps in one scheduler process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.guard = make_guard(timed=settings.timed)
        self.hooks: dict[str, Callable[..., Any]] = {}  # by target, once they are registered
        self._commands: deque[cmd.Command] = deque(maxlen=65_536)
        self._ranks: dict[str, int] = {}
        self._emitter: Emitter | None = None
        self._view: EngineView | None = None
        self._probe: Probe | None = None
        self._pins: Pins | None = None
        self._moves: Moves | None = None
        self._contexts = Contexts()
        self._steering: Steering | None = None
        self._begun_rid = ""  # the unfinished prefill that began with a shrunk chunk

    def account(self) -> dict[str, object]:
        """What the health page shows of this process. Called in a thread of its own."""
        return account(self.guard, self._emitter)

    # Hooks; each is called through the guard

    def scheduler_made(self, result: Any, kept: Any, scheduler: Any, *args: Any) -> None:
        """Runs once the scheduler is whole: only then is its rank known."""
        why = unproven(scheduler.server_args)
        if why:
            log.warning("penstock: passive: %s", why)
            return
        if report_problems(unbound(self.hooks)):
            return  # told by the report; half of the hooks would tell half of the truth
        view = EngineView(scheduler)
        pins = Pins(view, self._contexts, self._pin_budget_ratio)
        host = HostTier(view)
        steering = Steering(
            view, self._contexts, program_of, lambda: pins.programs, host=host if host.is_on else None
        )
        self._emitter = Emitter(
            url=self._settings.bus,
            node=self._settings.node,
            role=role_of(ENGINE, scheduler.server_args),
            on_command=self._on_command,
            on_heartbeat=steering.heard if self._settings.obeys else None,
            state=self._state,
        )
        self._view, self._pins, self._steering = view, pins, steering
        self._probe = Probe(view, self._send, lambda: pins.tokens, host.pool)
        self._moves = Moves(host, self._contexts, pins, self._probe.is_running, self._answer)
        self._emitter.start()
        log.info("penstock: probe on, node %s, pool of %d tokens", self._settings.node, view.pool().total)

    def _pin_budget_ratio(self) -> float:
        """The engine's own setting; else what the daemon's memory policy says."""
        own, steering = self._settings.pin_budget_ratio, self._steering
        return own if own is not None else (steering.policies if steering else STOCK).memory.pin_budget_ratio

    def request_queued(self, result: Any, kept: Any, scheduler: Any, request: Any, *args: Any) -> None:
        if self._probe is not None and self._steering is not None:
            self._steering.arrived(self._probe.submitted(request))

    def prefill_planned(self, plan: Any, kept: Any, *args: Any) -> None:
        batch = getattr(plan, "batch_to_run", plan)
        if self._probe is None or self._pins is None or self._steering is None or batch is None:
            return
        if self._moves is not None:
            self._moves.planned(batch)  # before all else: what it does is needed for the batch to run right
        self._uncount_waiting_prefill(batch)
        for request in batch.reqs:
            program_id = self._probe.scheduled(request)
            if program_id:
                self._pins.release(program_id)  # the running turn locks its context by itself
        if self._steering.counts_service:
            for request in batch.reqs:
                self._steering.served(self._probe.program_of(request), extended_tokens(request))

    def _uncount_waiting_prefill(self, batch: Any) -> None:
        """Keep SGLang's count of chunks in flight right for a prefill that waits for room while others run.

        It counts one for its unfinished prefill in every batch. Of ours that waits there is none in this one: the
        count would never come down, and the engine would take the last chunk for a middle one and drop its token.
        """
        unfinished = getattr(self._view.scheduler, "chunked_req", None) if self._view is not None else None
        if unfinished is None or unfinished.rid != self._begun_rid:
            return
        if all(request is not unfinished for request in batch.reqs):
            unfinished.inflight_middle_chunks -= 1

    def step_done(self, result: Any, kept: Any, scheduler: Any, batch: Any, *args: Any) -> None:
        if self._probe is not None:
            for request in batch.reqs:
                if request.output_ids:
                    self._probe.token(request)

    def before_release(self, request: Any, tree: Any, *args: Any) -> Any:
        """What the release will change, read beforehand."""
        if self._view is None or not request.finished():
            return None
        return self._view.available_tokens(), *self._view.late_key(request)

    def released(self, result: Any, kept: Any, request: Any, *args: Any) -> None:
        if kept is None or self._probe is None or self._steering is None or self._view is None:
            return
        available_before, make_key, tokens = kept
        program_id = self._probe.program_of(request)
        self._contexts.remember(program_id, make_key, tokens, time.monotonic_ns())
        self._steering.served(program_id, len(request.output_ids))
        # What enters the tree is evictable from now on: to admission that is as good as free.
        self._probe.ended(request, self._view.available_tokens() - available_before)

    def step_begins(self, *args: Any) -> None:
        if self._probe is None or self._pins is None or self._steering is None or self._view is None:
            return
        self._steering.step()
        if self._pins.expire(self._outlasting):
            self._view.scheduler.running_batch.batch_is_full = False  # whoever found no room is asked again
        while self._commands:
            self._obey(self._commands.popleft())
        if self._moves is not None:
            self._moves.step()
        self._make_room_for_the_next_chunk()
        self._probe.sample_if_due()

    def _make_room_for_the_next_chunk(self) -> None:
        """Give up pins for the unfinished prefill: what it does not find ends the scheduler, and all turns with it.

        SGLang judged its whole need before the first chunk, and never again; a pin placed since then was not in it.
        """
        assert self._pins is not None
        assert self._view is not None
        assert self._steering is not None
        needed = self._view.promised_tokens()
        if needed:
            self._pins.reclaim(needed, self._steering.policies.memory, stuck=True)

    def _outlasting(self) -> set[str]:
        """Programs whose pin holds past its deadline, since their next turn waits."""
        if self._view is None or self._steering is None or not self._steering.policies.memory.pins_outlast_waits:
            return set()
        return {program_of(request) for request in self._view.scheduler.waiting_queue}

    def before_retraction(self, batch: Any, *args: Any) -> None:
        """Pins go before any running request does."""
        if self._pins is not None and self._steering is not None and self._pins.tokens:
            needed = int(batch.new_tokens_required_next_decode(*args))
            self._pins.reclaim(needed, self._steering.policies.memory, stuck=True)

    def retracted(self, result: Any, kept: Any, *args: Any) -> None:
        if self._probe is not None:
            self._probe.retractions += len(result[0])

    def queue_ordered(self, result: Any, kept: Any, policy: Any, waiting_queue: Any, *args: Any) -> None:
        if self._steering is not None and self._probe is not None:
            self._steering.order(waiting_queue, self._ranks, self._probe.queued_ns)

    def tree_reset(self, result: Any, kept: Any, tree: Any, *args: Any) -> None:
        if self._pins is not None:
            self._pins.forget_all()
        if self._moves is not None:
            self._moves.forget_all()

    def host_full(self, tree: Any, num_tokens: int, *args: Any) -> None:
        """Host memory makes room."""
        if self._steering is not None:
            self._steering.order_host(int(num_tokens))

    def evict(self, tree: Any, params: Any) -> tuple[int, Any]:
        """Evict by the daemon's policy; the tokens freed, and what the engine has still to evict."""
        if self._steering is None or self._probe is None or self._pins is None or not params.num_tokens:
            return 0, params
        busy = {*self._probe.running_programs(), *self._pins.programs}
        freed_tokens = self._steering.evict(int(params.num_tokens), busy)
        if not freed_tokens:
            return 0, params
        return freed_tokens, replace(params, num_tokens=max(0, params.num_tokens - freed_tokens))

    def first_chunk(self, verdict: Any, adder: Any, request: Any, sizes: dict[str, Any]) -> Any:
        """The engine's verdict on a waiting request, and how many tokens of it may begin; or ours.

        A prefill that does not fit as a whole may begin with a part. SGLang keeps one unfinished prefill only, and
        relies on it to take the whole of every step's chunk. Ours leaves some, or waits, so that a second one could
        begin in what is left: such a request waits. So does one whose context lies in host memory: the engine would
        load all of that for the part, into room that others need.
        """
        fits, limit_tokens = verdict
        if self._steering is None or self._view is None or not adder.rem_chunk_tokens:
            return verdict
        wanted_tokens = int(sizes["extend_input_len"])
        if self._view.scheduler.chunked_req is not None or adder.new_chunked_req is not None:
            if not fits or limit_tokens is None or adder.ceil_paged_tokens(wanted_tokens) <= limit_tokens:
                return verdict
            return True, 0
        if fits or self.guard.given_up("get_new_batch_prefill"):  # else nobody would keep the count right
            return verdict
        if getattr(request, "host_hit_length", 0):
            return verdict
        most_tokens = min(wanted_tokens, int(adder.rem_chunk_tokens))
        tokens = self._steering.chunk(adder.memory_budget, adder.can_run_list, most_tokens)
        if not 0 < tokens < wanted_tokens:
            return verdict  # as a whole it would run against the engine's own judgement
        self._begun_rid = request.rid
        return True, tokens

    def next_chunk(self, budget: Any, chunk_limit: int) -> int:
        """How much more of a prefill that was begun so may run: nothing while others need the room. -1: as ever."""
        if self._steering is None or self._view is None:
            return -1
        scheduler = self._view.scheduler
        if scheduler.chunked_req is None or scheduler.chunked_req.rid != self._begun_rid:
            return -1
        if self.guard.given_up("get_new_batch_prefill") or self.guard.given_up("check_prefill"):
            return -1
        tokens = self._steering.chunk(budget, (), chunk_limit)
        return tokens if tokens or self._view.decoding() else -1

    def room_for(self, adder: Any, request: Any) -> bool:
        """A request found no room: reclaim pins for it. True if it is worth another try."""
        if self._pins is None or self._steering is None or self._view is None:
            return False
        if not self._pins.tokens or request in adder.can_run_list:
            return False
        prompt_tokens = len(request.origin_input_ids) + len(request.output_ids)
        needed = prompt_tokens + int(request.sampling_params.max_new_tokens or 0) + _LEAST_ROOM_TOKENS
        scheduler = self._view.scheduler
        runs = self._view.decoding() or adder.can_run_list or getattr(scheduler, "chunked_req", None)
        needed = min(int(scheduler.max_total_num_tokens), needed + self._reserved(adder))
        return self._pins.reclaim(needed, self._steering.policies.memory, stuck=not runs)

    @staticmethod
    def _reserved(adder: Any) -> int:
        budget = getattr(adder, "memory_budget", None)
        return int(budget.total_offset if budget is not None else adder.rem_total_token_offset)

    # Commands

    def _on_command(self, command: cmd.Command) -> None:
        """In the emitter's thread."""
        if isinstance(command, _OURS + _PARKING) and self._settings.obeys:
            self._commands.append(command)

    def _obey(self, command: cmd.Command) -> None:
        assert self._pins is not None
        assert self._probe is not None
        if not isinstance(command, cmd.ProgramCommand):
            return
        program_id, problem = command.program_id, ""
        if isinstance(command, _PARKING):
            self._contexts.park(program_id, isinstance(command, cmd.Pause))
            if not isinstance(command, cmd.Pause):
                self._contexts.label(program_id, "")
            return  # the gate answers these
        match command:
            case cmd.Retain():
                if self._probe.is_running(program_id):
                    problem = "a turn of it runs and holds its context already"
                else:
                    problem = self._pins.retain(program_id, command.ttl_ns)
            case cmd.Release():
                self._pins.release(program_id)
            case cmd.Discard() if self._moves is None or not self._moves.on:
                problem = self._pins.discard(program_id)
            case cmd.Prefetch() if self.guard.given_up("get_new_batch_prefill"):
                problem = "the hook that makes turns wait for the load was given up"
            case cmd.Demote() | cmd.Prefetch() | cmd.Discard() if self._moves is not None:
                self._moves.begin(command)
                return  # answered when it was done
            case cmd.SetPriority():
                self._ranks[program_id] = command.priority
            case cmd.Label():
                self._contexts.label(program_id, command.label)
            case _:
                problem = f"{type(command).__name__} is not supported by this engine's plugin yet"
        self._answer(command, program_id, problem)

    def _answer(self, command: cmd.Command, program_id: str, problem: str) -> None:
        if problem:
            self._send(CommandRejected(command_id=command.command_id, program_id=program_id, reason=problem))
        else:
            self._send(CommandApplied(command_id=command.command_id, program_id=program_id))

    def _state(self) -> PublisherState:
        """In the emitter's thread; what it reads changes by whole values only."""
        assert self._probe is not None
        assert self._pins is not None
        return PublisherState(
            open_turns=tuple(self._probe.open_turns()), pins=tuple(self._pins.listed()), role="engine"
        )

    def _send(self, event: Event) -> None:
        if self._emitter is not None:
            self._emitter.emit(event)


def install(settings: Settings) -> SchedulerSide:
    """Register every hook of the scheduler's process. SGLang must be importable."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    side = SchedulerSide(settings)
    around = side.guard.around

    def add_one(original: Any, adder: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(adder, request, *args, **kwargs)
        if getattr(result, "name", "") == "NO_TOKEN" and side.guard.run(
            "add_one_req", side.room_for, adder, request
        ):
            result = original(adder, request, *args, **kwargs)
        return result

    def evict(original: Any, tree: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        freed_tokens, rest = side.guard.run("evict", side.evict, tree, params) or (0, params)
        result = original(tree, rest, *args, **kwargs)
        if freed_tokens:
            side.guard.run("evict", _count_evicted, result, freed_tokens)
        return result

    def check_prefill(original: Any, adder: Any, request: Any, *args: Any, **sizes: Any) -> Any:
        verdict = original(adder, request, *args, **sizes)
        return side.guard.run("check_prefill", side.first_chunk, verdict, adder, request, sizes) or verdict

    def chunk_tokens(original: Any, budget: Any, chunk_limit: int) -> Any:
        limit = original(budget, chunk_limit)
        tokens = side.guard.run("available_chunk_tokens", side.next_chunk, budget, chunk_limit)
        if tokens is None or tokens < 0:
            return limit
        return tokens or None  # None: the request waits as it is

    hooks = {
        f"{SCHEDULER}.__init__": around("__init__", after=side.scheduler_made),
        f"{SCHEDULER}._add_request_to_queue": around("_add_request_to_queue", after=side.request_queued),
        f"{SCHEDULER}.get_new_batch_prefill": around("get_new_batch_prefill", after=side.prefill_planned),
        f"{SCHEDULER}.process_batch_result": around("process_batch_result", after=side.step_done),
        f"{SCHEDULER}.get_next_batch_to_run": around("get_next_batch_to_run", before=side.step_begins),
        f"{BATCH}.retract_decode": around("retract_decode", after=side.retracted),
        f"{BATCH}.check_decode_mem": around("check_decode_mem", before=side.before_retraction),
        RELEASE: around("release_kv_cache", before=side.before_release, after=side.released),
        PRIORITY: around("calc_priority", after=side.queue_ordered),
        ADD_ONE: add_one,
    }
    hooks |= {target: around("reset", after=side.tree_reset) for target in present(RESETS)}
    hooks |= dict.fromkeys(present(EVICTIONS)[:1], evict)
    hooks |= {target: around("evict_host", before=side.host_full) for target in present(HOST_EVICTIONS)}
    if len(present(CHUNKS)) == len(CHUNKS):
        hooks |= dict(zip(CHUNKS, (check_prefill, chunk_tokens), strict=True))
    side.hooks = hooks
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)
    return side


def _count_evicted(result: Any, freed_tokens: int) -> None:
    result.num_tokens_evicted += freed_tokens
