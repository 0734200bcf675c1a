"""The hooks of order, eviction and chunks: the engine's own call runs once, whatever becomes of our part."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from scheduler_double import RequestDouble, SchedulerDouble, ViewDouble
from sglang_double import SglangDouble

from controlplane.core.commands import Admit, Pause, Place, Retain, SetWindow
from controlplane.core.engine_policies import EnginePolicies
from controlplane.core.events import CommandApplied, Event, FirstToken, PoolSampled, TurnEnded
from controlplane.core.memory.lru import Lru
from controlplane.core.memory.opportunistic import Opportunistic
from controlplane.core.priority.mlfq import Mlfq
from controlplane.core.types import seconds
from controlplane.emit.emitter import Emitter
from engine_hooks.engine.settings import PluginMode, Settings
from engine_hooks.sglang import attached, scheduler_side
from engine_hooks.sglang.attached import Attached
from engine_hooks.sglang.scheduler_side import CHUNKS, EVICTIONS, PRIORITY, RELEASE, SCHEDULER

LONG_MS = 60_000  # far longer than a test lasts
MARS = EnginePolicies(priority=Mlfq(), memory=Opportunistic())


@dataclass
class EvictParamsDouble:
    """SGLang's."""

    num_tokens: int = 0
    swa_num_tokens: int = 0


@dataclass
class EvictResultDouble:
    """SGLang's."""

    num_tokens_evicted: int = 0


class Engine:
    """SGLang's functions as doubles that note their calls, with the plugin's hooks around them."""

    def __init__(self, sglang: SglangDouble, monkeypatch: pytest.MonkeyPatch, mode: PluginMode) -> None:
        self.calls: list[Any] = []
        self.verdict: Any = (False, None)
        self.limit: Any = 777
        self.evict_result: Any = EvictResultDouble(5)
        self._sglang = sglang
        sglang.set(EVICTIONS[0], lambda tree, params: self._called(params, self.evict_result))
        sglang.set(CHUNKS[0], lambda adder, req, **sizes: self._called(sizes, self.verdict))
        sglang.set(CHUNKS[1], lambda budget, chunk_limit: self._called(chunk_limit, self.limit))
        self.scheduler = SchedulerDouble()
        self.view = ViewDouble(self.scheduler)
        self.sent: list[Event] = []
        monkeypatch.setattr(attached, "EngineView", lambda scheduler: self.view)
        monkeypatch.setattr(Emitter, "start", lambda emitter: None)
        monkeypatch.setattr(Emitter, "emit", lambda emitter, event, urgent=False: self.sent.append(event))
        self.side = scheduler_side.install(Settings(mode=mode))
        sglang.registry.apply_hooks()
        self.call(f"{SCHEDULER}.__init__", self.scheduler)

    def _called(self, given: Any, result: Any) -> Any:
        self.calls.append(given)
        return result

    @property
    def attached(self) -> Attached:
        assert self.side.attached is not None
        return self.side.attached

    def call(self, target: str, *args: Any, **kwargs: Any) -> Any:
        """One of SGLang's functions, as SGLang calls it."""
        return self._sglang.find(target)(*args, **kwargs)

    # What goes on in the scheduler

    def step(self) -> None:
        self.call(f"{SCHEDULER}.get_next_batch_to_run", self.scheduler)

    def steered(self, policies: EnginePolicies = MARS) -> "Engine":
        """A heartbeat with policies has come."""
        self.beat(policies.dumps())
        return self

    def beat(self, text: str) -> None:
        heard = self.attached.emitter._on_heartbeat
        assert heard is not None
        heard(SimpleNamespace(engine_policies=text, lease_ttl_ns=seconds(60)))  # type: ignore[arg-type]
        self.step()

    def command(self, command: Any) -> None:
        self.attached.on_command(command)
        self.step()

    def queued(self, request: RequestDouble) -> RequestDouble:
        self.call(f"{SCHEDULER}._add_request_to_queue", self.scheduler, request)
        return request

    def prefilled(self, batch: Any) -> None:
        """The scheduler planned this prefill."""
        hook = self.side.hooks[f"{SCHEDULER}.get_new_batch_prefill"]
        assert hook(lambda scheduler: batch, self.scheduler) is batch

    def ran(self, program: str, tokens: int) -> None:
        """A turn of the program came, ended and left a context."""
        request = self.queued(RequestDouble(f"turn of {program}", tokens, program=program))
        request.is_finished = True
        self.call(RELEASE, request, "tree")
        self.view.cached[program] = tokens

    def evict(self, tokens: int) -> Any:
        return self.call(EVICTIONS[0], "tree", EvictParamsDouble(tokens, swa_num_tokens=3))

    def check_prefill(self, request: RequestDouble, *, rem_chunk_tokens: int | None = 1000, **adder: Any) -> Any:
        made = SimpleNamespace(
            rem_chunk_tokens=rem_chunk_tokens,
            new_chunked_req=adder.get("new_chunked_req"),
            memory_budget=SimpleNamespace(current_offset=0),
            can_run_list=[],
            ceil_paged_tokens=lambda tokens: -(-tokens // 16) * 16,
        )
        wanted = len(request.origin_input_ids)
        return self.call(
            CHUNKS[0], made, request, extend_input_len=wanted, total_tokens=wanted + 100, swa_host_hit_length=0
        )

    def chunk_tokens(self, chunk_limit: int = 1000) -> Any:
        return self.call(CHUNKS[1], SimpleNamespace(current_offset=0), chunk_limit)


@pytest.fixture
def make(sglang: SglangDouble, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    return lambda mode=PluginMode.ON: Engine(sglang, monkeypatch, mode)


@pytest.fixture
def engine(make: Callable[..., Engine]) -> Engine:
    return make()


def broken(*args: Any) -> Any:
    raise RuntimeError("a bug of ours")


# Pins


def test_a_command_ends_the_sleep_of_an_idle_engine(engine: Engine) -> None:
    engine.ran("kept", 100)
    poll = engine.scheduler.idle_sleeper.poller.poll
    assert poll(0) == []
    engine.attached.on_command(Retain(program_id="kept", ttl_ns=seconds(60)))
    assert poll(LONG_MS)
    engine.step()
    engine.attached.on_command(SetWindow(limit=1, window=1.0))
    assert poll(0) == [], "it is the gate's"


def test_an_idle_engine_sleeps_to_the_end_of_a_pin_which_it_tells_of_at_once(engine: Engine) -> None:
    engine.ran("kept", 100)
    engine.command(Retain(program_id="kept", ttl_ns=seconds(0.02)))
    (before,) = [event for event in engine.sent if isinstance(event, PoolSampled)]
    assert before.retained_blocks == 100
    engine.scheduler.idle_sleeper.poller.poll(LONG_MS)
    engine.scheduler.idle_sleeper.poller.poll(LONG_MS)  # the command had rung as well
    engine.step()
    after = [event for event in engine.sent if isinstance(event, PoolSampled)][-1]
    assert (after is before, after.retained_blocks) == (False, 0)


def test_the_daemon_s_memory_policy_says_how_much_pins_may_take(engine: Engine) -> None:
    total_tokens = int(engine.scheduler.max_total_num_tokens)
    engine.steered().ran("p", total_tokens * 3 // 4)
    engine.command(Retain(program_id="p", ttl_ns=seconds(60)))
    assert engine.sent[-1].reason == "the pin budget (0.5 of the pool) is spent"  # type: ignore[attr-defined]
    engine.steered(EnginePolicies(memory=Lru(keep_pins=True)))
    engine.command(Retain(program_id="p", ttl_ns=seconds(60)))
    assert isinstance(engine.sent[-1], CommandApplied)


# Eviction


def test_what_was_evicted_by_name_is_not_evicted_again_and_is_counted(engine: Engine) -> None:
    engine.steered().ran("small", 50)
    engine.ran("large", 2000)
    result = engine.evict(1500)
    assert engine.calls == [EvictParamsDouble(0, swa_num_tokens=3)]
    assert result is engine.evict_result
    assert result.num_tokens_evicted == 1500 + 5
    assert engine.view.cached == {"small": 50, "large": 500}


def test_the_engine_evicts_the_rest(engine: Engine) -> None:
    engine.steered().ran("shared", 1000)
    engine.view.cached["shared"] = 300  # most of it belongs to others, too
    engine.evict(900)
    assert engine.calls == [EvictParamsDouble(600, swa_num_tokens=3)]


@pytest.mark.parametrize("policies", [EnginePolicies(), EnginePolicies(priority=Mlfq())])
def test_without_a_policy_of_ours_eviction_is_the_engines(engine: Engine, policies: EnginePolicies) -> None:
    engine.steered(policies).ran("p", 1000)
    assert engine.evict(500).num_tokens_evicted == 5
    assert engine.calls == [EvictParamsDouble(500, swa_num_tokens=3)]
    assert engine.view.evicted == []


def test_an_eviction_of_something_else_is_left_alone(engine: Engine) -> None:
    engine.steered().ran("p", 1000)
    engine.evict(0)
    assert engine.calls == [EvictParamsDouble(0, swa_num_tokens=3)]
    assert engine.view.evicted == []


def test_whoever_runs_or_is_pinned_is_not_evicted(engine: Engine) -> None:
    engine.steered()
    for name in ("runs", "pinned", "idle"):
        engine.ran(name, 500)
    engine.queued(RequestDouble("again", program="runs"))
    engine.command(Retain(program_id="pinned", ttl_ns=seconds(60)))
    engine.evict(500)
    assert engine.view.cached == {"runs": 500, "pinned": 500, "idle": 0}


def test_paused_programs_are_evicted_first_until_they_are_let_in_again(engine: Engine) -> None:
    engine.steered()
    for name in ("a", "b", "c"):
        engine.ran(name, 500)
    engine.command(Pause(program_id="b"))
    engine.command(Pause(program_id="c"))
    engine.command(Admit(program_id="c"))
    engine.evict(700)
    assert engine.view.cached == {"a": 300, "b": 0, "c": 500}
    assert not any(isinstance(event, CommandApplied) for event in engine.sent), "the gate answers these"


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
    scheduler.ps = SimpleNamespace(dp_rank=1)  # type: ignore[attr-defined]
    engine.side.scheduler_made(None, None, scheduler)
    assert engine.side.rank == 1
    assert engine.attached.emitter.publisher.startswith("local/engine-30000-dp1/")


@pytest.mark.parametrize("result", [EvictResultDouble(5), None])
def test_a_failing_eviction_of_ours_leaves_the_engines_as_it_was(engine: Engine, result: Any) -> None:
    engine.steered().ran("p", 1000)
    engine.view.evict_tail = broken  # type: ignore[method-assign]
    engine.evict_result = result
    assert engine.evict(500) is result
    assert engine.calls == [EvictParamsDouble(500, swa_num_tokens=3)]
    assert result is None or result.num_tokens_evicted == 5
    assert engine.side.guard.failures["evict"] == 1


def test_a_result_that_cannot_count_is_returned_as_it_is(engine: Engine) -> None:
    engine.steered().ran("p", 1000)
    engine.evict_result = None
    assert engine.evict(500) is None
    assert engine.calls == [EvictParamsDouble(0, swa_num_tokens=3)]


# The first chunk


def test_a_prefill_that_does_not_fit_begins_with_what_does(engine: Engine) -> None:
    engine.steered().view.free_tokens = 400
    fits, tokens = engine.check_prefill(RequestDouble("r", 900))
    assert fits
    assert 300 < tokens < 400
    assert engine.calls == [{"extend_input_len": 900, "total_tokens": 1000, "swa_host_hit_length": 0}]


def test_a_prefill_that_fits_is_the_engines(engine: Engine) -> None:
    engine.steered().view.free_tokens = 400
    engine.verdict = (True, 123)
    assert engine.check_prefill(RequestDouble("r", 900)) is engine.verdict
    assert len(engine.calls) == 1


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


def test_a_context_that_would_be_loaded_does_not_begin_in_part(engine: Engine) -> None:
    """The engine loads all of it or none: a part's room would not do."""
    engine.steered().view.free_tokens = 400
    request = RequestDouble("r", 900)
    request.host_hit_length = 160
    assert engine.check_prefill(request) is engine.verdict
    request.host_hit_length = 0
    assert engine.check_prefill(request)[0]


def test_no_more_begins_than_the_pass_has_left(engine: Engine) -> None:
    engine.steered().view.free_tokens = 5000
    assert engine.check_prefill(RequestDouble("r", 900), rem_chunk_tokens=256) == (True, 256)


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


def test_what_was_begun_goes_on_with_what_room_there_is(engine: Engine) -> None:
    begun(engine)
    engine.view.free_tokens = 500
    tokens = engine.chunk_tokens(1000)
    assert 300 < tokens < 400
    engine.view.free_tokens = 5000
    assert engine.chunk_tokens(256) == 256
    assert engine.calls == [1000, 256]


@pytest.mark.parametrize("just_prefilled", [True, False])
def test_room_is_left_to_who_was_prefilled_in_the_last_step(engine: Engine, just_prefilled: bool) -> None:
    """SGLang 0.5.21 tells the scheduler of a new running batch only once the next step is planned."""
    unfinished = begun(engine)
    scheduler, decodes = engine.scheduler, engine.scheduler.running_batch.reqs
    if just_prefilled:
        scheduler.running_batch = SimpleNamespace(reqs=[])
        scheduler.last_batch = SimpleNamespace(reqs=[*decodes, unfinished])  # type: ignore[attr-defined]
    engine.view.free_tokens = 120
    assert engine.chunk_tokens() is None
    assert engine.view.decoding() == decodes
    assert engine.view.promised_tokens() <= engine.view.chunk_tokens + 2


def test_it_waits_as_it_is_while_others_need_the_room(engine: Engine) -> None:
    begun(engine)
    engine.view.free_tokens = 120
    assert engine.chunk_tokens() is None
    assert len(engine.calls) == 1


@pytest.mark.parametrize("waits", [True, False])
def test_a_chunk_is_counted_only_for_a_batch_that_has_one(engine: Engine, waits: bool) -> None:
    """Else SGLang would take the last chunk for one of the middle, and drop the turn's first token."""
    request = begun(engine)
    other = engine.queued(RequestDouble("other", 10))
    request.inflight_middle_chunks = 1  # type: ignore[attr-defined]
    engine.prefilled(SimpleNamespace(reqs=[other] if waits else [request, other]))
    assert request.inflight_middle_chunks == (0 if waits else 1)  # type: ignore[attr-defined]


def test_the_count_of_a_prefill_that_the_engine_began_is_the_engines(engine: Engine) -> None:
    engine.steered()
    request, other = RequestDouble("its own"), engine.queued(RequestDouble("other", 10))
    request.inflight_middle_chunks = 1  # type: ignore[attr-defined]
    engine.scheduler.chunked_req = request
    engine.prefilled(SimpleNamespace(reqs=[other]))
    assert request.inflight_middle_chunks == 1  # type: ignore[attr-defined]


def test_where_nothing_else_runs_the_engine_makes_it_go_on(engine: Engine) -> None:
    begun(engine)
    engine.view.free_tokens = 0
    engine.scheduler.running_batch.reqs = []
    assert engine.chunk_tokens() == engine.limit
    assert len(engine.calls) == 1


def test_a_prefill_that_the_engine_began_is_the_engines(engine: Engine) -> None:
    engine.steered()
    assert engine.chunk_tokens() == engine.limit
    begun(engine)
    engine.scheduler.chunked_req = RequestDouble("another")
    assert engine.chunk_tokens() == engine.limit
    assert len(engine.calls) == 1


def pinned(engine: Engine) -> set[str]:
    return set(engine.attached._pins.programs)


@pytest.mark.parametrize(("prompt_tokens", "yields"), [(3000, True), (300, False)])
def test_pins_make_room_for_the_next_chunk_of_an_unfinished_prefill(
    engine: Engine, prompt_tokens: int, yields: bool
) -> None:
    """The engine runs it without asking for room; pins that came after its first chunk would end the scheduler."""
    engine.ran("kept", 400)
    engine.command(Retain(program_id="kept", ttl_ns=seconds(60)))
    engine.view.free_tokens = 100
    assert pinned(engine) == {"kept"}
    request = RequestDouble("large", 1000 + prompt_tokens)
    request.extend_range.end = 1000  # the first chunk has run
    engine.scheduler.chunked_req = request
    engine.step()
    assert pinned(engine) == (set() if yields else {"kept"})
    engine.command(Retain(program_id="kept", ttl_ns=seconds(60)))
    assert pinned(engine) == (set() if yields else {"kept"}), "nor may a new one take it"


def test_a_failing_next_chunk_of_ours_leaves_the_engines(engine: Engine) -> None:
    begun(engine)
    engine.view.pool = broken  # type: ignore[method-assign]
    assert engine.chunk_tokens() == engine.limit
    assert len(engine.calls) == 1
    assert engine.side.guard.failures["available_chunk_tokens"] == 1


@pytest.mark.parametrize("hook", ["get_new_batch_prefill", "check_prefill"])
def test_nothing_is_held_back_once_a_hook_that_must_watch_over_it_was_given_up(engine: Engine, hook: str) -> None:
    begun(engine)
    engine.view.free_tokens = 120
    engine.side.guard.failures[hook] = 1000
    assert engine.chunk_tokens() == engine.limit
    engine.scheduler.chunked_req = None
    engine.view.free_tokens = 400
    assert refused(engine), "and no other begins in part"


# Order, and the steps around it


def test_the_queue_is_ordered_after_the_engine_ordered_it(engine: Engine) -> None:
    engine.steered()
    queue = [engine.queued(RequestDouble("large", 3000)), engine.queued(RequestDouble("small", 10))]
    assert engine.call(PRIORITY, "policy", queue) == ("policy", queue)
    assert [request.rid for request in queue] == ["small", "large"]


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


def test_what_is_computed_again_after_a_retraction_is_told_with_the_turns_end(engine: Engine) -> None:
    """Its prompt of 1,000 tokens and 20 of its 21 tokens of output were computed; 900 of that are found again."""
    request = engine.queued(RequestDouble("1", 1000, program="p"))
    batch = SimpleNamespace(reqs=[request])
    engine.prefilled(batch)
    request.output_ids = [0] * 21
    engine.queued(request)  # it was retracted
    request.prefix_indices = [0] * 900
    engine.prefilled(batch)
    engine.prefilled(batch)  # another chunk of the same prefill
    request.is_finished = True
    engine.call(RELEASE, request, "tree")
    (ended,) = [event for event in engine.sent if isinstance(event, TurnEnded)]
    assert (ended.recomputed_tokens, ended.cached_tokens) == (120, 0)


def test_a_turn_of_one_token_has_its_first_token_before_its_end(engine: Engine) -> None:
    """It ends inside the call that gives it."""
    request = engine.queued(RequestDouble("1", 1000, program="p"))
    engine.prefilled(SimpleNamespace(reqs=[request]))
    request.output_ids, request.is_finished = [1], True
    engine.call(RELEASE, request, "tree")
    kinds = [type(event) for event in engine.sent if isinstance(event, FirstToken | TurnEnded)]
    assert kinds == [FirstToken, TurnEnded]


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
    engine.call(f"{SCHEDULER}.process_batch_result", engine.scheduler, batch)
    assert [event.cached_tokens for event in engine.sent if isinstance(event, FirstToken)] == [3, 3]


def test_policies_that_make_no_sense_hold_up_nothing_else(engine: Engine) -> None:
    engine.ran("p", 500)
    engine.attached.on_command(Retain(command_id=7, program_id="p", ttl_ns=seconds(60)))
    engine.beat("nonsense")
    assert [event.command_id for event in engine.sent if isinstance(event, CommandApplied)] == [7]
    assert engine.side.guard.failures == {}


def test_a_probe_hears_no_policies(make: Callable[..., Engine]) -> None:
    engine = make(PluginMode.PROBE)
    assert engine.attached.emitter._on_heartbeat is None


# What this SGLang has


def hooked(sglang: SglangDouble) -> set[str]:
    scheduler_side.install(Settings())
    return set(sglang.registry.hooks)


def test_only_one_kind_of_tree_is_hooked_for_eviction(sglang: SglangDouble) -> None:
    sglang.set(EVICTIONS[1], lambda tree, params: None)
    assert set(EVICTIONS) & hooked(sglang) == {EVICTIONS[1]}
    sglang.registry.hooks.clear()
    sglang.set(EVICTIONS[0], lambda tree, params: None)
    assert set(EVICTIONS) & hooked(sglang) == {EVICTIONS[0]}


def test_without_both_functions_of_chunks_neither_is_hooked(sglang: SglangDouble) -> None:
    sglang.set(CHUNKS[0], lambda adder, req, **sizes: None)
    assert not set(CHUNKS) & hooked(sglang)
    sglang.set(CHUNKS[1], lambda budget, chunk_limit: None)
    assert set(CHUNKS) <= hooked(sglang)
