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
from peers_double import GroupDouble, PeersDouble, StoreDouble

from controlplane import clocks
from controlplane.core.model.commands import Retain
from controlplane.core.model.types import seconds
from engine_hooks.sglang import lockstep as module
from engine_hooks.sglang.lockstep import Lockstep, StepMessage
from engine_hooks.sglang.peers import Peers


class Engine:
    """So many ranks; ``states`` is what each holds."""

    def __init__(self, size: int = 2, *, absent: int = 0) -> None:
        group, store = GroupDouble(size), StoreDouble()
        self.ranks = [PeersDouble(rank, size, group, store) for rank in range(size)]
        self.states = [[0] for _ in range(size)]
        self.steps = [Lockstep(self.ranks[rank], self._state_of(rank)) for rank in range(size)]
        for step in self.steps[: size - absent]:
            step.join("the same")
        self._pool = ThreadPoolExecutor(size)

    def _state_of(self, rank: int) -> Callable[[], tuple[object, ...]]:
        return lambda: tuple(self.states[rank])

    def message(
        self, *, steers: bool = True, has_news: bool = False, until_ns: int | None = None
    ) -> StepMessage | None:
        said = [step.next_message(has_news=has_news, steers=steers, until_ns=until_ns) for step in self.steps]
        assert said[1:] == [None] * (len(said) - 1), "only rank 0 speaks"
        return said[0]

    def receive(self, message: StepMessage) -> list[tuple[Any, ...]]:
        """What each rank has to obey."""
        arrived = pickle.loads(pickle.dumps(message))
        return list(self._pool.map(lambda step: step.receive(arrived), self.steps))

    def step(self, **said: Any) -> list[tuple[Any, ...]]:
        message = self.message(**said)
        assert message is not None
        return self.receive(message)

    @property
    def passive(self) -> list[bool]:
        return [bool(step.passive_because) for step in self.steps]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_AGAIN_NS", 0)


def test_a_word_is_said_when_there_is_something_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    assert [step.now_ns() for step in engine.steps] == [0, 0], "nobody has said what time it is"
    engine.step()
    now_ns = engine.steps[1].now_ns()
    quiet: dict[str, Any] = {"steers": False}
    assert engine.message(**quiet) is None
    assert engine.steps[1].now_ns() == now_ns, "it stands still between words"
    assert engine.message(steers=False, has_news=True) is not None
    assert engine.message(steers=False, until_ns=time.monotonic_ns() + seconds(60)) is None
    assert engine.message(steers=False, until_ns=time.monotonic_ns()) is not None, "a pin ends"
    later_ns = time.monotonic_ns() + seconds(2)
    monkeypatch.setattr(time, "monotonic_ns", lambda: later_ns)
    assert engine.message(**quiet) is not None, "a sample is due"


def test_a_daemon_that_is_gone_is_gone_for_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.steps[0].lease.receive(SimpleNamespace(engine_policies="some", lease_ttl_ns=seconds(5)))  # type: ignore[arg-type]
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
    assert engine.message() is None
    assert [step.policies for step in engine.steps] == [""] * 3
    assert engine.steps[1].now_ns() > 0


def test_nothing_is_said_before_every_rank_takes_part() -> None:
    """A word to a rank without the plugin would end its scheduler."""
    engine = Engine(absent=1)
    assert engine.message() is None
    assert engine.steps[0].account()["passive_because"] == "not every rank takes part yet"
    engine.steps[1].join("the same")
    assert engine.message() is not None


def test_a_rank_that_never_comes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(absent=1)
    later_ns = time.monotonic_ns() + seconds(100)
    monkeypatch.setattr(time, "monotonic_ns", lambda: later_ns)
    monkeypatch.setattr(clocks, "awake_ns", lambda: later_ns)
    assert engine.message() is None
    assert engine.steps[0].passive_because == "not every rank has the plugin at work"
    assert engine.steps[0].now_ns() == later_ns, "what is told goes by the machine's own clock again"
    engine = Engine(absent=1)
    engine.steps[1].join("another version")
    monkeypatch.setattr(clocks, "awake_ns", lambda: later_ns + 1)
    assert engine.message() is None
    assert engine.steps[0].passive_because.startswith("rank 1 has other settings")


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


def test_an_engine_of_one_scheduler_has_no_ranks() -> None:
    scheduler = SimpleNamespace(server_args=SimpleNamespace(tp_size=1))
    assert Peers.of(scheduler) is None
