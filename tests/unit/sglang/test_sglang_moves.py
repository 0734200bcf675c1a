"""Moves between the tiers: when they are tried, and what is answered."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from controlplane.core.model.commands import Demote, Discard, Prefetch
from controlplane.core.model.types import seconds
from engine_hooks.engine.contexts import Contexts
from engine_hooks.sglang.host_copies import HostCopies
from engine_hooks.sglang.host_tier import Move
from engine_hooks.sglang.moves import TierCommand, TierMoves


class HostTierDouble:
    """A double of ``HostTier``: what it will say to the next moves, and what it was asked."""

    def __init__(self) -> None:
        self.problem = ""
        self.loads = False
        self.says: list[Any] = []
        self.asked: list[tuple[str, str, list[str]]] = []
        self.started = 0
        self.forgot = False
        self.copies = HostCopies()

    def _next(self, what: str, key: str, others: Iterable[Callable[[], str]]) -> Any:
        self.asked.append((what, key, sorted(other() for other in others)))
        said = self.says.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    def demote(self, program_id: str, key: str, others: Iterable[Callable[[], str]]) -> Move:
        move: Move = self._next("demote", key, others)
        return move

    def discard(self, key: str, others: Iterable[Callable[[], str]]) -> Move:
        move: Move = self._next("discard", key, others)
        return move

    def load_back(self, key: str) -> str:
        problem: str = self._next("load", key, ())
        return problem

    def start_loading(self) -> None:
        self.started += 1

    def forget_all(self) -> None:
        self.forgot = True


class PinsDouble:
    """A double of ``Pins``: who was released."""

    def __init__(self) -> None:
        self.released: list[str] = []

    def release(self, program_id: str) -> bool:
        self.released.append(program_id)
        return True


class Scene:
    """Moves of an engine that holds contexts of the programs a, b and c."""

    def __init__(self) -> None:
        self.host = HostTierDouble()
        self.pins = PinsDouble()
        self.contexts = Contexts()
        self.running: set[str] = set()
        self.now_ns = 0
        self.answers: list[tuple[str, str]] = []  # program and problem
        for name in ("a", "b", "c"):
            self.contexts.remember(name, name.upper, len(name), 0)
        host: Any = self.host
        pins: Any = self.pins
        self.moves = TierMoves(
            host, self.contexts, pins, self.running.__contains__, self._answer, now_ns=lambda: self.now_ns
        )

    def _answer(self, command: TierCommand, problem: str) -> None:
        self.answers.append((command.program_id, problem))

    def step(self, *commands: TierCommand, says: Iterable[Any] = (), after_s: float = 0.0) -> list[tuple[str, str]]:
        """One scheduling step; what was answered in it."""
        self.now_ns += seconds(after_s)
        self.host.says += says
        self.answers.clear()
        for command in commands:
            self.moves.begin(command)
        self.moves.step()
        return list(self.answers)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_context_is_unpinned_and_moved_at_once_where_that_can_be(scene: Scene) -> None:
    assert scene.step(Demote(program_id="a"), says=[Move(tokens=5)]) == [("a", "")]
    assert scene.host.asked == [("demote", "A", ["B", "C"])], "with what the others hold"
    assert scene.pins.released == ["a"]
    assert scene.step() == [], "answered once"


def test_a_move_that_waits_too_long_is_given_up(scene: Scene) -> None:
    scene.step(Demote(program_id="a"), says=[Move(waits=True)])
    ((program, problem),) = scene.step(says=[Move(waits=True)], after_s=20)
    assert (program, "too long" in problem) == ("a", True)
    scene.step(Demote(program_id="b"), says=[Move(waits=True, tokens=3)])
    assert scene.step(says=[Move(waits=True)], after_s=20) == [("b", "")], "what could go has gone"


def test_what_cannot_be_moved_is_told_why(scene: Scene) -> None:
    assert scene.step(Demote(program_id="a"), says=[Move(problem="because")]) == [("a", "because")]
    assert scene.step(Prefetch(program_id="x")) == [("x", "no turn of it ended here")]
    scene.host.problem = "host memory is off"
    assert scene.step(Demote(program_id="a"), Prefetch(program_id="b")) == [
        ("a", "host memory is off"),
        ("b", "host memory is off"),
    ]


def test_a_turn_that_begins_keeps_its_context(scene: Scene) -> None:
    scene.step(Demote(program_id="a"), says=[Move(waits=True)])
    scene.running.add("a")
    assert scene.step() == [("a", "a turn of it runs and holds its context")]


def test_a_later_command_takes_the_place_of_an_earlier_one(scene: Scene) -> None:
    scene.step(Demote(program_id="a"), says=[Move(waits=True)])
    first, second = scene.step(Prefetch(program_id="a"), says=[""])
    assert "took its place" in first[1]
    assert second == ("a", "")
    assert scene.pins.released == ["a"], "a prefetch leaves pins alone"


def test_loads_of_one_step_are_started_together_and_wait_for_those_that_run(scene: Scene) -> None:
    scene.host.loads = True
    assert scene.step(Prefetch(program_id="a")) == []
    assert (scene.host.asked, scene.host.started) == ([], 0)
    scene.host.loads = False
    assert scene.step(says=["nothing of it lies on the host alone"]) == [
        ("a", "nothing of it lies on the host alone")
    ]
    assert scene.host.started == 0
    commands = [Prefetch(program_id=name) for name in ("a", "b", "c")]
    assert scene.step(*commands, says=["", "no room", ""]) == [("a", ""), ("b", "no room"), ("c", "")]
    assert scene.host.started == 1


def test_a_discarded_context_is_forgotten_once_it_has_gone(scene: Scene) -> None:
    assert scene.step(Discard(program_id="a"), says=[Move(waits=True)]) == []
    assert scene.contexts.find("a") is not None
    assert scene.step(says=[Move(tokens=4)]) == [("a", "")]
    assert scene.contexts.find("a") is None
    assert scene.step(Discard(program_id="b"), says=[Move()]) == [("b", "")], "nothing to free is freed"


def test_a_failure_in_the_engine_is_answered_and_ends_nothing_else(scene: Scene) -> None:
    said = scene.step(Demote(program_id="a"), Demote(program_id="b"), says=[KeyError("moved"), Move(tokens=1)])
    assert said == [("a", "it failed in the engine: KeyError"), ("b", "")]
    assert scene.step() == []


def test_after_a_reset_nothing_waits_any_more(scene: Scene) -> None:
    scene.step(Demote(program_id="a"), says=[Move(waits=True)])
    scene.answers.clear()
    scene.moves.forget_all()
    assert scene.answers == [("a", "the cache was emptied")]
    assert scene.host.forgot
    assert scene.step() == []


def test_what_still_waits_is_looked_at_again_soon(scene: Scene) -> None:
    assert scene.moves.next_look_ns() is None
    scene.step(Demote(program_id="a"), says=[Move(waits=True)])
    soon_ns = scene.moves.next_look_ns()
    assert soon_ns is not None
    assert 0 < soon_ns - scene.now_ns < seconds(0.1), "an idle engine takes no step by itself"
    scene.step(says=[Move(tokens=5)])
    assert scene.moves.next_look_ns() is None
