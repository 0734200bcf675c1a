"""Peers that decide alike: rank 0's word, what is compared, and that all give up together where one differs.

The ranks run in threads, since each waits for the others where they compare, as in SGLang.
"""

import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from peers_double import PeersDouble, StageDouble, StoreDouble

from controlplane import clocks
from controlplane.core import commands
from controlplane.core.commands import Demote, Discard, Label, Pause, Release, Retain
from controlplane.core.types import seconds
from engine_hooks.sglang import lockstep as module
from engine_hooks.sglang.lockstep import Lockstep, Word
from engine_hooks.sglang.peers import Peers


class Engine:
    """So many ranks; ``states`` is what each holds."""

    def __init__(self, size: int = 2, stages: int = 1, *, absent: int = 0) -> None:
        self.store = StoreDouble()
        doubles = [StageDouble(size // stages) for _ in range(stages)]
        self.ranks = [PeersDouble(rank, size, doubles, self.store) for rank in range(size)]
        self.states = [[0] for _ in range(size)]
        self.steps = [Lockstep(self.ranks[rank], self._state_of(rank)) for rank in range(size)]
        for step in self.steps[: size - absent]:
            step.take_part("the same")
        self._pool = ThreadPoolExecutor(size)
        self._stage = size // stages

    def _state_of(self, rank: int) -> Callable[[], tuple[object, ...]]:
        return lambda: tuple(self.states[rank])

    def word(self, *, steers: bool = True, has_news: bool = False, until_ns: int | None = None) -> Word | None:
        said = [step.say(has_news=has_news, steers=steers, until_ns=until_ns) for step in self.steps]
        assert said[1:] == [None] * (len(said) - 1), "only rank 0 speaks"
        return said[0]

    def hear(self, word: Word) -> list[tuple[Any, ...]]:
        """The word goes through every stage in turn: what each rank has to obey."""
        heard: list[tuple[Any, ...]] = []
        data: list[Any] = [word]
        for first in range(0, len(self.steps), self._stage):
            stage = self.steps[first : first + self._stage]
            arrived = pickle.loads(pickle.dumps(data))
            heard += self._pool.map(lambda step: step.hear(arrived[0]), stage)  # noqa: B023
            data, *_ = (step.relay([]) for step in stage)
        return heard

    def step(self, **said: Any) -> list[tuple[Any, ...]]:
        word = self.word(**said)
        assert word is not None
        return self.hear(word)

    @property
    def passive(self) -> list[bool]:
        return [bool(step.passive_because) for step in self.steps]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_AGAIN_NS", 0)


def test_commands_policies_and_time_reach_every_rank_in_the_same_step() -> None:
    engine = Engine()
    engine.steps[0].lease.heard(SimpleNamespace(engine_policies="some", lease_ttl_ns=seconds(60)))  # type: ignore[arg-type]
    retain = Retain(program_id="p", ttl_ns=seconds(1))
    engine.steps[0].inbox.append(retain)
    assert engine.step(steers=False) == [(retain,), (retain,)]
    assert [step.policies for step in engine.steps] == ["some", "some"]
    first, second = (step.now_ns() for step in engine.steps)
    assert first == second > 0
    assert engine.step() == [(), ()], "each command once"


def test_time_stands_still_between_words() -> None:
    engine = Engine()
    assert [step.now_ns() for step in engine.steps] == [0, 0], "nobody has said what time it is"
    engine.step()
    now_ns = engine.steps[1].now_ns()
    assert engine.word(steers=False) is None, "nothing has come about"
    assert engine.steps[1].now_ns() == now_ns


def test_a_word_is_said_when_there_is_something_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.step()
    quiet: dict[str, Any] = {"steers": False}
    assert engine.word(**quiet) is None
    assert engine.word(steers=False, has_news=True) is not None
    assert engine.word(steers=False, until_ns=time.monotonic_ns() + seconds(60)) is None
    assert engine.word(steers=False, until_ns=time.monotonic_ns()) is not None, "a pin ends"
    later_ns = time.monotonic_ns() + seconds(2)
    monkeypatch.setattr(time, "monotonic_ns", lambda: later_ns)
    assert engine.word(**quiet) is not None, "a sample is due"


def test_a_daemon_that_is_gone_is_gone_for_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.steps[0].lease.heard(SimpleNamespace(engine_policies="some", lease_ttl_ns=seconds(5)))  # type: ignore[arg-type]
    engine.step()
    later_ns = time.monotonic_ns() + seconds(10)
    monkeypatch.setattr(engine.steps[0].lease, "_now_ns", lambda: later_ns)
    engine.step(steers=False)
    assert [step.policies for step in engine.steps] == ["", ""]


@pytest.mark.parametrize("where", ["state", "decision"])
def test_where_a_rank_differs_all_give_up_in_that_step(where: str) -> None:
    engine = Engine(3)
    retain = Retain(program_id="p", ttl_ns=seconds(1))
    engine.step()
    if where == "state":
        engine.states[1] = [7]
    else:
        for step, freed in zip(engine.steps, (5, 5, 6), strict=True):
            step.note("evict", freed)
    engine.steps[0].inbox.append(retain)
    assert engine.step() == [(retain,)] * 3, "each has it to refuse"
    assert engine.passive == [True, True, True]
    culprit = 1 if where == "state" else 2
    assert {step.passive_because for step in engine.steps} == {f"rank {culprit} decided otherwise than rank 0"}
    assert engine.word() is None
    assert [step.policies for step in engine.steps] == [""] * 3
    assert engine.steps[1].now_ns() > 0


def test_ranks_that_decide_alike_go_on() -> None:
    engine = Engine()
    for number in range(100):
        for rank, step in enumerate(engine.steps):
            step.note("evict", number)
            engine.states[rank] = [number]
        engine.step()
    told = [step.account() for step in engine.steps]
    assert told[0] == told[1]
    assert (told[0]["compared"], told[0]["passive_because"], told[0]["size"]) == (100, "", 2)


def test_nothing_is_said_before_every_rank_takes_part() -> None:
    """A word to a rank without the plugin would end its scheduler."""
    engine = Engine(absent=1)
    assert engine.word() is None
    assert engine.steps[0].account()["passive_because"] == "not every rank takes part yet"
    engine.steps[1].take_part("the same")
    assert engine.word() is not None


def test_a_rank_that_never_comes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(absent=1)
    later_ns = time.monotonic_ns() + seconds(100)
    monkeypatch.setattr(time, "monotonic_ns", lambda: later_ns)
    monkeypatch.setattr(clocks, "awake_ns", lambda: later_ns)
    assert engine.word() is None
    assert engine.steps[0].passive_because == "not every rank has the plugin at work"
    assert engine.steps[0].now_ns() == later_ns, "what is told goes by the machine's own clock again"


def test_ranks_with_other_settings_do_not_begin() -> None:
    engine = Engine(absent=1)
    engine.steps[1].take_part("another version")
    assert engine.word() is None
    assert engine.steps[0].passive_because.startswith("rank 1 has other settings")


def test_where_rank_0_fails_all_are_told() -> None:
    engine = Engine()
    engine.step()
    word = engine.steps[0].fail(KeyError("k"))
    assert word is not None
    engine.hear(word)
    assert engine.passive == [True, True]
    assert engine.steps[0].fail(KeyError("again")) is None


def test_where_rank_0_fails_before_the_first_word_it_says_none() -> None:
    engine = Engine()
    assert engine.steps[0].fail(KeyError("k")) is None
    assert engine.passive == [True, False], "the others never began"


def test_a_rank_that_cannot_tell_what_it_holds_differs() -> None:
    engine = Engine()
    engine.step()
    engine.steps[1]._state = lambda: 1 // 0  # type: ignore[assignment,return-value]
    engine.step()
    assert engine.passive == [True, True]


def test_a_stage_that_differs_ends_it_for_all_with_the_next_word() -> None:
    """It can tell rank 0 only aside, so that a word may be under way; no rank gives up before another."""
    engine = Engine(4, stages=2)
    engine.step()
    engine.states[3] = [9]
    engine.step()
    assert engine.passive == [False] * 4
    engine.step(steers=False)
    assert engine.passive == [True] * 4


def test_where_the_first_stage_differs_the_others_end_in_that_step() -> None:
    engine = Engine(4, stages=2)
    engine.step()
    engine.states[1] = [9]
    engine.step()
    assert engine.passive == [True] * 4


def test_requests_go_on_to_the_next_stage_with_the_word_or_alone() -> None:
    engine = Engine(2, stages=2)
    assert engine.steps[0].relay(["request"]) == ["request"]
    word = engine.word()
    assert word is not None
    engine.steps[0].hear(word)
    assert engine.steps[0].relay(["request"]) == [word, "request"]
    assert engine.steps[0].relay(["request"]) == ["request"]


@pytest.mark.parametrize(
    "command",
    [
        Retain(program_id="p", ttl_ns=1, reason="why"),
        Release(program_id="p"),
        Discard(program_id="p"),
        Demote(program_id="p"),
        Label(program_id="p", label="busy"),
        Pause(program_id="p"),
        commands.Admit(program_id="p"),
        commands.Prefetch(program_id="p"),
    ],
)
def test_what_is_obeyed_can_travel(command: commands.Command) -> None:
    word = Word(now_ns=1, digest=2, policies="p", commands=(command,))
    assert pickle.loads(pickle.dumps([word])) == [word]


def test_an_engine_of_one_scheduler_has_no_ranks() -> None:
    scheduler = SimpleNamespace(server_args=SimpleNamespace(tp_size=1, pp_size=1))
    assert Peers.of(scheduler) is None
