"""Two ranks with the whole plugin over doubles of their schedulers: what one is told both do."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from peers_double import GroupDouble, PeersDouble, StoreDouble
from scheduler_double import RequestDouble, SchedulerDouble, ViewDouble
from sglang_double import SglangDouble
from support.hooked import emitted

from controlplane.core.model.commands import Demote, Discard, Label, Release, Retain
from controlplane.core.model.events import CommandApplied, CommandRejected, ContextMoved, PoolSampled
from controlplane.core.model.types import seconds
from controlplane.core.policies.engine_policies import STOCK, EnginePolicies
from controlplane.core.policies.memory.opportunistic import Opportunistic
from controlplane.core.policies.priority.mlfq import Mlfq
from controlplane.emit.emitter import Emitter
from engine_hooks.engine.settings import Settings
from engine_hooks.sglang import attached, scheduler_side
from engine_hooks.sglang import lockstep as lockstep_module
from engine_hooks.sglang.peers import Peers
from engine_hooks.sglang.ranked import Ranked
from engine_hooks.sglang.scheduler_side import SchedulerSide
from engine_hooks.sglang.targets import BROADCAST

MARS = EnginePolicies(priority=Mlfq(), memory=Opportunistic()).dumps()


class Engine:
    """Both ranks; SGLang's broadcast is a double that hands rank 0's requests to rank 1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lockstep_module, "_LOOK_AGAIN_NS", 0)
        self.sent = emitted(monkeypatch)
        monkeypatch.setattr(Emitter, "start", lambda emitter: self.started.append(emitter))
        monkeypatch.setattr(attached, "EngineView", lambda scheduler: scheduler.view)
        monkeypatch.setattr(Peers, "of", classmethod(lambda cls, scheduler: scheduler.peers))
        self.started: list[Emitter] = []
        group, store = GroupDouble(2), StoreDouble()
        self.sides: list[SchedulerSide] = []
        self.views: list[ViewDouble] = []
        for rank in range(2):
            side = scheduler_side.install(Settings())
            monkeypatch.setattr(scheduler_side, "unbound", lambda hooks: [])
            scheduler: Any = SchedulerDouble()
            scheduler.view = ViewDouble(scheduler)
            scheduler.peers = PeersDouble(rank, 2, group, store)
            side.scheduler_made(None, None, scheduler)
            self.sides.append(side)
            self.views.append(scheduler.view)
        self._pool = ThreadPoolExecutor(2)

    @property
    def ranks(self) -> list[Ranked]:
        found = [side.attached for side in self.sides]
        assert all(isinstance(one, Ranked) for one in found)
        return found  # type: ignore[return-value]

    def step(self, requests: list[Any] | None = None) -> list[Any]:
        """A step of both schedulers; what each is handed of the requests."""
        sent: list[Any] = []

        def from_rank_0(receiver: Any, given: Any) -> Any:
            sent.append(given)
            return given

        hooks = [side.hooks[BROADCAST] for side in self.sides]
        # The leader's call ends only once the other compares: so the other's broadcast waits for what it sends.
        first = self._pool.submit(hooks[0], from_rank_0, "receiver", requests or [])
        while not sent:
            if first.done():
                first.result()
        second = self._pool.submit(hooks[1], lambda receiver, given: list(sent[0]), "receiver", None)
        handed = [first.result(), second.result()]
        for rank in self.ranks:
            rank.step_begins()
        return handed

    def ran(self, program: str, tokens: int) -> None:
        """A turn came, ended and left a context, on both ranks."""
        for rank, view in zip(self.ranks, self.views, strict=True):
            request = RequestDouble(f"turn of {program}", tokens, program=program)
            rank.request_queued(None, None, "scheduler", request)
            request.is_finished = True
            rank.released(None, rank.before_release(request, "tree"), request)
            view.cached[program] = tokens

    def command(self, command: Any) -> None:
        self.ranks[0].on_command(command)
        self.step()

    def beat(self, text: str) -> None:
        self.ranks[0].on_heartbeat(SimpleNamespace(engine_policies=text, lease_ttl_ns=seconds(60)))
        self.step()

    @property
    def pinned(self) -> list[list[str]]:
        return [sorted(rank._pins.programs) for rank in self.ranks]


@pytest.fixture
def engine(sglang: SglangDouble, monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(monkeypatch)


def test_one_rank_speaks(engine: Engine) -> None:
    assert engine.started == [engine.ranks[0].emitter]
    engine.step()
    engine.ran("p", 100)
    assert len([event for event in engine.sent if isinstance(event, PoolSampled)]) == 1
    assert engine.sides[0].account()["lockstep"]["size"] == 2  # type: ignore[index]
    assert engine.sides[1].account() is None


def test_what_rank_0_is_told_every_rank_does(engine: Engine) -> None:
    engine.ran("p", 100)
    engine.ran("q", 100)
    engine.command(Retain(program_id="p", ttl_ns=seconds(60)))
    assert engine.pinned == [["p"], ["p"]]
    engine.command(Discard(program_id="q"))
    assert [view.evicted for view in engine.views] == [[("q", 6400)]] * 2
    engine.command(Release(program_id="p"))
    assert engine.pinned == [[], []]
    assert len([event for event in engine.sent if isinstance(event, CommandApplied)]) == 3
    engine.beat(MARS)
    assert [rank._steering.policies == STOCK for rank in engine.ranks] == [False, False]
    assert engine.ranks[1].account()["lockstep"]["passive_because"] == ""  # type: ignore[index]


def test_moves_to_host_memory_are_refused_but_a_demotion_unpins(engine: Engine) -> None:
    for view in engine.views:
        view.scheduler.enable_hierarchical_cache = True
    engine.ran("p", 100)
    engine.command(Retain(program_id="p", ttl_ns=seconds(60)))
    engine.command(Demote(program_id="p"))
    assert engine.pinned == [[], []]
    (rejected,) = (event for event in engine.sent if isinstance(event, CommandRejected))
    assert "several ranks" in rejected.reason


def refused(engine: Engine) -> list[str]:
    return [event.reason for event in engine.sent if isinstance(event, CommandRejected)]


def test_after_the_end_commands_are_refused_with_the_reason(engine: Engine) -> None:
    engine.ran("p", 100)
    engine.step()
    engine.ranks[1]._steps += 1
    engine.command(Retain(program_id="p", ttl_ns=seconds(60)))
    engine.ranks[0].on_command(Retain(program_id="p", ttl_ns=seconds(60)))
    engine.ranks[0].on_command(Label(program_id="p", label="busy"))
    for rank in engine.ranks:
        rank.step_begins()
    assert engine.pinned == [[], []]
    assert len(refused(engine)) == 2, "that of the last word, too"
    assert all("rank 1 decided otherwise" in reason for reason in refused(engine))


def test_a_word_that_cannot_be_made_ends_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without words time would stand still, and pins would never end."""
    engine.ran("p", 100)
    engine.command(Retain(program_id="p", ttl_ns=seconds(60)))
    monkeypatch.setattr(engine.views[0], "turns", lambda: 1 // 0)
    engine.step(["request"])
    assert engine.pinned == [[], []]
    assert all("rank 0 failed" in str(rank.account()) for rank in engine.ranks)


def test_a_lone_scheduler_is_left_as_it_was(sglang: SglangDouble) -> None:
    side = scheduler_side.install(Settings())
    assert side.hooks[BROADCAST](lambda receiver, requests: requests, "receiver", ["request"]) == ["request"]


def test_one_rank_alone_tells_where_contexts_went(engine: Engine) -> None:
    for rank in engine.ranks:
        rank._host.copies.mark_changed("moved")
        rank._report_copies()
    told = [event for event in engine.sent if isinstance(event, ContextMoved)]
    assert [event.program_id for event in told] == ["moved"]
