"""Pins, over a double of the engine's radix tree."""

import time
from functools import partial
from typing import Any

import pytest

from controlplane.core.memory.lru import Lru
from controlplane.core.types import seconds
from engine_hooks.engine.contexts import Contexts
from engine_hooks.engine.pins import Pins
from engine_hooks.engine.view import Lock, PoolTokens

TOTAL = 1000


class ViewDouble:
    """A double of ``EngineView``: contexts by key, and which of them are locked."""

    def __init__(self, **contexts: int) -> None:
        self.contexts = contexts
        self.locked: list[str] = []
        self.known = Contexts()
        self.pool_tokens = TOTAL

    def blocks(self, tokens: int) -> int:
        return tokens

    def lock(self, key: str) -> Lock | None:
        if key not in self.contexts:
            return None
        self.locked.append(key)
        return Lock(key, None, self.contexts[key])

    def unlock(self, lock: Lock) -> None:
        self.locked.remove(lock.node)

    def discard(self, key: str) -> int:
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
    return Pins(view, known, lambda: budget_ratio, lambda: time.monotonic_ns()), view


def test_a_retained_context_is_locked_until_released() -> None:
    p, view = pins(a=100)
    assert p.retain("a", seconds(60)) == ""
    assert (view.locked, p.tokens) == (["a"], 100)
    assert p.release("a")
    assert (view.locked, p.tokens) == ([], 0)
    assert not p.release("a")


def test_retaining_again_replaces_the_deadline_and_locks_once() -> None:
    p, view = pins(a=100)
    p.retain("a", seconds(1))
    p.retain("a", seconds(60))
    assert view.locked == ["a"]
    assert next(iter(p.listed())).ttl_ns > seconds(50)


def test_what_cannot_be_retained_is_told() -> None:
    p, view = pins(a=100, gone=100)
    del view.contexts["gone"]
    assert p.retain("stranger", 1) == "no turn of it ended here"
    assert p.retain("gone", 1) == "nothing of it is cached any more"
    assert view.locked == []


def test_the_budget_bounds_all_pins_together() -> None:
    p, view = pins(a=300, b=300)
    assert p.retain("a", seconds(60)) == ""
    assert "budget" in p.retain("b", seconds(60))
    assert view.locked == ["a"]


def test_a_deadline_ends_a_pin_without_anybody_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    p, view = pins(a=100, b=100)
    p.retain("a", seconds(1))
    p.retain("b", seconds(5))
    later_ns = time.monotonic_ns() + seconds(2)
    monkeypatch.setattr(time, "monotonic_ns", lambda: later_ns)
    assert p.expire()
    assert view.locked == ["b"]
    assert not p.expire(lambda: pytest.fail("asked though nothing is due"))


def test_a_pin_may_outlast_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    p, view = pins(a=100, b=100)
    p.retain("a", seconds(1))
    p.retain("b", seconds(1))
    later_ns = time.monotonic_ns() + seconds(2)
    monkeypatch.setattr(time, "monotonic_ns", lambda: later_ns)
    assert p.expire(lambda: {"a"})
    assert view.locked == ["a"]
    assert not p.expire(lambda: {"a"})
    assert p.expire()


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


def test_who_is_pinned_is_told() -> None:
    p, _ = pins(a=100, b=100, c=100)
    p.retain("a", seconds(60))
    p.retain("c", seconds(60))
    assert set(p.programs) == {"a", "c"}
    p.release("a")
    assert set(p.programs) == {"c"}


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


def test_the_next_deadline_is_known() -> None:
    p, _ = pins(a=100, b=100)
    assert p.next_deadline_ns() is None
    p.retain("a", seconds(60))
    p.retain("b", seconds(30))
    due_ns = p.next_deadline_ns()
    assert due_ns is not None
    assert due_ns - time.monotonic_ns() < seconds(31)


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
