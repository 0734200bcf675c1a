"""What is remembered of the contexts in the tree, and of whom nobody waits for."""

import pytest

from engine_hooks.engine import contexts as module
from engine_hooks.engine.contexts import Contexts


def known(*programs: str) -> Contexts:
    contexts = Contexts()
    for at_ns, name in enumerate(programs):
        contexts.remember(name, str, 10, at_ns)
    return contexts


def names(contexts: Contexts) -> list[str]:
    return [name for name, _ in contexts]


def test_the_last_context_of_a_program_is_found_until_it_is_gone() -> None:
    contexts = known("a", "b", "c")
    contexts.remember("a", lambda: "longer key", 20, 7)
    assert names(contexts) == ["b", "c", "a"], "least recently used first"
    found = contexts.find("a")
    assert found is not None
    assert (found.key, found.tokens, found.used_ns, found.on_device) == ("longer key", 20, 7, True)
    contexts.note_gone("a")
    found = contexts.find("a")
    assert found is not None
    assert not found.on_device
    for name in ("b", "stranger"):
        contexts.note_gone("stranger")
        contexts.forget(name)
    assert names(contexts) == ["c", "a"]
    contexts.forget_all()
    assert (names(contexts), contexts.find("a")) == ([], None)


def test_the_contexts_used_longest_ago_are_forgotten() -> None:
    contexts = known(*(str(number) for number in range(4096)))
    contexts.remember("0", str, 1, 5000)
    contexts.remember("one more", str, 3, 5001)
    assert len(names(contexts)) == 4096
    assert [contexts.find(name) is not None for name in ("0", "1", "2", "one more")] == [True, False, True, True]


def test_no_more_tokens_are_remembered_than_are_allowed() -> None:
    contexts = Contexts(most_tokens=25)
    for name in ("a", "b", "c", "b"):
        contexts.remember(name, str, 10, 0)
    assert names(contexts) == ["c", "b"]
    contexts.forget("c")
    contexts.remember("d", str, 15, 0)
    assert names(contexts) == ["b", "d"]
    contexts.forget_all()
    contexts.remember("e", str, 25, 0)
    assert names(contexts) == ["e"]
    contexts = Contexts()  # half a gigabyte of prompts
    for name in ("a", "b", "c"):
        contexts.remember(name, str, 30 << 20, 0)
    assert names(contexts) == ["b", "c"]


def test_parked_until_let_in_again_whatever_becomes_of_the_tree() -> None:
    contexts = known("a")
    for name in ("a", "without a context"):
        assert not contexts.is_parked(name)
        contexts.park(name)
        contexts.forget_all()
        contexts.remember("a", str, 3, 1)
        assert contexts.is_parked(name)
    for name in ("a", "never parked"):
        contexts.label(name, "idle")
        contexts.let_in(name)
        assert (contexts.is_parked(name), contexts.label_of(name)) == (False, ""), "it is busy"
    assert contexts.is_parked("without a context")


def test_sent_away_until_a_turn_ends_here_or_it_comes_back() -> None:
    contexts = Contexts()
    for name in ("a", "b", "c"):
        contexts.send_away(name, True)
    contexts.send_away("a", False)
    contexts.remember("b", str, 3, 1)
    assert [contexts.is_parked(name) for name in "abc"] == [False, False, True]


def test_of_many_programs_those_are_forgotten_that_were_set_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_PROGRAMS", 2)
    contexts = Contexts()
    for at_ns, name in enumerate(("a", "b", "a", "c"), start=1):
        contexts.note_turn(name, at_ns)
        contexts.label(name, "idle")
        contexts.park(name)
    assert [contexts.arrived_ns(name) for name in "abc"] == [1, 0, 4]
    assert [contexts.label_of(name) for name in "abc"] == ["idle", "", "idle"]
    assert [contexts.is_parked(name) for name in "abc"] == [True, False, True]
    contexts.label("c", "")
    assert contexts.label_of("c") == ""
