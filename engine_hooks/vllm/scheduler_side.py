"""The plugin in EngineCore's process: a subclass of whatever scheduler vLLM chose, made on the spot.

What is overridden calls the engine's own method exactly once; our parts before and after it run under a guard,
since an exception in the scheduler would end EngineCore, and the server with it.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

from controlplane.core.model.events import DECODE, DECODES
from controlplane.core.model.places import role_of_rank
from engine_hooks.engine.board import account, post
from engine_hooks.engine.settings import ENGINE, PluginMode, Settings
from engine_hooks.engine.targets import Feature
from engine_hooks.engine.verify import verify
from engine_hooks.guard import Guard, TimedGuard, log
from engine_hooks.vllm.attached import Attached
from engine_hooks.vllm.targets import ENGINE_TARGETS
from engine_hooks.vllm.verify import disaggregation, no_pins, report_problems, unproven_engine, vllm_version

PORT_VARIABLE = "PENSTOCK_PLUGIN_PORT"  # of the HTTP server, told to its children
RANKS_VARIABLE = "PENSTOCK_PLUGIN_RANKS"  # that it has: one that steps alone is not told of the others


class SchedulerSide:
    """The plugin in one EngineCore: passive until ``attached``."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lacks_pins = ""
        self._is_published = False
        self.guard = TimedGuard() if settings.timed else Guard()
        self.attached: Attached | None = None
        self.rank: int | None = None
        self.passive_because = ""

    def account(self) -> dict[str, object]:
        """What the health page shows of this process. Called in a thread of its own."""
        attached = self.attached
        report = account(self.guard, attached.emitter if attached is not None else None)
        groups = attached.groups if attached is not None else []
        return {**report, "passive_because": self.passive_because, "kv_cache_groups": groups}

    def wraps(self, chosen: type) -> type:
        """The class to build instead of ``chosen``: that very one where the plugin cannot work."""
        lacking = verify(ENGINE_TARGETS)
        features = report_problems(lacking)
        if Feature.PROBE in features:
            self.passive_because = next(each.message for each in lacking if each.feature is Feature.PROBE)
            self.publish()
            return chosen
        if Feature.PINS in features:
            self._lacks_pins = next(each.message for each in lacking if each.feature is Feature.PINS)
        return observed(chosen, self)

    def publish(self) -> None:
        """From now on the HTTP process knows how it stands here."""
        if not self._is_published:
            self._is_published = True
            post(self.account, slot=lambda: self.rank or 0)

    def scheduler_made(self, scheduler: Any) -> None:
        self.passive_because = "its start failed"
        port = os.environ.get(PORT_VARIABLE, "")
        self.rank = _rank(scheduler.vllm_config)
        why = unproven_engine(scheduler.vllm_config, port)
        self.passive_because = why
        if why:
            log.warning("penstock: passive: %s", why)
            return
        decodes = DECODES if disaggregation(scheduler.vllm_config) == DECODE else ""
        lacks_pins = decodes or self._lacks_pins or no_pins(scheduler)
        if lacks_pins:
            log.warning("penstock: the pins stay off: %s", lacks_pins)
        self.passive_because = "its start failed"
        role = role_of_rank(f"{ENGINE}-{port}", self.rank)
        attached = Attached(scheduler, self._settings, self.guard, role, lacks_pins)
        if not lacks_pins and self._settings.mode is PluginMode.ON:
            self._wrap_allocations(scheduler)
        self._find_core(attached)
        attached.emitter.start()
        self.attached = attached
        self.passive_because = decodes
        made, tokens = type(scheduler).__name__, attached.pool_tokens
        log.info("penstock: probe on, node %s, pool of %d tokens, in %s", self._settings.node, tokens, made)

    def part(self, name: str, method: Callable[..., Any], *args: Any) -> Any:
        """Our part of a hook, guarded; None before there is anything attached."""
        return None if self.attached is None else self.guard.run(name, method, self.attached, *args)

    def _wrap_allocations(self, scheduler: Any) -> None:
        """Pins go before a running request does; and whose blocks are given out is the policy's to say."""
        manager = scheduler.kv_cache_manager
        allocate, get_new_blocks = manager.allocate_slots, manager.block_pool.get_new_blocks

        @functools.wraps(allocate)
        def allocate_slots(request: Any, *args: Any, **kwargs: Any) -> Any:
            slots = allocate(request, *args, **kwargs)
            # None changed nothing, so that it may be asked again
            while slots is None and self.part("allocate_slots", Attached.room_for, request):
                slots = allocate(request, *args, **kwargs)
            return slots

        @functools.wraps(get_new_blocks)
        def new_blocks(num_blocks: int, *args: Any, **kwargs: Any) -> Any:
            self.part("get_new_blocks", Attached.make_room, num_blocks)
            return get_new_blocks(num_blocks, *args, **kwargs)

        manager.allocate_slots = allocate_slots
        manager.block_pool.get_new_blocks = new_blocks

    def _find_core(self, attached: Attached) -> None:
        """EngineCore is not whole before its scheduler is: its loop tells of it."""
        from vllm.v1.engine.core import EngineCoreProc

        def telling(run_busy_loop: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(run_busy_loop)
            def loop(core: Any, *args: Any, **kwargs: Any) -> Any:
                if getattr(core, "scheduler", None) is attached.scheduler:
                    self.guard.run("run_busy_loop", attached.belongs_to, core)
                return run_busy_loop(core, *args, **kwargs)

            return loop

        for each in (EngineCoreProc, *EngineCoreProc.__subclasses__()):  # ranks that step together have their own
            if "run_busy_loop" in vars(each):
                each.run_busy_loop = telling(each.run_busy_loop)


def _rank(vllm_config: Any) -> int | None:
    """Which of the data-parallel ranks of its server this process is; None where there is one."""
    if os.environ.get(RANKS_VARIABLE, "") in ("", "1"):
        return None
    return int(vllm_config.parallel_config.data_parallel_rank_local)


def observed(chosen: Any, side: SchedulerSide) -> type:
    """A subclass of the scheduler's class."""
    part = side.part

    class Observed(chosen):  # type: ignore[misc]
        """As ``chosen``, and the plugin looks on."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            side.guard.run("__init__", side.scheduler_made, self)
            side.guard.run("__init__", side.publish)

        def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            result = super().add_request(request, *args, **kwargs)
            part("add_request", Attached.request_queued, request)
            return result

        def has_requests(self) -> Any:
            has_requests = super().has_requests()
            if not has_requests:
                part("has_requests", Attached.idle)
            return has_requests

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            part("step_begins", Attached.step_begins)
            output = super().schedule(*args, **kwargs)
            part("schedule", Attached.step_planned, output)
            return output

        def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            fresh = part("without_token", Attached.without_token, scheduler_output)
            result = super().update_from_output(scheduler_output, *args, **kwargs)
            if fresh:
                part("update_from_output", Attached.step_done, fresh)
            return result

        def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            part("before_preemption", Attached.before_preemption, request)
            result = super()._preempt_request(request, *args, **kwargs)
            part("_preempt_request", Attached.preempted)
            return result

        def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            part("before_free", Attached.before_free, request)
            result = super()._free_request(request, *args, **kwargs)
            part("_free_request", Attached.freed, request)
            return result

        def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
            part("reset_prefix_cache", Attached.before_reset)
            is_empty = super().reset_prefix_cache(*args, **kwargs)
            if is_empty:
                part("after_reset", Attached.after_reset)
            return is_empty

    Observed.__name__, Observed.__qualname__ = chosen.__name__, chosen.__qualname__
    Observed.__module__ = chosen.__module__
    return Observed


def install(settings: Settings) -> None:
    """Have every scheduler's class observed. It is chosen once, in EngineCore, before the scheduler is built."""
    from vllm.config.scheduler import SchedulerConfig

    get_scheduler_cls = SchedulerConfig.get_scheduler_cls

    @functools.wraps(get_scheduler_cls)
    def chosen_and_observed(config: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = get_scheduler_cls(config, *args, **kwargs)
        try:
            return SchedulerSide(settings).wraps(chosen)
        except Exception as error:
            log.exception("penstock: passive with vLLM %s: %s", vllm_version(), error)
            return chosen

    SchedulerConfig.get_scheduler_cls = chosen_and_observed
