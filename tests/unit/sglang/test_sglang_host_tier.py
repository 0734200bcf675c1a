"""The host tier, over a double of SGLang's tree."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from scheduler_double import RequestDouble
from sglang_double import SglangDouble
from unified_tree_double import ComponentType, KeyDouble, TreeDouble, add_classes, scheduler_double

from engine_hooks.sglang.engine_view import EngineView
from engine_hooks.sglang.host_copies import DeviceNode, HostCopies
from engine_hooks.sglang.host_tier import OFF, HostTier, Move, shared_tokens

SYSTEM, FIRST, SECOND, OTHER = range(40), range(100, 120), range(200, 230), range(300, 350)


@pytest.fixture(autouse=True)
def classes(sglang: SglangDouble) -> SglangDouble:
    add_classes(sglang)
    return sglang


def tier(tree: TreeDouble, *, host: bool = True) -> HostTier:
    return HostTier(EngineView(scheduler_double(tree, host=host)))


def batch(consumer: int = -1) -> Any:
    """A double of a prefill batch."""
    return SimpleNamespace(hicache_consumer_index=consumer)


# Whether it is there


def test_without_host_memory_it_says_how_to_get_it() -> None:
    host = tier(TreeDouble(), host=False)
    assert (host.problem, host.pool()) == (OFF, (0, 0))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("linker", object(), "attached"),
        ("cache_controller", None, "attached"),
        ("host_memory_mode", "buffer_only", "buffer only"),
        ("tree_components", (ComponentType.FULL, ComponentType.SWA), "with swa is copied and loaded by the engine"),
        ("is_eagle", True, "EAGLE"),
    ],
)
def test_what_cannot_be_moved_here_is_told(field: str, value: object, said: str) -> None:
    tree = TreeDouble()
    assert tier(tree).problem == ""
    setattr(tree, field, value)
    assert said in tier(tree).problem


def test_another_versions_host_memory_is_left_alone(sglang: SglangDouble) -> None:
    sglang.remove("sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.load_back")
    host = tier(TreeDouble())
    assert "not supported with SGLang" in host.problem
    assert "load_back" in host.problem
    assert host.pool() == (1000, 0), "it can be read all the same"


# Device to host


def test_the_shared_part_stays_even_while_only_the_host_has_the_others() -> None:
    tree = TreeDouble()
    key, other = tree.add(SYSTEM, FIRST), tree.add(SYSTEM, OTHER)
    host = tier(tree)
    assert host.demote("p", other, [key.late]).tokens == 50
    assert host.demote("p", key, [other.late]).tokens == 20
    assert (tree.where(key), tree.where(other)) == ("DH", "DH")


def test_a_context_without_a_copy_gets_one_parents_first() -> None:
    """As with write_through_selective, or where the host was full before."""
    tree = TreeDouble()
    key = tree.add(SYSTEM, FIRST, SECOND)
    other = tree.add(SYSTEM, OTHER)
    for node in tree._nodes:
        node.on_host = False
    host = tier(tree)
    assert host.demote("p", key, [other.late]).waits
    tree.look()
    assert host.demote("p", key, [other.late]).tokens == 50
    assert tree.where(key) == "DHH"


def test_a_full_host_is_told_and_nothing_leaves_the_device() -> None:
    tree = TreeDouble(is_write_back=True, host_tokens=30)
    key = tree.add(SYSTEM, FIRST)
    assert tier(tree).demote("p", key, []).problem == "no room in host memory"
    tree.look()
    assert tree.where(key) == "DD"


def test_what_a_turn_holds_is_not_touched() -> None:
    tree = TreeDouble()
    key, longer = tree.add(SYSTEM, FIRST), tree.add(SYSTEM, FIRST, SECOND)
    tree.hold(key)
    host = tier(tree)
    assert "holds it" in host.demote("p", key, []).problem
    assert host.demote("p", longer, []).tokens == 30, "only its own end is free to go"
    assert tree.where(longer) == "DDH"


def test_with_nothing_of_its_own_on_the_device_nothing_is_moved() -> None:
    tree = TreeDouble()
    key, same = tree.add(SYSTEM, FIRST), tree.add(SYSTEM, FIRST)
    host = tier(tree)
    assert "shared" in host.demote("p", key, [same.late]).problem
    assert host.demote("p", key, []).tokens == 60
    assert "on the device" in host.demote("p", key, []).problem


def test_a_node_that_goes_on_otherwise_is_not_the_programs() -> None:
    """A longer context took the place of an evicted one: its node is longer than the key."""
    tree = TreeDouble()
    tree.add(SYSTEM, [*FIRST, *SECOND])
    key = KeyDouble([*SYSTEM, *FIRST])
    assert tier(tree).demote("p", key, []).tokens == 0
    assert tree.where(KeyDouble([*SYSTEM, *FIRST, *SECOND])) == "DD"


@pytest.mark.parametrize("write_back", [False, True])
def test_a_discarded_context_leaves_the_device_without_a_copy(write_back: bool) -> None:
    tree = TreeDouble(is_write_back=write_back)
    key, other = tree.add(SYSTEM, FIRST, SECOND), tree.add(SYSTEM, OTHER)
    assert tier(tree).discard(key, [other.late]) == Move(tokens=50)
    assert tree.where(key) == ("D.." if write_back else "DHH")
    assert tree.where(other) == "DD"
    assert tier(tree).discard(key, [other.late]) == Move(), "there is nothing to free"


def test_a_discard_waits_for_the_copy_that_holds_the_context() -> None:
    tree = TreeDouble(is_write_back=True)
    key = tree.add(SYSTEM)
    host = tier(tree)
    host.demote("p", key, [])
    assert host.discard(key, []).waits
    tree.look()
    assert host.discard(key, []).tokens == 40


# Host to device


def test_what_lies_on_the_host_alone_is_loaded_back() -> None:
    tree = TreeDouble()
    key = tree.add(SYSTEM, FIRST)
    host = tier(tree)
    assert "on the host" in host.load_back(key)
    host.demote("p", key, [])
    assert not host.loads
    assert host.load_back(key) == ""
    host.start_loading()
    assert (tree.where(key), host.loads) == ("DD", True)
    tree.look()
    assert not host.loads


def test_a_load_leaves_room_to_the_running_turns() -> None:
    tree = TreeDouble(pool_tokens=200)
    key = tree.add(SYSTEM, FIRST)
    scheduler = scheduler_double(tree)
    host = HostTier(EngineView(scheduler))
    host.demote("p", key, [])
    scheduler.running_batch.reqs = [RequestDouble(f"runs-{number}") for number in range(3)]
    assert host.load_back(key) == "no room on the device: it needs 60 tokens and 8 could be had"
    scheduler.running_batch.reqs = []
    assert host.load_back(key) == ""


def test_too_little_to_be_worth_a_load_is_told() -> None:
    tree = TreeDouble()
    key = tree.add(range(5))
    host = tier(tree)
    host.demote("p", key, [])
    assert "too little" in host.load_back(key)


@pytest.mark.parametrize("reset", [False, True])
def test_batches_wait_for_a_load_of_ours_for_as_long_as_it_runs(reset: bool) -> None:
    tree = TreeDouble()
    key = tree.add(SYSTEM)
    host = tier(tree)
    early, during, own, late = batch(), batch(), batch(consumer=2), batch()
    host.hold_back(early)
    host.demote("p", key, [])
    host.load_back(key)
    host.start_loading()
    for planned in (during, own):
        host.hold_back(planned)
    if reset:
        host.forget_all()
    else:
        tree.look()
    host.hold_back(late)
    indices = [planned.hicache_consumer_index for planned in (early, during, own, late)]
    assert indices == [-1, 0, 2, -1], "one that waits for a later load waits for ours as well"


# What is shared


def test_what_is_shared_is_told_by_the_other_keys() -> None:
    ends = [4, 8, 12]
    key = KeyDouble(range(12))

    def shared(*others: KeyDouble) -> int:
        return shared_tokens(key, [other.late for other in others], ends)

    assert shared() == 0
    assert shared(KeyDouble(range(3))) == 0
    assert shared(KeyDouble(range(4))) == 4
    assert shared(KeyDouble([*range(8), 99, 99, 99, 11])) == 8, "one alike token does not make it shared"
    assert shared(KeyDouble(range(5)), KeyDouble(range(50))) == 12
    assert shared(KeyDouble(range(50), extra_key="another namespace")) == 0
    salted = replace(KeyDouble(range(50)).late, cache_salt="another")
    assert shared_tokens(key, [salted], ends) == 0


# Evictions by name


def test_the_end_of_a_context_leaves_for_the_host_where_there_is_a_copy() -> None:
    tree = TreeDouble()
    key, other = tree.add(SYSTEM, FIRST, SECOND), tree.add(SYSTEM, OTHER)
    host = tier(tree)
    assert host.evict_tail("p", key, 10) == 30
    assert tree.where(key) == "DDH"
    assert host.evict_tail("p", key, 1000) == 20, "what the other begins with is no leaf"
    assert (tree.where(key), tree.where(other)) == ("DHH", "DD")
    assert host.evict_tail("p", key, 1000) == 0


def test_what_is_not_copied_yet_or_cannot_be_moved_is_left_to_the_engine() -> None:
    for tree, linker in ((TreeDouble(is_write_back=True), None), (TreeDouble(), object())):
        key = tree.add(SYSTEM, FIRST)
        tree.linker = linker
        assert tier(tree).evict_tail("p", key, 10) == 0
        assert tree.where(key) == "DD"


# Copies in host memory that the engine gives up


class Copies:
    """A program whose context lies in three nodes, the first shared with another's."""

    def __init__(self) -> None:
        self.tree = TreeDouble()
        self.key = self.tree.add(SYSTEM, FIRST, SECOND)
        self.other = self.tree.add(SYSTEM, OTHER)
        self.host = tier(self.tree)

    def demote(self) -> None:
        assert self.host.demote("p", self.key, [self.other.late]).tokens == 50

    def news_after_loss(self) -> list[tuple[str, int]]:
        """The engine needs room in host memory."""
        self.host.copies.freed(self.tree.give_up(self.key))
        return list(self.host.copies.news())


def test_a_context_that_came_back_is_not_followed_any_more_nor_is_any_after_a_reset() -> None:
    for forget in (lambda host: host.copies.forget("p"), lambda host: host.forget_all()):
        copies = Copies()
        copies.demote()
        copies.host.copies.mark_changed("p")
        forget(copies.host)
        assert copies.news_after_loss() == []


def test_what_a_policy_evicts_is_told_when_the_last_of_it_has_left() -> None:
    copies = Copies()
    assert copies.host.evict_tail("p", copies.key, 10) == 30, "by whole nodes"
    assert list(copies.host.copies.news()) == []
    assert copies.host.evict_tail("p", copies.key, 60) == 20, "another's context needs the rest"
    assert list(copies.host.copies.news()) == [("p", 50)]
    assert copies.news_after_loss() == [("p", 20)]


def test_what_is_on_its_way_back_is_not_noted() -> None:
    copies = HostCopies()
    core = SimpleNamespace(build_load_back_spec=lambda handle: (SimpleNamespace(host_indices=()), {}))
    copies.note("p", core, [DeviceNode(1, 0, 20)])
    copies.mark_changed("p")
    assert list(copies.news()) == [("p", 0)]
