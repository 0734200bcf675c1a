"""The plugin in SGLang's scheduler process: hooks, commands and the emitter.

Commands arrive in the emitter's thread and are obeyed at the next scheduling step, in the scheduler's own thread:
the radix tree has no other.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from controlplane.core import commands as cmd
from controlplane.core.events import CommandApplied, CommandRejected, Event, PublisherState
from controlplane.emit.emitter import Emitter
from engine_hooks.sglang.engine_view import EngineView, program_of
from engine_hooks.sglang.guard import Guard, log
from engine_hooks.sglang.pins import Pins
from engine_hooks.sglang.probe import Probe
from engine_hooks.sglang.settings import Settings
from engine_hooks.sglang.verify import report_problems, unbound, unproven

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
BATCH = "sglang.srt.managers.schedule_batch.ScheduleBatch"
RELEASE = "sglang.srt.mem_cache.common.release_kv_cache"
PRIORITY = "sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority"
ADD_ONE = "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req"
TREES = (
    "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.reset",
    "sglang.srt.mem_cache.radix_cache.RadixCache.reset",
)
# Priorities do not concern the gate's or the window's commands: those are the HTTP side's.
_OURS = (cmd.Retain, cmd.Release, cmd.Discard, cmd.SetPriority, cmd.Demote, cmd.Prefetch, cmd.Label)
_LEAST_ROOM_TOKENS = 8


class SchedulerSide:
    """Everything that the plugin keeps in one scheduler process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.guard = Guard()
        self.hooks: dict[str, Callable[..., Any]] = {}  # by target, once they are registered
        self._commands: deque[cmd.Command] = deque(maxlen=65_536)
        self._ranks: dict[str, int] = {}
        self._emitter: Emitter | None = None
        self._view: EngineView | None = None
        self._probe: Probe | None = None
        self._pins: Pins | None = None

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
        pins = Pins(view, self._settings.pin_budget_ratio)
        self._emitter = Emitter(
            url=self._settings.bus,
            node=self._settings.node,
            role="engine",
            on_command=self._on_command,
            state=self._state,
        )
        self._view, self._pins = view, pins
        self._probe = Probe(view, self._send, lambda: pins.tokens)
        self._emitter.start()
        log.info("penstock: probe on, node %s, pool of %d tokens", self._settings.node, view.pool().total)

    def request_queued(self, result: Any, kept: Any, scheduler: Any, request: Any, *args: Any) -> None:
        if self._probe is not None:
            self._probe.submitted(request)

    def prefill_planned(self, plan: Any, kept: Any, *args: Any) -> None:
        batch = getattr(plan, "batch_to_run", plan)
        if self._probe is None or self._pins is None or batch is None:
            return
        for request in batch.reqs:
            program_id = self._probe.scheduled(request)
            if program_id:
                self._pins.release(program_id)  # the running turn locks its context by itself

    def step_done(self, result: Any, kept: Any, scheduler: Any, batch: Any, *args: Any) -> None:
        if self._probe is not None:
            for request in batch.reqs:
                if request.output_ids:
                    self._probe.token(request)

    def before_release(self, request: Any, tree: Any, *args: Any) -> Any:
        """What the release will change, read beforehand."""
        if self._view is None or not request.finished():
            return None
        pool = self._view.pool()
        return pool.free + pool.evictable, self._view.key_of(request)

    def released(self, result: Any, kept: Any, request: Any, *args: Any) -> None:
        if kept is None or self._probe is None or self._pins is None or self._view is None:
            return
        available_before, key = kept
        self._pins.remember(program_of(request), key)
        pool = self._view.pool()
        # What enters the tree is evictable from now on: to admission that is as good as free.
        self._probe.ended(request, pool.free + pool.evictable - available_before)

    def step_begins(self, *args: Any) -> None:
        if self._probe is None or self._pins is None:
            return
        self._pins.expire()
        while self._commands:
            self._obey(self._commands.popleft())
        self._probe.sample_if_due()

    def before_retraction(self, batch: Any, *args: Any) -> None:
        """Pins go before any running request does."""
        if self._pins is not None and self._pins.tokens:
            self._pins.reclaim(int(batch.new_tokens_required_next_decode(*args)))

    def retracted(self, result: Any, kept: Any, *args: Any) -> None:
        if self._probe is not None:
            self._probe.retractions += len(result[0])

    def queue_ordered(self, result: Any, kept: Any, policy: Any, waiting_queue: Any, *args: Any) -> None:
        """SetPriority: lower ranks first; ties keep the engine's order."""
        if self._ranks:
            waiting_queue.sort(key=lambda request: self._ranks.get(program_of(request), 0))

    def tree_reset(self, result: Any, kept: Any, tree: Any, *args: Any) -> None:
        if self._pins is not None:
            self._pins.forget_all()

    def room_for(self, adder: Any, request: Any) -> bool:
        """A request found no room: reclaim pins for it. True if it is worth another try."""
        if self._pins is None or not self._pins.tokens or request in adder.can_run_list:
            return False
        prompt_tokens = len(request.origin_input_ids) + len(request.output_ids)
        needed = prompt_tokens + int(request.sampling_params.max_new_tokens or 0) + _LEAST_ROOM_TOKENS
        total = int(self._view.scheduler.max_total_num_tokens) if self._view is not None else 0
        return self._pins.reclaim(min(total, needed + self._reserved(adder)))

    @staticmethod
    def _reserved(adder: Any) -> int:
        budget = getattr(adder, "memory_budget", None)
        return int(budget.total_offset if budget is not None else adder.rem_total_token_offset)

    # Commands

    def _on_command(self, command: cmd.Command) -> None:
        """In the emitter's thread."""
        if isinstance(command, _OURS) and self._settings.obeys:
            self._commands.append(command)

    def _obey(self, command: cmd.Command) -> None:
        assert self._pins is not None
        assert self._probe is not None
        if not isinstance(command, cmd.ProgramCommand):
            return
        program_id, problem = command.program_id, ""
        match command:
            case cmd.Retain():
                if self._probe.is_running(program_id):
                    problem = "a turn of it runs and holds its context already"
                else:
                    problem = self._pins.retain(program_id, command.ttl_ns)
            case cmd.Release():
                self._pins.release(program_id)
            case cmd.Discard():
                problem = self._pins.discard(program_id)
            case cmd.SetPriority():
                self._ranks[program_id] = command.priority
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
    hooks |= {target: around("reset", after=side.tree_reset) for target in _present(TREES)}
    side.hooks = hooks
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)
    return side


def _present(targets: tuple[str, ...]) -> list[str]:
    """Those targets that this SGLang has."""
    import pkgutil

    found = []
    for target in targets:
        try:
            pkgutil.resolve_name(target)
        except (ImportError, AttributeError):
            continue
        found.append(target)
    return found
