"""The plugin in SGLang's scheduler process: its hooks, and what they do once the scheduler is whole."""

from collections.abc import Callable
from typing import Any

from controlplane.core.model.events import DECODE
from engine_hooks.engine.board import account
from engine_hooks.engine.settings import Settings
from engine_hooks.engine.targets import Feature
from engine_hooks.engine.verify import verify
from engine_hooks.guard import Guard, TimedGuard, log
from engine_hooks.sglang.attached import Attached
from engine_hooks.sglang.lockstep import StepMessage
from engine_hooks.sglang.peers import Peers
from engine_hooks.sglang.processes import disaggregation, no_gate, rank_of_scheduler
from engine_hooks.sglang.ranked import Ranked
from engine_hooks.sglang.targets import (
    BATCH,
    BROADCAST,
    CHECK_PREFILL,
    CHUNK_TOKENS,
    DECODE_STEP,
    POLICY,
    PREFILL_STEP,
    RETRACTION,
    SCHEDULER,
    TARGETS,
    TREE,
)
from engine_hooks.sglang.verify import report_problems, unbound, unknown_tree, unproven

RELEASE = "sglang.srt.mem_cache.common.release_kv_cache"
PRIORITY = POLICY + "SchedulePolicy.calc_priority"


class SchedulerSide:
    """The plugin in one scheduler process: passive until ``attached``, and where SGLang is not what was proved."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.guard = TimedGuard() if settings.timed else Guard()
        self.hooks: dict[str, Callable[..., Any]] = {}  # by target, once they are registered
        self.attached: Attached | None = None
        self.rank = 0  # of several, data-parallel ones
        self.passive_because = ""
        self._speaks = True  # for all ranks

    def account(self) -> dict[str, object] | None:
        """What the health page shows of this process; None if another tells it. Called in a thread of its own.

        SGLang 0.5.23 loads plugins in processes without a scheduler, too: they have nothing to tell.
        """
        attached = self.attached
        if not self._speaks or (attached is None and not self.passive_because):
            return None
        report = account(self.guard, attached.emitter if attached is not None else None)
        if attached is None:
            return {**report, "passive_because": self.passive_because}
        return {**report, "passive_because": attached.decodes_because, **attached.account()}

    def scheduler_made(self, result: Any, saved: Any, scheduler: Any, *args: Any) -> None:
        """Runs once the scheduler is whole: only then is its rank known."""
        peers = Peers.of(scheduler)
        self._speaks = peers is None or peers.leads
        self.passive_because = why = self._why_passive(scheduler, peers)
        if why:
            log.warning("penstock: passive: %s", why)
            return
        self.rank = rank_of_scheduler(scheduler) or 0
        common = (scheduler, self._settings, self.guard)
        self.attached = attached = Attached(*common) if peers is None else Ranked(*common, peers)
        attached.begin()
        if self._speaks:
            if self._settings.obeys and (lacks := no_gate(scheduler.server_args)):
                log.warning("penstock: no gate in this server: %s", lacks)
            log.info("penstock: probe on, node %s, pool of %d tokens", self._settings.node, attached.pool_tokens)

    def _why_passive(self, scheduler: Any, peers: Peers | None) -> str:
        """Half of the hooks would tell half of the truth."""
        mode = disaggregation(scheduler.server_args)
        lacks_tree = "" if mode == DECODE else unknown_tree(scheduler.tree_cache)
        if why := unproven(scheduler.server_args) or lacks_tree:
            return why
        needed = {Feature.RANKS: peers is not None, Feature.DISAGGREGATION: bool(mode)}
        problems = unbound(self.hooks) + verify(each for each in TARGETS if needed.get(each.feature))
        report_problems(problems)
        return problems[0].message if problems else ""

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
    """Register every hook of the scheduler's process that this SGLang has a place for. It must be importable."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    side = SchedulerSide(settings)
    lacking = {problem.feature for problem in verify(TARGETS)}
    for feature, hooks in _hooks(side).items():
        side.hooks |= {} if feature in lacking else hooks
    for target, hook in side.hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)
    return side


def _hooks(side: SchedulerSide) -> dict[Feature, dict[str, Callable[..., Any]]]:
    around, evict = side.around, _evicting(side)
    return {
        Feature.PROBE: {
            f"{SCHEDULER}__init__": side.guard.around("__init__", after=side.scheduler_made),
            f"{SCHEDULER}_add_request_to_queue": around("_add_request_to_queue", after=Attached.request_queued),
            f"{SCHEDULER}get_new_batch_prefill": around("get_new_batch_prefill", after=Attached.prefill_planned),
            f"{SCHEDULER}process_batch_result": around("process_batch_result", after=Attached.step_done),
            f"{SCHEDULER}get_next_batch_to_run": around("get_next_batch_to_run", before=Attached.step_begins),
            f"{BATCH}retract_decode": around("retract_decode", after=Attached.decode_retracted),
            RELEASE: around("release_kv_cache", before=Attached.before_release, after=Attached.released),
        },
        Feature.PINS: {
            PRIORITY: around("calc_priority", after=Attached.queue_ordered),
            f"{POLICY}PrefillAdder.add_one_req": _adding(side),
            f"{TREE}reset": around("reset", after=Attached.tree_reset),
            f"{TREE}evict": evict,
            f"{TREE}evict_for_alloc": evict,
        },
        Feature.CHUNKS: {
            CHECK_PREFILL: _checking(side),
            CHUNK_TOKENS: _chunking(side),
            RETRACTION: around("retraction_order", after=Attached.decode_ordered),
        },
        Feature.HOST: {
            f"{TREE}evict_host": around("evict_host", before=Attached.host_full),
            f"{TREE}_free_values": around("_free_values", before=Attached.host_freed),
        },
        Feature.RANKS: {BROADCAST: _broadcasting(side)},
        Feature.DISAGGREGATION: {
            path: around("get_next_batch_to_run", before=Attached.step_begins)
            for path in (PREFILL_STEP, DECODE_STEP)
        },
    }


def _adding(side: SchedulerSide) -> Callable[..., Any]:
    """The hook where a waiting request is let into a batch, if there is room."""
    run, room_for = side.guard.run, side.once(Attached.room_for)

    def add_one(original: Any, adder: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(adder, request, *args, **kwargs)
        if getattr(result, "name", "") == "NO_TOKEN" and run("add_one_req", room_for, adder, request):
            result = original(adder, request, *args, **kwargs)
        return result

    return add_one


def _evicting(side: SchedulerSide) -> Callable[..., Any]:
    run, evict_first = side.guard.run, side.once(Attached.evict_first)

    def evict(original: Any, tree: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        freed_tokens, rest = run("evict", evict_first, tree, params) or (0, params)
        result = original(tree, rest, *args, **kwargs)
        if freed_tokens:
            run("evict", _count_evicted, result, freed_tokens)
        return result

    return evict


def _checking(side: SchedulerSide) -> Callable[..., Any]:
    """The hook where it is judged whether a prefill fits."""
    run, first_chunk = side.guard.run, side.once(Attached.first_chunk)

    def check_prefill(original: Any, adder: Any, request: Any, *args: Any, **sizes: Any) -> Any:
        verdict = original(adder, request, *args, **sizes)
        return run("check_prefill", first_chunk, verdict, adder, request, sizes) or verdict

    return check_prefill


def _chunking(side: SchedulerSide) -> Callable[..., Any]:
    """The hook where the next chunk of an unfinished prefill gets its size."""
    run, next_chunk = side.guard.run, side.once(Attached.next_chunk)

    def chunk_tokens(original: Any, budget: Any, chunk_limit: int) -> Any:
        limit = original(budget, chunk_limit)
        tokens = run("available_chunk_tokens", next_chunk, budget, chunk_limit)
        if tokens is None or tokens < 0:
            return limit
        return tokens or None  # None: the request waits as it is

    return chunk_tokens


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
