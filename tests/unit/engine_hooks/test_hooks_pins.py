"""Pins, over a double of the engine's radix tree."""

from functools import partial
from typing import Any

import pytest

from controlplane.core.model.types import seconds
from controlplane.core.policies.memory.lru import Lru
from engine_hooks.engine.contexts import Contexts
from engine_hooks.engine.pins import Pins
from engine_hooks.engine.view import Lock, PoolTokens, View

TOTAL = 1000


class ViewDouble:
    """A double of ``EngineView``: contexts by key, and which of them are locked."""

    missing = View.missing

    def __init__(self, **contexts: int) -> None:
        self.contexts = contexts
        self.locked: list[str] = []
        self.known = Contexts()
        self.pool_tokens = TOTAL
        self.now_ns = 0

    def blocks(self, tokens: int) -> int:
        return tokens

    def lock(self, key: str) -> Lock | None:
        if key not in self.contexts:
            return None
        self.locked.append(key)
        return Lock(key, None, self.contexts[key])

    def unlock(self, lock: Lock) -> None:
        self.locked.remove(lock.node)

    def locked_tokens(self, lock: Lock) -> int:
        return lock.tokens

    def evict_tail(self, key: str, most_tokens: int) -> int:
        return self.contexts.pop(key)

    def pool(self) -> PoolTokens:
        protected = sum(self.contexts[key] for key in self.locked)
        used = sum(self.contexts.values())
        return PoolTokens(total=TOTAL, free=TOTAL - used, evictable=used - protected)


def pins(budget_ratio: float = 0.5, **contexts: int) -> tuple[Pins, ViewDouble]:
    view: Any = ViewDouble(**contexts)
    known = view.known
    for key in contexts:
        known.remember(key, partial(str, key), len(key), 0)
    return Pins(view, known, lambda: budget_ratio, lambda: view.now_ns), view


def test_a_retained_context_is_locked_until_released_and_once() -> None:
    p, view = pins(a=100, b=100, c=100)
    assert p.next_deadline_ns() is None
    assert p.retain("a", seconds(1)) == ""
    assert p.retain("b", seconds(30)) == ""
    assert p.retain("a", seconds(60)) == "", "its deadline is another now"
    assert (view.locked, p.tokens, set(p.programs)) == (["a", "b"], 200, {"a", "b"})
    assert p.next_deadline_ns() == seconds(30)
    assert {pin.program_id: pin.ttl_ns for pin in p.listed()} == {"a": seconds(60), "b": seconds(30)}
    assert [p.release("a"), p.release("a")] == [True, False]
    assert (view.locked, p.tokens) == (["b"], 100)


def test_what_cannot_be_retained_is_told() -> None:
    p, view = pins(a=300, b=300, gone=100)
    del view.contexts["gone"]
    assert p.retain("stranger", 1) == "no turn of it ended here"
    assert p.retain("gone", 1) == "nothing of it is cached any more"
    assert p.retain("a", seconds(60)) == ""
    assert p.retain("b", seconds(60)) == "the pin budget (0.5 of the pool) is spent"
    assert view.locked == ["a"]


def test_a_deadline_ends_a_pin_without_anybody_asking_unless_it_may_outlast_it() -> None:
    p, view = pins(a=100, b=100, c=100)
    for name, ttl_s in (("a", 1), ("b", 1), ("c", 5)):
        p.retain(name, seconds(ttl_s))
    view.now_ns = seconds(2)
    assert [p.expire(lambda: {"a"}), view.locked] == [True, ["a", "c"]]
    assert not p.expire(lambda: {"a"})
    assert [p.expire(), view.locked] == [True, ["c"]]
    assert not p.expire(lambda: pytest.fail("asked though nothing is due"))


def test_pins_are_reclaimed_earliest_deadline_first_and_no_more_than_needed() -> None:
    p, view = pins(0.9, a=200, b=200, c=200)
    for name, ttl_s in (("a", 30), ("b", 10), ("c", 20)):
        p.retain(name, seconds(ttl_s))
    assert p.reclaim(500, Lru(), stuck=False)  # 400 are free
    assert view.locked == ["a", "c"]
    assert not p.reclaim(500, Lru(), stuck=False)
    assert (p.take_reclaimed(), p.take_reclaimed()) == (["b"], [])


def test_kept_pins_go_only_when_nothing_else_can_begin_and_the_latest_program_first() -> None:
    p, view = pins(0.9, a=200, b=200, c=200)
    for name in ("a", "b", "c"):
        p.retain(name, seconds(60))
    for at_ns, name in enumerate(("b", "c", "a"), start=1):
        view.known.note_turn(name, at_ns)
    keeping = Lru(keep_pins=True)
    assert not p.reclaim(900, keeping, stuck=False)
    assert p.reclaim(500, keeping, stuck=True)
    assert view.locked == ["b", "c"]


def test_unpinning_goes_on_while_what_is_shared_frees_less_than_it_holds() -> None:
    p, view = pins(0.9, a=200, b=200)
    p.retain("a", seconds(10))
    p.retain("b", seconds(20))
    view.contexts["a"] = 0  # all of it is another's, who holds it still
    assert p.reclaim(900, Lru(), stuck=False)
    assert view.locked == []


def test_discard_unpins_and_frees() -> None:
    p, view = pins(a=100)
    p.retain("a", seconds(60))
    assert p.discard("a") == ""
    assert (view.locked, view.contexts) == ([], {})
    assert p.discard("a") == "no turn of it ended here"


def test_after_a_reset_of_the_tree_no_old_handle_is_used() -> None:
    p, view = pins(a=100)
    p.retain("a", seconds(60))
    p.forget_all()
    view.unlock = lambda lock: pytest.fail("a handle of the old tree")  # type: ignore[method-assign]
    p.expire()
    assert not p.release("a")
    assert not p.reclaim(TOTAL, Lru(), stuck=True)
    assert p.retain("a", 1) == "no turn of it ended here"


# Held back until the daemon has spoken


def held_back(budget_ratio: float = 0.5, **contexts: int) -> tuple[Pins, ViewDouble]:
    """Each context as its turn left it."""
    p, view = pins(budget_ratio, **contexts)
    for name in contexts:
        lock = view.lock(name)
        assert lock is not None
        p.hold(name, lock, seconds(60))
    return p, view


def test_what_is_held_back_is_no_pin_until_it_is_asked_for() -> None:
    p, view = held_back(a=100)
    assert (view.locked, p.tokens, p.held_tokens, p.retained_tokens) == (["a"], 100, 100, 0)
    assert list(p.listed()) == []
    assert p.retain("a", seconds(60)) == ""
    assert (view.locked, p.held_tokens, p.retained_tokens) == (["a"], 0, 100)
    assert [pin.program_id for pin in p.listed()] == ["a"]


def test_what_is_asked_for_is_locked_anew_if_a_later_turn_has_left_more() -> None:
    p, view = held_back(a=100)
    view.known.remember("a", partial(str, "a"), 1, 0)
    assert p.retain("a", seconds(60)) == ""
    assert view.locked == ["a"]


def test_what_is_held_back_goes_before_any_pin() -> None:
    p, view = held_back(0.9, a=200, b=200, c=200)
    p.retain("a", seconds(60))
    assert p.reclaim(600, Lru(keep_pins=True), stuck=False)
    assert view.locked == ["a", "c"]
    assert p.take_reclaimed() == [], "nobody had asked for what went"


def test_what_the_budget_has_no_room_for_is_not_held_back() -> None:
    _, view = held_back(0.25, a=200, b=200)
    assert view.locked == ["a"]


def test_what_is_asked_for_takes_the_budget_of_what_nobody_asked_for() -> None:
    p, view = pins(budget_ratio=0.2, a=100, b=100, c=100)
    assert p.retain("a", seconds(60)) == ""
    lock = view.lock("b")
    assert lock is not None
    p.hold("b", lock, seconds(60))
    assert p.retain("c", seconds(60)) == ""
    assert sorted(view.locked) == ["a", "c"]
    assert p.retain("b", seconds(60)) == "the pin budget (0.2 of the pool) is spent"
    assert sorted(view.locked) == ["a", "c"]
