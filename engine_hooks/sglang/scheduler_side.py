"""The plugin in SGLang's scheduler process: its hooks, and what they do once the scheduler is whole."""

from collections.abc import Callable
from typing import Any

from engine_hooks.engine.board import account
from engine_hooks.engine.settings import Settings
from engine_hooks.engine.targets import Feature
from engine_hooks.engine.verify import present, verify
from engine_hooks.guard import Guard, TimedGuard, log
from engine_hooks.sglang.attached import Attached
from engine_hooks.sglang.lockstep import StepMessage
from engine_hooks.sglang.peers import Peers
from engine_hooks.sglang.ranked import Ranked
from engine_hooks.sglang.ranks import rank_of_scheduler
from engine_hooks.sglang.targets import BATCH, BROADCAST, POLICY, SCHEDULER, TARGETS, TREES
from engine_hooks.sglang.verify import report_problems, unbound, unproven

RELEASE = "sglang.srt.mem_cache.common.release_kv_cache"
PRIORITY = POLICY + "SchedulePolicy.calc_priority"
_UNIFIED, _RADIX = TREES
EVICTIONS = (
    _UNIFIED + "evict_for_alloc",
    _RADIX + "evict",
)  # the first that there is: room for an allocation is made
RETRACTION = BATCH + "_get_decode_retraction_order"  # without it SGLang's own order stays
CHUNKS = (  # 0.5.17 has neither
    POLICY + "PrefillAdder._check_prefill_budget",
    "sglang.srt.mem_cache.prefill_budget.PrefillBudget.available_chunk_tokens",
)


class SchedulerSide:
    """The plugin in one scheduler process: passive until ``attached``, and where SGLang is not what was proved."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.guard = TimedGuard() if settings.timed else Guard()
        self.hooks: dict[str, Callable[..., Any]] = {}  # by target, once they are registered
        self.attached: Attached | None = None
        self.rank = 0  # of several, data-parallel ones
        self._speaks = True  # for all ranks

    def account(self) -> dict[str, object] | None:
        """What the health page shows of this process; None if another tells it. Called in a thread of its own."""
        if not self._speaks:
            return None
        attached = self.attached
        report = account(self.guard, attached.emitter if attached is not None else None)
        return report if attached is None else {**report, **attached.account()}

    def scheduler_made(self, result: Any, saved: Any, scheduler: Any, *args: Any) -> None:
        """Runs once the scheduler is whole: only then is its rank known."""
        peers = Peers.of(scheduler)
        self._speaks = peers is None or peers.leads
        why = unproven(scheduler.server_args)
        if why:
            log.warning("penstock: passive: %s", why)
            return
        if report_problems(unbound(self.hooks)):
            return  # told by the report; half of the hooks would tell half of the truth
        if peers is not None and report_problems(verify(each for each in TARGETS if each.feature is Feature.RANKS)):
            log.warning("penstock: passive: ranks that cannot be made to decide alike")
            return
        self.rank = rank_of_scheduler(scheduler) or 0
        common = (scheduler, self._settings, self.guard)
        self.attached = attached = Attached(*common) if peers is None else Ranked(*common, peers)
        attached.begin()
        if self._speaks:
            log.info("penstock: probe on, node %s, pool of %d tokens", self._settings.node, attached.pool_tokens)

    def once(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Call the method of ``attached``; before there is one, do nothing and give None."""

        name = method.__name__

        def call(*args: Any) -> Any:
            return None if self.attached is None else getattr(self.attached, name)(*args)

        return call

    def around(
        self,
        name: str,
        *,
        before: Callable[..., Any] | None = None,
        after: Callable[..., Any] | None = None,
    ) -> Callable[..., Any]:
        """The guard's hook, of methods of ``attached``."""
        return self.guard.around(name, before=before and self.once(before), after=after and self.once(after))


def install(settings: Settings) -> SchedulerSide:
    """Register every hook of the scheduler's process. SGLang must be importable."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    side = SchedulerSide(settings)
    run, once, around = side.guard.run, side.once, side.around
    room_for, evict_first = once(Attached.room_for), once(Attached.evict_first)
    first_chunk, next_chunk = once(Attached.first_chunk), once(Attached.next_chunk)

    def add_one(original: Any, adder: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(adder, request, *args, **kwargs)
        if getattr(result, "name", "") == "NO_TOKEN" and run("add_one_req", room_for, adder, request):
            result = original(adder, request, *args, **kwargs)
        return result

    def evict(original: Any, tree: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        freed_tokens, rest = run("evict", evict_first, tree, params) or (0, params)
        result = original(tree, rest, *args, **kwargs)
        if freed_tokens:
            run("evict", _count_evicted, result, freed_tokens)
        return result

    def check_prefill(original: Any, adder: Any, request: Any, *args: Any, **sizes: Any) -> Any:
        verdict = original(adder, request, *args, **sizes)
        return run("check_prefill", first_chunk, verdict, adder, request, sizes) or verdict

    def chunk_tokens(original: Any, budget: Any, chunk_limit: int) -> Any:
        limit = original(budget, chunk_limit)
        tokens = run("available_chunk_tokens", next_chunk, budget, chunk_limit)
        if tokens is None or tokens < 0:
            return limit
        return tokens or None  # None: the request waits as it is

    hooks = {
        f"{SCHEDULER}__init__": side.guard.around("__init__", after=side.scheduler_made),
        f"{SCHEDULER}_add_request_to_queue": around("_add_request_to_queue", after=Attached.request_queued),
        f"{SCHEDULER}get_new_batch_prefill": around("get_new_batch_prefill", after=Attached.prefill_planned),
        f"{SCHEDULER}process_batch_result": around("process_batch_result", after=Attached.step_done),
        f"{SCHEDULER}get_next_batch_to_run": around("get_next_batch_to_run", before=Attached.step_begins),
        f"{BATCH}retract_decode": around("retract_decode", after=Attached.decode_retracted),
        f"{BATCH}check_decode_mem": around("check_decode_mem", before=Attached.before_retraction),
        RELEASE: around("release_kv_cache", before=Attached.before_release, after=Attached.released),
        PRIORITY: around("calc_priority", after=Attached.queue_ordered),
        f"{POLICY}PrefillAdder.add_one_req": add_one,
    }
    hooks |= {
        target: around("reset", after=Attached.tree_reset) for target in present(f"{tree}reset" for tree in TREES)
    }
    hooks |= dict.fromkeys(present(EVICTIONS)[:1], evict)
    hooks |= dict.fromkeys(present((BROADCAST,)), _broadcasting(side))
    hooks |= dict.fromkeys(present((RETRACTION,)), around("retraction_order", after=Attached.decode_ordered))
    of_host = (("evict_host", Attached.host_full), ("_free_values", Attached.host_freed))
    for name, before in of_host:
        hooks |= {target: around(name, before=before) for target in present((_UNIFIED + name,))}
    if len(present(CHUNKS)) == len(CHUNKS):
        hooks |= dict(zip(CHUNKS, (check_prefill, chunk_tokens), strict=True))
    side.hooks = hooks
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)
    return side


def _broadcasting(side: SchedulerSide) -> Callable[..., Any]:
    """The hook where requests go from rank 0 to all."""

    def broadcast(original: Any, receiver: Any, requests: Any, *args: Any, **kwargs: Any) -> Any:
        ranked = side.attached
        if not isinstance(ranked, Ranked):
            return original(receiver, requests, *args, **kwargs)
        message = ranked.message(requests)
        received = original(receiver, requests if message is None else [message, *requests], *args, **kwargs)
        if not received or not isinstance(received[0], StepMessage):
            return received
        ranked.receive(received[0])  # never given up: every rank has to come to where they compare
        return received[1:]

    return broadcast


def _count_evicted(result: Any, freed_tokens: int) -> None:
    result.num_tokens_evicted += freed_tokens
