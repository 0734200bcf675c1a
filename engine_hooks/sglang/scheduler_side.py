"""The plugin in SGLang's scheduler process: its hooks, and what they do once the scheduler is whole."""

from collections.abc import Callable
from typing import Any

from engine_hooks.engine.board import account
from engine_hooks.engine.settings import Settings
from engine_hooks.engine.targets import Feature
from engine_hooks.engine.verify import present, verify
from engine_hooks.guard import Guard, log, make_guard
from engine_hooks.sglang.attached import Attached
from engine_hooks.sglang.lockstep import Word
from engine_hooks.sglang.peers import Peers
from engine_hooks.sglang.ranked import Ranked
from engine_hooks.sglang.ranks import rank_of_scheduler
from engine_hooks.sglang.targets import BROADCAST, RELAY, TARGETS
from engine_hooks.sglang.verify import report_problems, unbound, unproven

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
FREES = ("sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache._free_values",)
CHUNKS = (  # 0.5.17 has neither
    "sglang.srt.managers.schedule_policy.PrefillAdder._check_prefill_budget",
    "sglang.srt.mem_cache.prefill_budget.PrefillBudget.available_chunk_tokens",
)


class SchedulerSide:
    """The plugin in one scheduler process: passive until ``attached``, and where SGLang is not what was proved."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.guard = make_guard(timed=settings.timed)
        self.hooks: dict[str, Callable[..., Any]] = {}  # by target, once they are registered
        self.attached: Attached | None = None
        self.rank = 0  # of several, data-parallel ones
        self._speaks = True  # for all ranks

    def account(self) -> dict[str, object] | None:
        """What the health page shows of this process; None if another tells it. Called in a thread of its own."""
        if not self._speaks:
            return None
        attached = self.attached
        told = account(self.guard, attached.emitter if attached is not None else None)
        return told if attached is None else {**told, **attached.account()}

    def scheduler_made(self, result: Any, kept: Any, scheduler: Any, *args: Any) -> None:
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
        self.attached = attached = _attached(scheduler, self._settings, self.guard, peers)
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
    room_for, evict_first = once(Attached.room_for), once(Attached.evict)
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
        f"{SCHEDULER}.__init__": side.guard.around("__init__", after=side.scheduler_made),
        f"{SCHEDULER}._add_request_to_queue": around("_add_request_to_queue", after=Attached.request_queued),
        f"{SCHEDULER}.get_new_batch_prefill": around("get_new_batch_prefill", after=Attached.prefill_planned),
        f"{SCHEDULER}.process_batch_result": around("process_batch_result", after=Attached.step_done),
        f"{SCHEDULER}.get_next_batch_to_run": around("get_next_batch_to_run", before=Attached.step_begins),
        f"{BATCH}.retract_decode": around("retract_decode", after=Attached.retracted),
        f"{BATCH}.check_decode_mem": around("check_decode_mem", before=Attached.before_retraction),
        RELEASE: around("release_kv_cache", before=Attached.before_release, after=Attached.released),
        PRIORITY: around("calc_priority", after=Attached.queue_ordered),
        ADD_ONE: add_one,
    }
    hooks |= {target: around("reset", after=Attached.tree_reset) for target in present(RESETS)}
    hooks |= dict.fromkeys(present(EVICTIONS)[:1], evict)
    hooks |= _between_ranks(side)
    hooks |= {target: around("evict_host", before=Attached.host_full) for target in present(HOST_EVICTIONS)}
    hooks |= {target: around("_free_values", before=Attached.host_freed) for target in present(FREES)}
    if len(present(CHUNKS)) == len(CHUNKS):
        hooks |= dict(zip(CHUNKS, (check_prefill, chunk_tokens), strict=True))
    side.hooks = hooks
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)
    return side


def _between_ranks(side: SchedulerSide) -> dict[str, Callable[..., Any]]:
    """The hooks where requests go from rank to rank, as far as this SGLang has them."""

    def broadcast(original: Any, receiver: Any, requests: Any, *args: Any, **kwargs: Any) -> Any:
        ranked = side.attached
        if not isinstance(ranked, Ranked):
            return original(receiver, requests, *args, **kwargs)
        word = ranked.word(requests)
        received = original(receiver, requests if word is None else [word, *requests], *args, **kwargs)
        if not received or not isinstance(received[0], Word):
            return received
        ranked.heard(received[0])  # never given up: every rank of a stage has to come to where they compare
        return received[1:]

    def relay(original: Any, scheduler: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        ranked = side.attached
        if isinstance(ranked, Ranked):
            data = side.guard.run("relay", ranked.relay, data) or data
        return original(scheduler, data, *args, **kwargs)

    return {target: hook for target, hook in ((BROADCAST, broadcast), (RELAY, relay)) if present((target,))}


def _attached(scheduler: Any, settings: Settings, guard: Guard, peers: Peers | None) -> Attached:
    if peers is None:
        return Attached(scheduler, settings, guard)
    return Ranked(scheduler, settings, guard, peers)


def _count_evicted(result: Any, freed_tokens: int) -> None:
    result.num_tokens_evicted += freed_tokens
