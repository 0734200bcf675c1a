"""The daemon's engine policies inside SGLang, over doubles of its scheduler, requests and tree."""

import logging
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from scheduler_double import RequestDouble, SchedulerDouble, ViewDouble, key_of

from controlplane.core.model.types import seconds
from controlplane.core.policies.engine_policies import STOCK, EnginePolicies
from controlplane.core.policies.memory import MEMORY
from controlplane.core.policies.memory.lru import Lru
from controlplane.core.policies.memory.opportunistic import Opportunistic
from controlplane.core.policies.memory.typed import Typed as TypedEviction
from controlplane.core.policies.priority.fcfs import Fcfs
from controlplane.core.policies.priority.mlfq import Mlfq
from controlplane.core.policies.priority.ttl_first import TtlFirst
from controlplane.core.policies.priority.typed import Typed
from controlplane.core.policies.protocols import Fit, Resident
from engine_hooks.engine.contexts import Contexts
from engine_hooks.engine.steering import Lease
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
        pins: Any = SimpleNamespace(programs=self.pinned)
        self.steering = Steering(self.view, self.contexts, pins, lambda: self.now_ns, host)
        self._lease = Lease(lambda: self.now_ns)
        if policies is not None:
            self.hear(policies.dumps())

    def hear(self, text: str) -> None:
        """A heartbeat comes, and a step begins."""
        self._lease.receive(BeatDouble(text))
        self.step()

    def step(self) -> None:
        self.steering.follow(self._lease.text())

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


def test_policies_end_with_the_lease_and_others_replace_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock")
    scene = Scene()
    scene.now_ns = LEASE_NS
    scene.step()
    assert scene.steering.policies == MARS
    scene.now_ns = LEASE_NS + 1
    scene.step()
    assert scene.steering.policies == STOCK
    came, went = caplog.messages
    assert "mlfq" in came
    assert "the engine's own" in went
    other = EnginePolicies(priority=Fcfs(), memory=Opportunistic(shrink=False))
    for text, policies in ((MARS.dumps(), MARS), (other.dumps(), other), ("", STOCK)):
        scene.hear(text)
        assert scene.steering.policies == policies


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
        assert scene.steering.policies == STOCK
    (message,) = caplog.messages
    assert "make no sense" in message
    scene.cache("p", 100)
    assert scene.steering.evict(50, ()) == 0, "nothing of the old ones is left"
    scene.hear(MARS.dumps())
    assert scene.steering.policies == MARS


# The queue


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


def test_what_is_remembered_of_a_context_makes_a_call_small() -> None:
    scene = Scene(EnginePolicies(priority=Mlfq(cold=True)))
    scene.cache("warm", 2900)
    queue = [RequestDouble("new", 150), RequestDouble("warm", 2950), RequestDouble("cold", 2950)]
    assert scene.order(queue) == ["warm", "new", "cold"]
    scene.contexts.note_gone("warm")
    assert scene.order(queue) == ["new", "cold", "warm"]


def test_the_engines_own_order_is_left_as_it_is_and_nobody_is_lost() -> None:
    queue = [RequestDouble("d", 5000), RequestDouble("c", 1), RequestDouble("b", 9), RequestDouble("a", 1)]
    assert Scene(None).order(queue, {"a": 1, "b": 2}) == ["d", "c", "b", "a"]
    of_one_name = [RequestDouble("large", 5000), RequestDouble("same", 10), RequestDouble("same", 20)]
    Scene().order(queue := list(of_one_name))
    assert sorted(map(id, queue)) == sorted(map(id, of_one_name))


# Eviction


def spying(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> Scene:
    monkeypatch.setitem(MEMORY, "spy", MemorySpy)
    MemorySpy.asked.clear()
    scene = Scene(None, **sizes)
    scene.hear(EnginePolicies(priority=Mlfq(), memory=MemorySpy()).dumps())
    return scene


def test_the_policy_is_asked_with_every_context_that_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = spying(monkeypatch, page_tokens=16, pool_tokens=64 * 16 * 100)  # 100 and 400 blocks: levels 0 and 1
    for second, (name, tokens) in enumerate([("small", 160), ("busy", 160), ("large", 500 * 16), ("served", 161)]):
        scene.now_ns = seconds(second)
        scene.cache(name, tokens)
    scene.contexts.park("large")
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
    scene = Scene(leaf_tokens=64)
    for name in ("a", "b"):
        scene.cache(name, 64)
        scene.contexts.park(name)
    assert scene.steering.evict(60, ()) == 64, "a leaf goes as a whole"
    assert scene.view.cached == {"a": 0, "b": 64}


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
    scene.contexts.park("rests")
    scene.contexts.park("ended")
    scene.steering.order_host(1600)
    assert host.touched == ["works", "rests"]
    assert scene.steering.evict(15, ()) == 15
    assert host.on_device == {"rests": 5, "works": 10, "ended": 0}
    scene, host = hosted(MARS, a=10, b=10)
    scene.contexts.label("a", "idle")
    scene.steering.order_host(1600)
    assert host.touched == [], "this policy looks at no labels"


# Chunks


def chunk(scene: Scene, wanted_tokens: int, *admitted: RequestDouble, pending_tokens: int = 0) -> int:
    """``pending_tokens``: taken by what this pass has scheduled already."""
    return scene.steering.chunk(SimpleNamespace(current_offset=pending_tokens), admitted, wanted_tokens)


def running(scene: Scene, *requests: RequestDouble) -> None:
    scene.scheduler.running_batch.reqs = list(requests)


def test_a_chunk_is_what_room_there_is_in_whole_pages() -> None:
    scene = Scene(free_tokens=500)
    got = chunk(scene, 1000)
    assert 450 < got < 500, "a little slack is left"
    assert chunk(scene, 200) == 200
    assert chunk(scene, 1000, pending_tokens=100) == got - 100
    got = chunk(Scene(free_tokens=1000, page_tokens=16), 5000)
    assert (got % 16, 900 < got < 1000) == (0, True)


def test_only_contexts_that_nobody_waits_for_make_room_for_a_chunk() -> None:
    scene = Scene(free_tokens=500)
    got = chunk(scene, 1000)
    scene.cache("waited for", 300)
    assert chunk(scene, 1000) == got
    scene.cache("parked", 200)
    scene.contexts.park("parked")
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
    scene.pinned.add("third")
    assert scene.order(list(queue)) == ["third", "first", "second"]
    queue[1].output_ids = [1]  # it was retracted
    assert scene.order(list(queue)) == ["second", "third", "first"]
