"""The hooks of order, eviction and chunks: the engine's own call runs once, whatever becomes of our part."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from engine_double import EVICT, MARS, Engine, EvictParamsDouble, EvictResultDouble
from scheduler_double import RequestDouble, SchedulerDouble
from sglang_double import SglangDouble

from controlplane.core.model.commands import Admit, Place, Retain, SetWindow
from controlplane.core.model.events import FirstToken, TurnEnded
from controlplane.core.model.types import seconds
from controlplane.core.policies.engine_policies import EnginePolicies
from controlplane.core.policies.priority.mlfq import Mlfq
from engine_hooks.engine.settings import PluginMode, Settings
from engine_hooks.sglang import scheduler_side
from engine_hooks.sglang.scheduler_side import PRIORITY, RELEASE
from engine_hooks.sglang.targets import CHECK_PREFILL, CHUNK_TOKENS, RETRACTION, SCHEDULER


def broken(*args: Any) -> Any:
    raise RuntimeError("a bug of ours")


# Commands


def test_a_command_ends_the_sleep_of_an_idle_engine(engine: Engine) -> None:
    poll = engine.scheduler.idle_sleeper.poller.poll
    engine.attached.on_command(SetWindow(limit=1, window=1.0))
    assert poll(0) == [], "it is the gate's"
    engine.attached.on_command(Retain(program_id="kept", ttl_ns=seconds(60)))
    assert poll(60_000)


# Eviction


def test_the_engine_evicts_the_rest(engine: Engine) -> None:
    engine.steered().ran("shared", 1000)
    engine.view.cached["shared"] = 300  # most of it belongs to others, too
    engine.evict(900)
    assert engine.calls == [EvictParamsDouble(600, swa_num_tokens=3)]


@pytest.mark.parametrize(
    ("policies", "tokens"), [(EnginePolicies(), 500), (EnginePolicies(priority=Mlfq()), 500), (MARS, 0)]
)
def test_an_eviction_that_is_not_ours_is_the_engines(engine: Engine, policies: EnginePolicies, tokens: int) -> None:
    """Without a policy of ours, or of something else than tokens."""
    engine.steered(policies).ran("p", 1000)
    assert engine.evict(tokens).num_tokens_evicted == 5
    assert engine.calls == [EvictParamsDouble(tokens, swa_num_tokens=3)]
    assert engine.view.evicted == []


def test_whoever_runs_or_is_pinned_is_not_evicted(engine: Engine) -> None:
    engine.steered()
    for name in ("runs", "pinned", "idle"):
        engine.ran(name, 500)
    engine.queued(RequestDouble("again", program="runs"))
    engine.command(Retain(program_id="pinned", ttl_ns=seconds(60)))
    engine.evict(500)
    assert engine.view.cached == {"runs": 500, "pinned": 500, "idle": 0}


def test_what_lies_here_of_a_program_that_goes_elsewhere_is_evicted_first_and_not_pinned(engine: Engine) -> None:
    engine.steered()
    for name in ("a", "goes", "stays", "comes back"):
        engine.ran(name, 500)
    for name in ("goes", "stays"):
        engine.command(Retain(program_id=name, ttl_ns=seconds(60)))
    engine.command(Place(program_id="goes", replica="local/engine-1-dp1"))
    engine.command(Place(program_id="comes back", replica="local/engine-1-dp1"))
    engine.command(Place(program_id="stays", replica="local/engine"))
    engine.command(Admit(program_id="goes"))  # every engine hears of every slot
    engine.ran("comes back", 500)
    engine.evict(700)
    assert engine.view.cached == {"a": 300, "goes": 0, "stays": 500, "comes back": 500}


def test_a_rank_tells_in_its_own_name(sglang: SglangDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(sglang, monkeypatch, PluginMode.ON)
    assert engine.attached.emitter.publisher.startswith("local/engine/")
    scheduler = SchedulerDouble()
    scheduler.server_args = SimpleNamespace(port=30000, dp_size=2)
    sglang.set("sglang.srt.runtime_context.get_parallel", lambda: SimpleNamespace(dp_rank=1))
    engine.side.scheduler_made(None, None, scheduler)
    assert engine.side.rank == 1
    assert engine.attached.emitter.publisher.startswith("local/engine-30000-dp1/")


def test_a_failing_eviction_of_ours_leaves_the_engines_as_it_was(engine: Engine) -> None:
    engine.steered().ran("p", 1000)
    engine.evict_result = None  # it cannot count
    assert engine.evict(500) is None
    engine.view.evict_tail = broken  # type: ignore[method-assign]
    engine.evict_result = EvictResultDouble(5)
    assert engine.evict(500).num_tokens_evicted == 5
    assert engine.calls == [EvictParamsDouble(tokens, swa_num_tokens=3) for tokens in (0, 500)]
    assert engine.side.guard.failures["evict"] == 2


# The first chunk


def refused(engine: Engine, **more: Any) -> bool:
    """The engine's refusal stands, and it was asked once."""
    engine.calls.clear()
    answer = engine.check_prefill(RequestDouble("r", 900), **more)
    return answer is engine.verdict and len(engine.calls) == 1


def test_where_nothing_may_begin_the_engines_refusal_stands(engine: Engine) -> None:
    engine.view.free_tokens = 400
    assert refused(engine), "no policy"
    engine.steered()
    assert not refused(engine)
    assert refused(engine, new_chunked_req="another that begins in this pass")
    assert refused(engine, rem_chunk_tokens=0)
    assert refused(engine, rem_chunk_tokens=None), "chunking is off"
    engine.scheduler.chunked_req = RequestDouble("another that was begun")
    assert refused(engine)
    engine.scheduler.chunked_req = None
    engine.view.free_tokens = 50
    assert refused(engine), "too little room"
    engine.view.free_tokens = 5000
    assert refused(engine), "the whole would have room: the engine has its reasons"


def test_no_more_begins_than_the_pass_has_left_and_nothing_that_would_be_loaded(engine: Engine) -> None:
    """The engine loads all of a context or none: a part's room would not do."""
    engine.steered().view.free_tokens = 5000
    request = RequestDouble("r", 900)
    assert engine.check_prefill(request, rem_chunk_tokens=256) == (True, 256)
    request.host_hit_length = 160
    assert engine.check_prefill(request, rem_chunk_tokens=256) is engine.verdict
    engine.verdict, request.host_hit_length = (True, 123), 0
    assert engine.check_prefill(request) is engine.verdict, "it fits"


def test_a_failing_chunk_of_ours_leaves_the_engines_refusal(engine: Engine) -> None:
    engine.steered()
    engine.view.pool = broken  # type: ignore[method-assign]
    assert refused(engine)
    assert engine.side.guard.failures["check_prefill"] == 1
    engine.verdict = "of another version"
    assert refused(engine)


@pytest.mark.parametrize("unfinished", ["of an earlier pass", "of this pass"])
@pytest.mark.parametrize(
    ("limit", "answer"), [(1000, (True, 1000)), (900, (True, 0)), (256, (True, 0)), (None, (True, None))]
)
def test_nothing_else_begins_in_part_while_a_prefill_is_unfinished(
    engine: Engine, unfinished: str, limit: int | None, answer: Any
) -> None:
    """SGLang would lose the first of two, or end on an assertion. (A page has 16 tokens: 900 take 912.)"""
    engine.verdict = (True, limit)
    another = RequestDouble("another")
    engine.scheduler.chunked_req = another if unfinished == "of an earlier pass" else None
    found = engine.check_prefill(
        RequestDouble("r", 900), new_chunked_req=another if unfinished == "of this pass" else None
    )
    assert found == answer
    assert len(engine.calls) == 1


# The chunks after it


def begun(engine: Engine, tokens: int = 900) -> RequestDouble:
    """A request that was begun with a shrunk chunk, as SGLang holds it between two passes."""
    request = RequestDouble("begun", tokens)
    engine.steered().view.free_tokens = 400
    fits, _ = engine.check_prefill(request)
    assert fits
    engine.scheduler.chunked_req = request
    engine.scheduler.running_batch.reqs = [RequestDouble("runs", most=100)]
    engine.calls.clear()
    return request


def test_what_was_begun_goes_on_with_what_room_there_is_and_waits_while_others_need_it(engine: Engine) -> None:
    begun(engine)
    engine.view.free_tokens = 500
    assert 300 < engine.chunk_tokens(1000) < 400
    engine.view.free_tokens = 5000
    assert engine.chunk_tokens(256) == 256
    engine.view.free_tokens = 120
    assert engine.chunk_tokens(999) is None
    assert engine.calls == [1000, 256, 999]


@pytest.mark.parametrize("waits", [True, False])
def test_no_chunk_is_in_flight_for_a_prefill_that_waits(engine: Engine, waits: bool) -> None:
    """SGLang counts one whenever a batch is planned while a prefill is unfinished."""
    request, other = begun(engine), engine.queued(RequestDouble("other", 10))
    request.inflight_middle_chunks = 1  # type: ignore[attr-defined]
    engine.prefilled(SimpleNamespace(reqs=[other] if waits else [request, other]))
    assert request.inflight_middle_chunks == (0 if waits else 1)  # type: ignore[attr-defined]


def test_a_prefill_that_the_engine_began_or_that_runs_alone_goes_on_as_the_engine_has_it(engine: Engine) -> None:
    engine.steered()
    assert engine.chunk_tokens() == engine.limit
    begun(engine)
    engine.view.free_tokens = 0
    engine.scheduler.running_batch.reqs = []
    assert engine.chunk_tokens() == engine.limit
    engine.scheduler.chunked_req = RequestDouble("another")
    assert engine.chunk_tokens() == engine.limit
    assert len(engine.calls) == 2


@pytest.mark.parametrize("hook", ["get_new_batch_prefill", "check_prefill", "available_chunk_tokens"])
def test_nothing_is_held_back_once_a_hook_that_must_watch_over_it_fails_or_was_given_up(
    engine: Engine, hook: str
) -> None:
    begun(engine)
    engine.view.free_tokens = 120
    if hook == "available_chunk_tokens":
        engine.view.pool = broken  # type: ignore[method-assign]
    else:
        engine.side.guard.failures[hook] = 1000
    assert engine.chunk_tokens() == engine.limit
    engine.scheduler.chunked_req = None
    engine.view.free_tokens = 400
    assert refused(engine), "and no other begins in part"
    assert engine.side.guard.failures[hook]


# Order, and the steps around it


@pytest.mark.parametrize(("policies", "asked_again"), [(EnginePolicies(), False), (MARS, True)])
def test_a_request_that_may_overtake_has_the_engine_look_again(
    engine: Engine, policies: EnginePolicies, asked_again: bool
) -> None:
    """SGLang looks at no request any more once the first one that waits found no room."""
    engine.steered(policies)
    engine.scheduler.running_batch.batch_is_full = True
    engine.queued(RequestDouble("small", 10))
    assert engine.scheduler.running_batch.batch_is_full is not asked_again


def test_a_failing_order_of_ours_leaves_the_engines(engine: Engine) -> None:
    engine.steered()
    queue = [RequestDouble("large", 3000), SimpleNamespace(rid="of another version"), RequestDouble("small", 10)]
    before = list(queue)
    engine.call(PRIORITY, "policy", queue)
    assert queue == before
    assert engine.side.guard.failures["calc_priority"] == 1


def test_running_requests_are_retracted_by_level_and_size_where_the_policy_says_so(engine: Engine) -> None:
    """The last of the order goes first; the pool has 6,400 tokens, so 150, 500 and 3,000 have levels 1, 2, 3."""
    running = [RequestDouble("a", 3000), RequestDouble("b", 150), RequestDouble("c", 500), RequestDouble("d", 520)]
    assert engine.call(RETRACTION, running) == [3, 2, 1, 0], "the engine's own"
    assert engine.steered().call(RETRACTION, running) == [1, 2, 3, 0]


def test_prefilled_and_decoded_tokens_count_as_service(engine: Engine) -> None:
    engine.steered()
    batch = SimpleNamespace(reqs=[engine.queued(RequestDouble("1", 2500, program="prefilled"))])
    engine.prefilled(batch)
    done = engine.queued(RequestDouble("2", 10, output=2500, program="decoded"))
    done.is_finished = True
    engine.call(RELEASE, done, "tree")
    queue = [engine.queued(RequestDouble(f"next {name}", program=name)) for name in ("prefilled", "decoded", "new")]
    engine.call(PRIORITY, "policy", queue)
    assert [request.rid for request in queue] == ["next new", "next prefilled", "next decoded"]


def test_a_turn_that_ends_before_it_goes_on_computed_nothing_again(engine: Engine) -> None:
    request = engine.queued(RequestDouble("1", 1000, program="p"))
    engine.prefilled(SimpleNamespace(reqs=[request]))
    engine.queued(request)
    request.is_finished = True
    engine.call(RELEASE, request, "tree")
    assert [event.recomputed_tokens for event in engine.sent if isinstance(event, TurnEnded)] == [0]


def test_requests_whose_service_cannot_be_told_are_followed_all_the_same(engine: Engine) -> None:
    requests = [engine.queued(RequestDouble(name)) for name in "ab"]
    for request in requests:
        request.extend_range = None  # type: ignore[assignment]
        request.prefix_indices = [1, 2, 3]
    batch = SimpleNamespace(reqs=requests)
    engine.prefilled(batch)
    for request in requests:
        request.output_ids = [1]
    engine.call(f"{SCHEDULER}process_batch_result", engine.scheduler, batch)
    assert [event.cached_tokens for event in engine.sent if isinstance(event, FirstToken)] == [3, 3]


def test_a_probe_hears_no_policies(make: Callable[..., Engine]) -> None:
    engine = make(PluginMode.PROBE)
    assert engine.attached.emitter._options.on_heartbeat is None


# What this SGLang has


def hooked(sglang: SglangDouble) -> set[str]:
    scheduler_side.install(Settings())
    return set(sglang.registry.hooks)


def test_what_lacks_one_of_its_functions_is_not_hooked_at_all(sglang: SglangDouble) -> None:
    chunks = {CHECK_PREFILL, CHUNK_TOKENS, RETRACTION}
    assert chunks <= hooked(sglang)
    sglang.registry.hooks.clear()
    sglang.remove(CHUNK_TOKENS)
    assert not chunks & hooked(sglang)
    assert EVICT in hooked(sglang)
