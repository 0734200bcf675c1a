"""The daemon's engine policies inside SGLang, over doubles of its scheduler, requests and tree."""

import logging
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from scheduler_double import RequestDouble, SchedulerDouble, ViewDouble, key_of

from controlplane.core.engine_policies import STOCK, EnginePolicies
from controlplane.core.memory import MEMORY
from controlplane.core.memory.lru import Lru
from controlplane.core.memory.opportunistic import Opportunistic
from controlplane.core.memory.typed import Typed as TypedEviction
from controlplane.core.policies import Fit, Resident
from controlplane.core.priority.fcfs import Fcfs
from controlplane.core.priority.mlfq import Mlfq
from controlplane.core.priority.ttl_first import TtlFirst
from controlplane.core.priority.typed import Typed
from controlplane.core.types import seconds
from engine_hooks.engine import contexts
from engine_hooks.engine.contexts import Contexts
from engine_hooks.engine.steering import Lease
from engine_hooks.sglang.engine_view import program_of
from engine_hooks.sglang.steering import SglangSteering as Steering

MARS = EnginePolicies(priority=Mlfq(), memory=Opportunistic())
LEASE_NS = seconds(5)


@dataclass(frozen=True)
class BeatDouble:
    """A heartbeat."""

    engine_policies: str
    lease_ttl_ns: int = LEASE_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySpy:
    """A memory policy double: notes what it is asked, and evicts everything, the most recently used first."""

    asked: ClassVar[list[tuple[int, int, int, list[Resident]]]] = []
    shrinks: ClassVar[bool] = True
    pins_outlast_waits: ClassVar[bool] = False

    def unpin(self, pins: Any, shortfall: int, stuck: bool) -> list[str]:
        raise NotImplementedError

    def fit(self, chunk: int, shortfall: int, least: int, candidates: Any, now_ns: int) -> Fit:
        cached = list(candidates)
        self.asked.append((chunk, shortfall, least, cached))
        return Fit(chunk_blocks=chunk, victims=[(one.program_id, one.blocks) for one in cached[::-1]])


class Scene:
    """Steering over doubles, at a time that the test sets. The pool has 6400 tokens, a page one."""

    def __init__(
        self, policies: EnginePolicies | None = MARS, *, free_tokens: int = 0, host: Any = None, **sizes: int
    ) -> None:
        leaf_tokens = sizes.pop("leaf_tokens", 1)
        self.now_ns = 0
        self.pinned: set[str] = set()
        self.scheduler = SchedulerDouble(**sizes)
        self.view = ViewDouble(self.scheduler, free_tokens=free_tokens, leaf_tokens=leaf_tokens)
        self.contexts = Contexts()
        self.steering = Steering(
            self.view, self.contexts, program_of, lambda: self.pinned, lambda: self.now_ns, host=host
        )
        self.steering._lease = Lease(lambda: self.now_ns)
        if policies is not None:
            self.hear(policies.dumps())
            self.steering.step()

    def hear(self, text: str) -> None:
        self.steering.heard(BeatDouble(text))

    def cache(self, program: str, tokens: int) -> None:
        """A turn of the program left a context of so many tokens."""
        self.contexts.remember(program, partial(key_of, program, tokens), tokens, self.now_ns)
        self.view.cached[program] = tokens

    def order(self, queue: list[RequestDouble], queued_s: dict[str, float] | None = None) -> list[str]:
        """The queue's requests by id, after it was ordered. ``queued_s``: when they came; now for the others."""
        times = queued_s or {}
        self.steering.order(
            queue, lambda request: seconds(times[request.rid]) if request.rid in times else self.now_ns
        )
        return [request.rid for request in queue]


# Which policies hold


def test_policies_come_with_the_heartbeat_at_the_next_step() -> None:
    scene = Scene(None)
    assert scene.steering.policies == STOCK
    scene.hear(MARS.dumps())
    assert scene.steering.policies == STOCK, "another thread heard it"
    scene.steering.step()
    assert scene.steering.policies == MARS


def test_policies_end_with_the_lease() -> None:
    scene = Scene()
    scene.now_ns = LEASE_NS
    scene.steering.step()
    assert scene.steering.policies == MARS
    scene.now_ns = LEASE_NS + 1
    scene.steering.step()
    assert scene.steering.policies == STOCK
    scene.hear(MARS.dumps())
    scene.steering.step()
    assert scene.steering.policies == MARS


def test_a_lease_is_renewed_and_what_was_served_is_not_forgotten() -> None:
    scene = Scene()
    scene.steering.served("heavy", 5000)  # a level's quota is 2000
    for second in range(1, 20):
        scene.now_ns = seconds(second)
        scene.hear(MARS.dumps())
        scene.steering.step()
    assert scene.steering.policies == MARS
    assert scene.order([RequestDouble("heavy"), RequestDouble("light")]) == ["light", "heavy"]


def test_a_daemon_that_steers_nothing_leaves_the_engine_alone() -> None:
    scene = Scene(None)
    scene.hear("")
    scene.steering.step()
    assert scene.steering.policies == STOCK


def test_other_policies_replace_the_ones_in_force() -> None:
    scene = Scene()
    scene.hear(EnginePolicies(priority=Fcfs(), memory=Opportunistic(shrink=False)).dumps())
    scene.steering.step()
    assert scene.steering.policies == EnginePolicies(priority=Fcfs(), memory=Opportunistic(shrink=False))
    scene.hear("")
    scene.steering.step()
    assert scene.steering.policies == STOCK


@pytest.mark.parametrize(
    "text", ["nonsense", "[]", '{"priority":{"policy":"of tomorrow"},"memory":{"policy":"lru"}}']
)
@pytest.mark.parametrize("before", [None, MARS])
def test_policies_that_make_no_sense_leave_the_engines_own_in_force_and_are_told_once(
    text: str, before: EnginePolicies | None, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(before)
    caplog.clear()
    caplog.set_level(logging.WARNING, "penstock")
    for _ in range(3):
        scene.hear(text)
        scene.steering.step()
        assert scene.steering.policies == STOCK
    (message,) = caplog.messages
    assert "make no sense" in message
    scene.cache("p", 100)
    assert scene.steering.evict(50, ()) == 0, "nothing of the old ones is left"
    scene.hear(MARS.dumps())
    scene.steering.step()
    assert scene.steering.policies == MARS


def test_a_change_of_policies_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock")
    scene = Scene()
    scene.steering.step()
    scene.now_ns = LEASE_NS + 1
    scene.steering.step()
    came, went = caplog.messages
    assert "mlfq" in came
    assert "the engine's own" in went


# The queue


def test_the_queue_is_sorted_in_place_by_level() -> None:
    scene = Scene()
    queue = [RequestDouble("large", 2000), RequestDouble("middle", 300), RequestDouble("small", 50)]
    same, before = queue, list(queue)
    assert scene.order(queue) == ["small", "middle", "large"]
    assert queue is same
    assert {id(request) for request in queue} == {id(request) for request in before}


def test_within_a_level_whoever_came_first_goes_first() -> None:
    scene = Scene()
    queue = [RequestDouble("third", 9), RequestDouble("first", 99), RequestDouble("second", 50)]
    assert scene.order(queue, {"first": 1, "second": 2, "third": 3}) == ["first", "second", "third"]


def test_a_long_wait_raises_a_request() -> None:
    scene = Scene()
    scene.now_ns = seconds(20)
    queue = [RequestDouble("fresh", 50), RequestDouble("waits", 300)]
    assert scene.order(queue, {"waits": 10.1, "fresh": 15}) == ["fresh", "waits"]
    assert scene.order(queue, {"waits": 10, "fresh": 15}) == ["waits", "fresh"]


def test_output_so_far_is_part_of_the_footprint() -> None:
    scene = Scene()
    assert scene.order([RequestDouble("retracted", 90, output=20), RequestDouble("new", 95)]) == [
        "new",
        "retracted",
    ]


def test_what_a_program_was_served_counts_for_its_next_request() -> None:
    scene = Scene()
    scene.steering.served("heavy", 2001)
    queue = [RequestDouble("1", program="heavy"), RequestDouble("2", program="light")]
    assert scene.order(queue) == ["2", "1"]


def test_requests_that_nobody_named_or_follows_stay_in_the_queue_in_their_order() -> None:
    scene = Scene()
    queue = [RequestDouble(name, program="") for name in "zyx"] + [RequestDouble("named")]
    scene.now_ns = seconds(100)
    times = iter(range(1, 99))
    scene.steering.order(queue, lambda request: scene.now_ns + next(times))
    assert [request.rid for request in queue] == ["z", "y", "x", "named"]


def test_the_engines_own_order_is_left_as_it_is() -> None:
    queue = [RequestDouble("d", 5000), RequestDouble("c", 1), RequestDouble("b", 9), RequestDouble("a", 1)]
    assert Scene(None).order(queue, {"a": 1, "b": 2}) == ["d", "c", "b", "a"]


def test_two_requests_of_one_name_are_both_kept() -> None:
    scene = Scene()
    queue = [RequestDouble("large", 5000), RequestDouble("same", 10), RequestDouble("same", 20)]
    before = list(queue)
    scene.order(queue)
    assert sorted(map(id, queue)) == sorted(map(id, before))


def test_a_queue_of_none_or_one_is_no_trouble() -> None:
    scene = Scene()
    assert scene.order([]) == []
    assert scene.order([RequestDouble("a")]) == ["a"]


# Eviction


def spying(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> Scene:
    monkeypatch.setitem(MEMORY, "spy", MemorySpy)
    MemorySpy.asked.clear()
    scene = Scene(None, **sizes)
    scene.hear(EnginePolicies(priority=Mlfq(), memory=MemorySpy()).dumps())
    scene.steering.step()
    return scene


def test_the_policy_is_asked_with_every_context_that_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = spying(monkeypatch, page_tokens=16, pool_tokens=64 * 16 * 100)  # 100 and 400 blocks: levels 0 and 1
    for second, (name, tokens) in enumerate([("small", 160), ("busy", 160), ("large", 500 * 16), ("served", 161)]):
        scene.now_ns = seconds(second)
        scene.cache(name, tokens)
    scene.contexts.park("large", True)
    scene.steering.served("served", 2500)
    scene.steering.evict(100, ["busy", "stranger"])
    ((chunk, shortfall, least, residents),) = MemorySpy.asked
    assert chunk == shortfall == least == 7, "whole blocks, and nothing less will do"
    assert residents == [
        Resident(program_id="small", blocks=10, last_used_ns=0, level=0),
        Resident(program_id="large", blocks=500, last_used_ns=seconds(2), level=2, parked=True),
        Resident(program_id="served", blocks=11, last_used_ns=seconds(3), level=1),
    ]


def test_it_stops_as_soon_as_enough_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = spying(monkeypatch)
    for name in ("a", "b", "c"):
        scene.cache(name, 100)
    assert scene.steering.evict(150, ()) == 200  # the double's victims are whole contexts
    assert [name for name, _ in scene.view.evicted] == ["c", "b"]


def test_a_leaf_that_frees_more_than_was_asked_for_spares_the_next_victim() -> None:
    scene = Scene(leaf_tokens=64)
    scene.cache("a", 64)
    scene.cache("b", 64)
    scene.contexts.park("a", True)
    scene.contexts.park("b", True)
    assert scene.steering.evict(60, ()) == 64
    assert scene.view.cached == {"a": 0, "b": 64}


def test_parked_contexts_go_first_then_low_levels() -> None:
    scene = Scene()
    for name, tokens in (("small", 90), ("parked", 90), ("large", 2000), ("middle", 300)):
        scene.cache(name, tokens)
    scene.contexts.park("parked", True)
    assert scene.steering.evict(2150, ()) == 2150
    assert scene.view.evicted == [("parked", 90), ("large", 2000), ("middle", 60)]
    assert scene.view.cached == {"small": 90, "parked": 0, "large": 0, "middle": 240}


def test_what_is_not_there_any_more_is_forgotten_and_left_to_the_engine() -> None:
    scene = Scene()
    scene.cache("gone", 200)
    scene.cache("there", 100)
    scene.view.cached["gone"] = 30  # the engine evicted the rest, or it is shared
    assert scene.steering.evict(250, ()) == 30 + 50
    assert scene.contexts.find("gone") is None
    assert scene.contexts.find("there") is not None


def test_where_contexts_do_not_suffice_the_engine_evicts_by_itself() -> None:
    scene = Scene()
    scene.cache("a", 100)
    assert scene.steering.evict(101, ()) == 0
    assert scene.steering.evict(50, ["a"]) == 0
    assert scene.view.evicted == []


@pytest.mark.parametrize("policies", [None, EnginePolicies(priority=Mlfq(), memory=Lru())])
def test_the_stock_policy_is_the_engines_own_to_carry_out(policies: EnginePolicies | None) -> None:
    scene = Scene(policies)
    scene.cache("a", 100)
    assert scene.steering.evict(50, ()) == 0
    assert scene.view.evicted == []


class HostDouble:
    """A double of ``HostTier``: programs' tokens on the device, and whose copies were touched."""

    def __init__(self, **on_device: int) -> None:
        self.on_device = on_device
        self.touched: list[str] = []

    def evict_tail(self, program_id: str, key: Any, most_tokens: int) -> int:
        freed = min(most_tokens, self.on_device[key[0]])
        self.on_device[key[0]] -= freed
        return freed

    def touch(self, key: Any) -> None:
        self.touched.append(key[0])

    def pool(self) -> tuple[int, int]:
        return 1600, 1600


def hosted(policies: EnginePolicies, **tokens: int) -> tuple[Scene, HostDouble]:
    host: Any = HostDouble(**tokens)
    scene = Scene(policies, host=host)
    for name, count in tokens.items():
        scene.cache(name, count)
    return scene, host


def test_with_a_host_tier_contexts_leave_for_it_and_are_not_forgotten() -> None:
    scene, host = hosted(MARS, a=100, b=100)
    host.on_device["a"] = 30
    assert scene.steering.evict(120, ()) == 50
    assert host.on_device == {"a": 0, "b": 80}
    assert scene.contexts.find("a") is not None
    assert scene.steering.evict(30, ()) == 30
    assert host.on_device == {"a": 0, "b": 50}, "whose part on the device has gone is not asked again"
    scene.cache("a", 100)
    host.on_device["a"] = 100
    scene.steering.evict(150, ())
    assert host.on_device == {"a": 50, "b": 0}, "until a turn of it ends"


TYPED = EnginePolicies(priority=Typed(), memory=TypedEviction())


def test_labels_decide_who_is_evicted_and_who_runs_first() -> None:
    scene = Scene(TYPED)
    for name in ("busy", "idle", "inactive"):
        scene.cache(name, 100)
        scene.contexts.label(name, name)
    assert scene.steering.evict(150, ()) == 150
    assert scene.view.evicted == [("inactive", 100), ("idle", 50)]
    queue = [RequestDouble(name, program=name) for name in ("inactive", "idle", "busy")]
    assert scene.order(queue) == ["busy", "idle", "inactive"]


def test_as_host_memory_makes_room_the_copies_it_keeps_are_touched_the_idle_ones_last() -> None:
    scene, host = hosted(TYPED, gone=10, rests=10, works=10)
    scene.contexts.label("gone", "inactive")
    scene.contexts.label("rests", "idle")
    scene.steering.order_host(99)
    assert host.touched == [], "a sixteenth of it has not been given up yet"
    scene.steering.order_host(1)
    assert host.touched == ["works", "rests"]
    scene.steering.order_host(99)
    assert len(host.touched) == 2
    scene.steering.order_host(1600)
    assert len(host.touched) == 4


def test_who_ended_is_evicted_first_and_its_copy_is_not_touched() -> None:
    scene, host = hosted(TYPED, rests=10, works=10, ended=10)
    scene.contexts.label("rests", "idle")
    scene.contexts.park("rests", True)
    scene.contexts.park("ended", True)
    scene.steering.order_host(1600)
    assert host.touched == ["works", "rests"]
    assert scene.steering.evict(15, ()) == 15
    assert host.on_device == {"rests": 5, "works": 10, "ended": 0}


def test_without_labels_or_without_host_memory_nothing_is_touched() -> None:
    scene, host = hosted(MARS, a=10, b=10)
    scene.contexts.label("a", "idle")
    scene.steering.order_host(1600)
    assert host.touched == []
    Scene(TYPED).steering.order_host(1600)


# Chunks


def chunk(scene: Scene, wanted_tokens: int, *admitted: RequestDouble, pending_tokens: int = 0) -> int:
    """``pending_tokens``: taken by what this pass has scheduled already."""
    return scene.steering.chunk(SimpleNamespace(current_offset=pending_tokens), admitted, wanted_tokens)


def running(scene: Scene, *requests: RequestDouble) -> None:
    scene.scheduler.running_batch.reqs = list(requests)


def test_a_chunk_is_what_room_there_is() -> None:
    scene = Scene(free_tokens=500)
    got = chunk(scene, 1000)
    assert 450 < got < 500, "a little slack is left"
    assert chunk(scene, 200) == 200
    assert chunk(scene, 1000, pending_tokens=100) == got - 100


def test_only_contexts_that_nobody_waits_for_make_room_for_a_chunk() -> None:
    scene = Scene(free_tokens=500)
    got = chunk(scene, 1000)
    scene.cache("waited for", 300)
    assert chunk(scene, 1000) == got
    scene.cache("parked", 200)
    scene.contexts.park("parked", True)
    assert chunk(scene, 1000) == got + 200
    scene.view.cached = {"parked": 50}  # the engine evicted the others, and most of this
    assert chunk(scene, 1000) == got + 50


def test_a_chunk_leaves_room_for_all_output_to_come() -> None:
    scene = Scene(free_tokens=1000)
    most = chunk(scene, 5000)
    running(scene, RequestDouble("r", 100, output=50, most=250), RequestDouble("s", 100, output=0, most=100))
    reserved = chunk(scene, 5000)
    assert most - 200 - 100 - 2 <= reserved <= most - 200 - 100
    assert chunk(scene, 5000, RequestDouble("admitted", 10, most=200)) <= reserved - 200
    scene.scheduler.running_batch.reqs[0].is_finished = True
    assert reserved + 200 <= chunk(scene, 5000) <= most - 100


def test_no_chunk_is_smaller_than_is_worth_a_step() -> None:
    scene = Scene(free_tokens=1000)
    slack = 1000 - chunk(scene, 5000)
    scene.view.free_tokens = slack + 64
    assert chunk(scene, 5000) == 64
    scene.view.free_tokens = slack + 63
    assert chunk(scene, 5000) == 0
    assert chunk(scene, 40) == 40, "a shorter one is taken whole"
    scene.view.free_tokens = 0
    assert chunk(scene, 5000) == chunk(scene, 40) == 0
    running(scene, RequestDouble("r", most=10_000))
    assert chunk(scene, 5000) == 0


def test_a_chunk_is_of_whole_pages() -> None:
    scene = Scene(free_tokens=1000, page_tokens=16)
    got = chunk(scene, 5000)
    assert got % 16 == 0
    assert 900 < got < 1000


@pytest.mark.parametrize(
    "policies",
    [None, EnginePolicies(priority=Mlfq(), memory=Lru()), EnginePolicies(memory=Opportunistic(shrink=False))],
)
def test_who_does_not_shrink_begins_nothing_in_part(policies: EnginePolicies | None) -> None:
    assert chunk(Scene(policies, free_tokens=5000), 1000) == 0


# The engine's sizes


def test_the_shape_is_read_anew_each_time() -> None:
    scene = Scene(pool_tokens=6400, page_tokens=16, chunk_tokens=2048)
    shape = scene.steering.shape()
    assert (shape.pool_blocks, shape.block_tokens, shape.chunk_tokens) == (400, 16, 2048)
    scene.scheduler.chunked_prefill_size = -1  # chunking is off
    assert scene.steering.shape().chunk_tokens == 16_384


# Continuum's order

CONTINUUM = EnginePolicies(priority=TtlFirst(), memory=Lru(keep_pins=True))


def test_programs_go_by_their_first_turn_and_pinned_ones_before_that() -> None:
    scene = Scene(CONTINUUM)
    for at_ns, program in enumerate(("first", "second", "third", "first"), start=1):
        scene.now_ns = at_ns
        scene.steering.arrived(program)
    queue = [RequestDouble(program) for program in ("third", "second", "first")]
    assert scene.order(list(queue)) == ["first", "second", "third"]
    scene.pinned = {"third"}
    assert scene.order(list(queue)) == ["third", "first", "second"]
    queue[1].output_ids = [1]  # it was retracted
    assert scene.order(list(queue)) == ["second", "third", "first"]


def test_the_programs_whose_last_turn_is_longest_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "_MOST_PROGRAMS", 2)
    known = Contexts()
    for at_ns, program in enumerate(("a", "b", "a", "c"), start=1):
        known.note_turn(program, at_ns)
    assert [known.arrived_ns(program) for program in "abc"] == [1, 0, 4]
