"""The plugin around a double of vLLM's scheduler: its own calls run once, whatever becomes of our parts."""

from types import SimpleNamespace
from typing import Any

import pytest
from support.hooked import emitted
from vllm_double import (
    BLOCK_TOKENS,
    FullAttentionManager,
    RequestDouble,
    SchedulerDouble,
    SlidingWindowManager,
    VllmDouble,
)

from controlplane.core.model.commands import (
    Command,
    Demote,
    Discard,
    Label,
    Prefetch,
    Release,
    Retain,
    SetWindow,
)
from controlplane.core.model.events import (
    CommandApplied,
    CommandRejected,
    Event,
    PoolSampled,
    TurnEnded,
    TurnSubmitted,
)
from controlplane.core.model.types import seconds
from controlplane.core.policies.engine_policies import EnginePolicies
from controlplane.core.policies.memory.opportunistic import Opportunistic
from controlplane.core.policies.priority.mlfq import Mlfq
from controlplane.gate import identify
from engine_hooks.engine.board import VARIABLE as BOARD
from engine_hooks.engine.settings import PluginMode, Settings
from engine_hooks.engine.steering import Steering
from engine_hooks.vllm import attached as attached_module
from engine_hooks.vllm.attached import Attached
from engine_hooks.vllm.engine_view import EngineView
from engine_hooks.vllm.scheduler_side import PORT_VARIABLE, RANKS_VARIABLE, SchedulerSide

MARS = EnginePolicies(priority=Mlfq(), memory=Opportunistic())
A, B = "a1 a2 a3 a4", "b1 b2 b3 b4"


class Engine:
    """A scheduler double with the plugin, and what its emitter was given."""

    def __init__(self, sent: list[Event], mode: PluginMode = PluginMode.ON, **sizes: Any) -> None:
        self.sent = sent
        self.side = SchedulerSide(Settings(mode=mode))
        self.scheduler: Any = self.side.wraps(SchedulerDouble)(**sizes)

    @property
    def attached(self) -> Attached:
        assert self.side.attached is not None
        return self.side.attached

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.sent if type(event) is kind]

    def begin(self, name: str, words: str, program: str | None = None) -> RequestDouble:
        """A turn is queued, scheduled and computed."""
        request = RequestDouble(name, words, program=program)
        self.scheduler.add_request(request)
        output = self.scheduler.schedule()
        self.scheduler.compute(request)
        self.scheduler.update_from_output(output, "answer")
        return request

    def end(self, request: RequestDouble, status: str = "FINISHED_STOPPED") -> None:
        request.status.name = status
        assert self.scheduler._free_request(request) == ("freed", None)

    def turn(self, name: str, words: str, program: str | None = None) -> None:
        self.end(self.begin(name, words, program))

    def command(self, command: Command) -> None:
        """Obeyed while the engine is idle."""
        self.attached.on_command(command)
        self.scheduler.has_requests()

    def steered(self) -> "Engine":
        heard = self.attached.emitter._options.on_heartbeat
        assert heard is not None
        heard(SimpleNamespace(engine_policies=MARS.dumps(), lease_ttl_ns=seconds(60)))  # type: ignore[arg-type]
        self.scheduler.has_requests()
        return self


@pytest.fixture(autouse=True)
def sent(vllm: VllmDouble, monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    monkeypatch.setenv(BOARD, "")
    monkeypatch.setenv(PORT_VARIABLE, "8000")
    return emitted(monkeypatch)


@pytest.fixture
def engine(sent: list[Event]) -> Engine:
    return Engine(sent)


# What is told


@pytest.mark.parametrize("status", ["FINISHED_ABORTED", "FINISHED_ERROR"])
def test_a_turn_without_an_answer_did_not_end_well(engine: Engine, status: str) -> None:
    engine.end(engine.begin("r", A), status)
    assert [event.ok for event in engine.told(TurnEnded)] == [False]


def test_a_sample_counts_blocks_that_are_free_cached_and_pinned(engine: Engine) -> None:
    engine.turn("r", A)
    engine.command(Retain(command_id=1, program_id="r", ttl_ns=seconds(60)))
    engine.attached._probe._sampled_ns = 0
    engine.scheduler.has_requests()
    sample = engine.told(PoolSampled)[-1]
    assert (sample.total_blocks, sample.block_tokens) == (16, BLOCK_TOKENS)
    assert (sample.free_blocks, sample.evictable_blocks, sample.retained_blocks) == (12, 0, 4)


def test_the_end_of_a_streamed_input_is_no_turn(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM is told of it by a request of the same id, which ends the one that it has."""
    engine.turn("r", A, program="p")
    monkeypatch.setattr(SchedulerDouble, "add_request", lambda scheduler, request: None)
    engine.scheduler.add_request(RequestDouble("r", A, program="p"))
    assert len(engine.told(TurnSubmitted)) == 1
    assert not engine.attached._probe.is_running("p")


def test_a_program_is_named_as_its_gate_would_name_it(engine: Engine) -> None:
    """vLLM takes any session for one, and the bus does not."""
    for name, session_id in (("long", "s" * 300), ("control", "s\n")):
        request = RequestDouble(name, A, program="")
        request.session_id = session_id
        engine.scheduler.add_request(request)
    named = [event.program_id for event in engine.told(TurnSubmitted)]
    assert named == [identify([], {"session_id": each}).program_id for each in ("s" * 300, "s\n")]


@pytest.mark.parametrize("as_new", [False, True])
def test_what_is_computed_again_after_a_preemption_is_told_with_the_turns_end(engine: Engine, as_new: bool) -> None:
    engine.scheduler.lists_resumed_as_new = as_new
    request = engine.begin("r", A)
    request.num_computed_tokens += 3  # it decoded
    engine.scheduler._preempt_request(request, 0.0)
    engine.scheduler.schedule()
    engine.scheduler.schedule()  # it goes on
    engine.end(request)
    (ended,) = engine.told(TurnEnded)
    assert ended.recomputed_tokens == 4 * BLOCK_TOKENS + 3
    assert ended.cached_tokens == 0


# Commands, while the engine is idle


def test_a_pin_may_be_renewed_until_the_programs_next_turn_is_scheduled(engine: Engine) -> None:
    """It holds while that turn waits. To refuse would have the daemon think that there is none."""
    engine.turn("p", A)
    engine.command(Retain(command_id=1, program_id="p", ttl_ns=seconds(60)))
    engine.scheduler.add_request(RequestDouble("again", A, program="p"))
    engine.attached.on_command(Retain(command_id=2, program_id="p", ttl_ns=seconds(600)))
    engine.attached.step_begins()
    (pin,) = engine.attached._pins.listed()
    assert seconds(60) < pin.ttl_ns <= seconds(600)
    assert engine.attached._pins.tokens == 4 * BLOCK_TOKENS
    engine.scheduler.schedule()
    engine.attached.on_command(Retain(command_id=3, program_id="p", ttl_ns=seconds(60)))
    engine.attached.step_begins()
    assert [event.command_id for event in engine.told(CommandApplied)] == [1, 2]
    assert [event.command_id for event in engine.told(CommandRejected)] == [3]
    assert engine.attached._pins.tokens == 0


def test_the_health_page_tells_of_each_group(engine: Engine) -> None:
    told: Any = engine.side.account()["kv_cache_groups"]
    assert told == ["group 0: FullAttentionManager, blocks of 4 tokens: every block is kept"]


def test_what_is_discarded_is_given_out_first_and_shared_blocks_stay(engine: Engine) -> None:
    engine.turn("other", "a1 a2 x3")
    engine.turn("freed", A)
    engine.command(Discard(command_id=1, program_id="freed"))
    assert (engine.scheduler.cached(A), engine.scheduler.cached("a1 a2 x3")) == (2, 3)
    engine.turn("filler", "f1 f2")
    assert engine.scheduler.cached("a1 a2 x3") == 3
    engine.turn("p", B)
    cached = engine.scheduler.pool.cached_block_hash_to_block
    engine.scheduler.pool.touch([cached[each] for each in RequestDouble("", B).block_hashes])  # by a running turn
    engine.command(Discard(command_id=2, program_id="p"))
    assert engine.scheduler.cached(B) == 4


def test_no_block_is_lost_where_one_cannot_be_moved(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not where it should be: fewer free blocks than vLLM counted on would end EngineCore."""
    engine.turn("p", A)
    queue = engine.scheduler.pool.free_block_queue
    odd = engine.scheduler.pool.cached_block_hash_to_block["a1 a2"]
    remove = type(queue).remove

    def fail_for_one(self: Any, block: Any) -> None:
        if block is odd:
            raise RuntimeError("it is not in the list")
        remove(self, block)

    monkeypatch.setattr(type(queue), "remove", fail_for_one)
    engine.command(Discard(command_id=1, program_id="p"))
    assert queue.num_free_blocks == 16
    assert engine.side.guard.failures == {"obey": 1}


def test_what_vllm_cannot_do_is_rejected_with_the_reason(engine: Engine) -> None:
    engine.turn("p", A)
    engine.command(Retain(command_id=1, program_id="p", ttl_ns=seconds(60)))
    engine.command(Demote(command_id=2, program_id="p"))
    assert engine.attached._pins.tokens == 0, "a demotion unpins all the same"
    engine.command(Prefetch(command_id=3, program_id="p"))
    engine.command(Retain(command_id=4, program_id="stranger", ttl_ns=1))
    engine.command(Label(command_id=5, program_id="p", label="busy"))
    engine.command(Release(command_id=6, program_id="p"))
    rejected = {event.command_id: event.reason for event in engine.told(CommandRejected)}
    assert "below the device" in rejected[2] == rejected[3]
    assert rejected[4] == "no turn of it ended here"
    assert [event.command_id for event in engine.told(CommandApplied)] == [1, 5, 6]


def test_a_cache_with_pins_can_be_emptied_and_one_that_is_not_still_has_its_contexts(engine: Engine) -> None:
    """Where a running turn holds blocks the engine says no, and everything stays where it is."""
    engine.turn("p", A)
    running = engine.begin("running", B)
    assert not engine.scheduler.reset_prefix_cache()
    engine.command(Retain(command_id=1, program_id="p", ttl_ns=seconds(60)))
    engine.scheduler.schedule()
    engine.end(running)
    assert engine.scheduler.reset_prefix_cache()
    engine.command(Retain(command_id=2, program_id="p", ttl_ns=seconds(60)))
    assert [event.command_id for event in engine.told(CommandApplied)] == [1]
    assert [event.command_id for event in engine.told(CommandRejected)] == [2]


def test_a_probe_tells_and_obeys_nothing(sent: list[Event]) -> None:
    engine = Engine(sent, PluginMode.PROBE)
    engine.turn("p", A)
    engine.command(Retain(command_id=1, program_id="p", ttl_ns=seconds(60)))
    assert engine.told(TurnEnded)
    assert not engine.told(CommandApplied)


# Held back until the daemon has spoken


def test_what_nobody_retains_is_let_go(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached_module, "_HOLD_NS", 0)
    engine.turn("p", A)
    engine.command(Retain(command_id=1, program_id="p", ttl_ns=0))
    engine.turn("q", B)
    engine.scheduler.has_requests()
    assert engine.attached._pins.tokens == 0


def test_what_a_turn_leaves_behind_as_it_goes_on_is_held_for_its_return_until_there_is_no_room(
    sent: list[Event],
) -> None:
    """A window's blocks before the prompt's end. They go before a running turn does, or else with the turn."""
    engine = Engine(sent, managers=(FullAttentionManager(), SlidingWindowManager()))
    manager, tail = engine.scheduler.kv_cache_manager, engine.scheduler.pool.blocks[-2:]
    manager.coordinator.find_longest_cache_hit = lambda hashes, most_tokens: (([], tail), most_tokens, 0)
    engine.turn("p", A)
    engine.command(Retain(command_id=1, program_id="p", ttl_ns=0))
    request = engine.begin("r", B)
    assert [block.ref_cnt for block in tail] == [1, 1]
    assert engine.attached.room_for(request)
    assert [block.ref_cnt for block in tail] == [0, 0]
    assert not engine.attached.room_for(request)
    engine.end(request)
    other = engine.begin("other", "o1 o2")
    engine.command(Release(command_id=2, program_id="r"))
    engine.attached.step_begins()
    assert [block.ref_cnt for block in tail] == [1, 1]
    engine.end(other, "FINISHED_ABORTED")
    engine.command(Release(command_id=3, program_id="other"))
    assert [block.ref_cnt for block in tail] == [0, 0]


# Room


def test_pins_go_for_a_turn_that_would_wait_for_ever_and_the_queue_follows_the_policy(engine: Engine) -> None:
    engine.turn("p", A)
    engine.command(Retain(command_id=1, program_id="p", ttl_ns=seconds(60)))
    allocate = engine.scheduler.kv_cache_manager.allocate_slots
    assert allocate(RequestDouble("larger"), 17) is None, "the engine says no once"
    assert len(allocate(RequestDouble("large"), 14)) == 14
    engine.steered()
    for name, words in (("large", " ".join("abcdefghijkl")), ("small", "s1")):
        engine.scheduler.add_request(RequestDouble(name, words))
    engine.scheduler.schedule()
    assert [request.request_id for request in engine.scheduler.running] == ["small", "large"]


def test_who_is_preempted_first_is_the_policys_choice_where_room_runs_out(engine: Engine) -> None:
    """vLLM preempts the last that runs."""
    running = [RequestDouble("large", " ".join("abcdefgh")), RequestDouble("small", "s")]
    engine.steered()
    engine.scheduler.max_num_scheduled_tokens, engine.scheduler.running = 4 * BLOCK_TOKENS, list(running)
    engine.attached.step_begins()
    assert engine.scheduler.running == running, "there is room"
    engine.scheduler.pool.get_new_blocks(12)
    engine.attached.step_begins()
    assert engine.scheduler.running == running[::-1]


def test_where_nothing_can_be_evicted_the_contexts_are_looked_at_once_a_step(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each decoding request takes a block of its own."""
    looked: list[int] = []
    monkeypatch.setattr(Steering, "evict", lambda steering, needed_tokens, busy: looked.append(needed_tokens) or 0)
    engine.turn("filler", " ".join(f"f{number}" for number in range(16)))
    engine.steered()
    for _ in range(2):
        engine.scheduler.schedule()
        for _ in range(3):
            engine.attached.make_room(1)
    assert len(looked) == 2


# Nothing of ours ends the engine


def test_a_part_that_fails_is_counted_and_the_engine_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("ours")

    for name in ("request_queued", "step_begins", "step_planned", "without_token", "before_free", "freed", "idle"):
        monkeypatch.setattr(Attached, name, fail)
    engine.turn("r", A)
    assert not engine.scheduler.has_requests()
    assert {"add_request", "schedule", "before_free", "_free_request"} <= set(engine.side.guard.failures)
    assert "the hook add_request failed" in caplog.text


def test_pins_end_at_their_deadlines_however_many_commands_fail(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(EngineView, "evict_tail", fail)
    monkeypatch.setattr(attached_module, "_HOLD_NS", 0)
    engine.turn("p", A)
    engine.command(Retain(command_id=1, program_id="p", ttl_ns=0))
    for number in range(30):
        engine.turn(f"r{number}", B)
        engine.attached.on_command(Discard(command_id=number, program_id=f"r{number}"))
    engine.scheduler.has_requests()
    engine.scheduler.has_requests()
    assert engine.side.guard.failures == {"obey": 20}
    assert engine.attached._pins.tokens == 0


@pytest.mark.parametrize(
    ("sizes", "variables", "why"),
    [
        ({"elastic": True}, {}, "come and go"),
        ({}, {PORT_VARIABLE: ""}, "no HTTP server"),
    ],
)
def test_where_it_cannot_work_it_is_passive_and_says_why(
    sent: list[Event], monkeypatch: pytest.MonkeyPatch, sizes: dict[str, Any], variables: dict[str, str], why: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    engine = Engine(sent, **sizes)
    engine.turn("r", A)
    assert (engine.side.attached, sent) == (None, [])
    assert why in str(engine.side.account()["passive_because"])


def test_a_rank_tells_in_its_own_name(sent: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that steps alone is told of no other: its server says how many there are, and vLLM which it is."""
    assert Engine(sent).attached.emitter.publisher.startswith("local/engine-8000/")
    monkeypatch.setenv(RANKS_VARIABLE, "2")
    engine = Engine(sent)
    assert engine.side.rank == 1
    assert engine.attached.emitter.publisher.startswith("local/engine-8000-dp1/")


@pytest.mark.parametrize(
    ("sizes", "lacks", "why"),
    [
        ({"caching": False}, "", "prefix caching is off"),
        ({"managers": ()}, "", "cannot be told"),
        ({"managers": (FullAttentionManager(block_pool=None),)}, "", "KV cache group 0 (FullAttentionManager)"),
        ({}, "vllm.v1.core.kv_cache_utils.FreeKVCacheBlockQueue.prepend_n", "prepend_n"),
    ],
)
def test_where_nothing_can_be_pinned_all_else_works(
    sent: list[Event], vllm: VllmDouble, sizes: dict[str, Any], lacks: str, why: str
) -> None:
    if lacks:
        vllm.remove(lacks)
    engine = Engine(sent, **sizes)
    engine.turn("p", A)
    engine.command(Retain(command_id=1, program_id="p", ttl_ns=seconds(60)))
    engine.command(Discard(command_id=2, program_id="p"))
    assert engine.told(TurnEnded)
    assert all(why in event.reason for event in engine.told(CommandRejected))
    assert len(engine.told(CommandRejected)) == 2


def test_without_the_probes_targets_vllms_own_class_is_built(sent: list[Event], vllm: VllmDouble) -> None:
    vllm.remove("vllm.v1.core.sched.scheduler.Scheduler._free_request")
    side = SchedulerSide(Settings())
    assert side.wraps(SchedulerDouble) is SchedulerDouble
    assert "_free_request" in side.passive_because


@pytest.mark.parametrize(
    ("mode", "command", "wakes"),
    [
        (PluginMode.ON, Release(command_id=1, program_id="p"), True),
        (PluginMode.ON, SetWindow(command_id=1, limit=4, window=4.0), False),
        (PluginMode.PROBE, Release(command_id=1, program_id="p"), False),
    ],
)
def test_an_idle_engine_is_woken_for_a_command_that_it_obeys(
    sent: list[Event], vllm: VllmDouble, mode: PluginMode, command: Command, wakes: bool
) -> None:
    woken: list[Any] = []
    vllm.set("vllm.v1.engine.EngineCoreRequestType.WAKEUP", "wake up")
    engine = Engine(sent, mode)
    engine.attached._core = SimpleNamespace(input_queue=SimpleNamespace(put_nowait=woken.append))
    engine.attached.on_command(command)
    assert woken == [("wake up", None)] * wakes


def test_while_vllm_is_paused_with_turns_in_its_queue_deadlines_and_commands_go_on(engine: Engine) -> None:
    """It takes no step until it is resumed, and says that it has nothing to do."""
    engine.turn("p", A)
    engine.command(Retain(command_id=1, program_id="p", ttl_ns=0))
    engine.scheduler.add_request(RequestDouble("queued", B))
    engine.scheduler.paused = True
    assert not engine.scheduler.has_requests()
    assert engine.attached._pins.tokens == 0
    assert engine.attached.is_idle
    engine.scheduler.paused = False
    assert engine.scheduler.has_requests()
    engine.scheduler.schedule()
    assert not engine.attached.is_idle
