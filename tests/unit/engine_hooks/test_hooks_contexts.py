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


def test_the_last_context_of_a_program_is_found() -> None:
    contexts = known("a", "b")
    contexts.remember("a", lambda: "longer key", 10, 7)
    found = contexts.find("a")
    assert found is not None
    assert (found.key, found.tokens, found.used_ns) == ("longer key", 10, 7)
    assert contexts.find("stranger") is None


def test_contexts_come_least_recently_used_first() -> None:
    contexts = known("a", "b", "c")
    contexts.remember("a", str, 1, 9)
    assert names(contexts) == ["b", "c", "a"]


def test_what_is_gone_is_forgotten() -> None:
    contexts = known("a", "b", "c")
    contexts.forget("b")
    contexts.forget("stranger")
    assert names(contexts) == ["a", "c"]
    contexts.forget_all()
    assert names(contexts) == []
    assert contexts.find("a") is None


def test_the_contexts_used_longest_ago_are_forgotten() -> None:
    contexts = known(*(str(number) for number in range(4096)))
    contexts.remember("0", str, 1, 5000)
    contexts.remember("one more", str, 3, 5001)
    assert len(names(contexts)) == 4096
    assert contexts.find("1") is None
    assert contexts.find("0") is not None
    assert contexts.find("one more") is not None


def test_parked_until_let_in_again() -> None:
    contexts = known("a")
    assert not contexts.is_parked("a")
    contexts.park("a", True)
    contexts.park("without a context", True)
    assert contexts.is_parked("a")
    contexts.park("a", False)
    contexts.park("never parked", False)
    assert not contexts.is_parked("a")
    assert contexts.is_parked("without a context")


def test_a_reset_of_the_tree_lets_nobody_in() -> None:
    contexts = known("a")
    contexts.park("a", True)
    contexts.forget_all()
    contexts.remember("a", str, 3, 1)
    assert contexts.is_parked("a")


def test_the_programs_parked_longest_ago_are_forgotten() -> None:
    contexts = Contexts()
    for number in range(65_537):
        contexts.park(str(number), True)
    assert not contexts.is_parked("0")
    assert contexts.is_parked("1")
    assert contexts.is_parked("65536")


def test_labels_are_remembered_until_they_are_taken_back_and_so_many_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_PROGRAMS", 2)
    contexts = Contexts()
    for name in ("a", "b", "c"):
        contexts.label(name, "idle")
    contexts.label("b", "")
    assert [contexts.label_of(name) for name in "abc"] == ["", "", "idle"]


def test_what_left_the_device_is_still_known() -> None:
    contexts = known("a")
    contexts.note_gone("a")
    contexts.note_gone("nobody")
    found = contexts.find("a")
    assert found is not None
    assert not found.on_device


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


def test_half_a_gigabyte_of_prompts_is_kept_at_most() -> None:
    contexts = Contexts()
    for name in ("a", "b", "c"):
        contexts.remember(name, str, 30 << 20, 0)
    assert names(contexts) == ["b", "c"]
