"""The driver with the real engine model: turns, commands, samples, and the daemon's engine policies."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from controlplane.core.model.commands import Admit, Demote, Label, Pause, Prefetch, Release, Retain, StateRequest
from controlplane.core.model.events import (
    CommandApplied,
    CommandRejected,
    Event,
    FirstToken,
    PoolSampled,
    PublisherState,
    TurnEnded,
    TurnSubmitted,
)
from controlplane.core.model.types import seconds
from controlplane.core.policies.engine_policies import STOCK, EnginePolicies
from controlplane.core.policies.memory.opportunistic import Opportunistic
from controlplane.core.policies.priority.mlfq import Mlfq
from controlplane.gate import Gate, GateLimits
from controlplane.lab.double.driver import Driver, EngineClock
from controlplane.lab.sim.engine_model import Call, ContextTooLong, EngineModel
from controlplane.lab.sim.profile import load_profile
from controlplane.wire.heartbeat import Heartbeat

MARS = EnginePolicies(priority=Mlfq(), memory=Opportunistic())
LEASE_NS = seconds(5)


class EngineSpy(EngineModel):
    """The real engine model, which notes what it is told to run and whom it parks."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.used: list[EnginePolicies] = []
        self.parked: list[tuple[str, bool]] = []

    def use(self, policies: EnginePolicies, now_ns: int | None = None) -> None:
        self.used.append(policies)
        super().use(policies, now_ns)

    def park(self, program_id: str, parked: bool = True, now_ns: int | None = None) -> None:
        self.parked.append((program_id, parked))
        super().park(program_id, parked, now_ns)


class Bench:
    """A driver at a time that the test sets. Alarms are not waited for: ``at`` is what they would do."""

    def __init__(self, limits: GateLimits | None = None, clock: EngineClock | None = None) -> None:
        self.now_ns = 0
        self.sent: list[Event] = []
        self.sampled = asyncio.Event()
        now_ns = clock.now_ns if clock is not None else lambda: self.now_ns
        self.gate = Gate(send=self._send, now_ns=now_ns, limits=limits or GateLimits())
        self.engine = EngineSpy(load_profile("h200-llama31-8b"), pool_blocks=1000, block_tokens=16, max_running=1)
        self.driver = Driver(
            engine=self.engine, gate=self.gate, send=self._send, now_ns=now_ns, publisher=lambda: "us"
        )

    def _send(self, event: Event, urgent: bool) -> None:
        self.sent.append(event)
        if isinstance(event, PoolSampled):
            self.sampled.set()

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.sent if isinstance(event, kind)]

    def at(self, now_s: float) -> None:
        """Go on to a time, with a sample of the pool at it."""
        self.now_ns = seconds(now_s)
        self.driver.start()

    def beat(self, text: str) -> None:
        heartbeat = Heartbeat(
            node="n", boot_id="d", lease_ttl_ns=LEASE_NS, limit=3, window=3.0, engine_policies=text
        )
        self.driver.receive(heartbeat, self.now_ns)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    made.driver.stop()


def call(name: str, prompt_tokens: int = 160, output_tokens: int = 10, program: str = "") -> Call:
    return Call(turn_id=name, program_id=program or name, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


async def test_a_turn_runs_to_its_end_and_says_so(bench: Bench) -> None:
    turn = bench.driver.submit(call("t", output_tokens=1000))
    bench.now_ns = seconds(2)
    assert 0 < bench.driver.produced_tokens(turn) < 1000
    await turn.news(0)
    assert (turn.first_token is not None, turn.ended) == (True, None)
    bench.at(100)
    assert (turn.ended.ok, turn.ended.output_tokens, bench.driver.produced_tokens(turn)) == (True, 1000, 1000)
    assert [type(event) for event in bench.sent] == [TurnSubmitted, FirstToken, TurnEnded, PoolSampled]
    await turn.news()  # returns at once: there will be no more
    await bench.driver.idle()


async def test_a_turn_is_aborted_and_one_that_does_not_fit_is_refused(bench: Bench) -> None:
    turn = bench.driver.submit(call("t", output_tokens=10_000))
    bench.at(1)
    with pytest.raises(ContextTooLong):
        bench.driver.submit(call("long", output_tokens=1_000_000))
    assert bench.driver.open_turns == 1
    bench.driver.abort("long")
    bench.driver.abort_all()
    bench.at(2)
    assert (turn.ended.ok, bench.driver.open_turns) == (False, 0)


async def test_commands_are_obeyed_or_rejected_with_a_reason(bench: Bench) -> None:
    bench.driver.submit(call("t", program="p"))
    bench.at(10)
    commands = [
        Admit(command_id=1, program_id="p"),
        Retain(command_id=2, program_id="p", ttl_ns=seconds(1000)),
        Release(command_id=3, program_id="p"),
        Release(command_id=4, program_id="never pinned"),
        Label(command_id=5, program_id="p", label="idle"),
        Demote(command_id=6, program_id="p"),
        Prefetch(command_id=7, program_id="p"),
    ]
    for command in commands:
        bench.driver.receive(command, 0)
    assert [event.command_id for event in bench.of(CommandApplied)] == [1, 2, 3, 4, 5]
    assert [(event.command_id, event.reason) for event in bench.of(CommandRejected)] == [
        (6, "there is no memory below the device, unpinned only: give the engine a tier"),
        (7, "there is no memory below the device: give the engine a tier"),
    ]


async def test_the_state_tells_of_open_turns_grants_and_pins(bench: Bench) -> None:
    bench.driver.submit(call("t", program="p"))
    bench.at(10)
    bench.driver.receive(Retain(program_id="p", ttl_ns=seconds(10_000)), 0)
    bench.driver.receive(Admit(program_id="g"), 0)
    bench.driver.submit(call("o", output_tokens=10_000, program="q"))
    bench.driver.receive(StateRequest(publisher="somebody else"), 0)
    bench.driver.receive(StateRequest(publisher="us"), 0)
    (state,) = bench.of(PublisherState)
    assert [(turn.program_id, turn.turn_id, turn.blocks) for turn in state.open_turns] == [("q", "o", 10_160 // 16)]
    assert [grant.program_id for grant in state.grants] == ["g"]
    assert [(pin.program_id, pin.ttl_ns) for pin in state.pins] == [("p", seconds(10_000))]


async def test_the_pool_is_sampled_every_second_of_engine_time_but_not_too_often() -> None:
    scale = 200.0
    bench = Bench(GateLimits(time_scale=scale), EngineClock(scale))
    bench.driver.start()
    for _ in range(3):
        bench.sampled.clear()
        await asyncio.wait_for(bench.sampled.wait(), 60)
    bench.driver.stop()
    times = [event.at_ns for event in bench.sent]
    assert all(later - earlier >= seconds(0.05 * scale) for earlier, later in pairwise(times))


async def test_a_heartbeat_switches_the_engines_policies_once_and_they_order_its_queue(bench: Bench) -> None:
    bench.beat(MARS.dumps())
    bench.beat(MARS.dumps())
    for name, prompt_tokens in (("runs", 16), ("large", 9000), ("small", 16)):
        bench.driver.submit(call(name, prompt_tokens, 8))
    bench.at(4)
    assert [event.turn_id for event in bench.of(FirstToken)] == ["runs", "small", "large"]
    bench.beat(STOCK.dumps())
    assert bench.engine.used == [MARS, STOCK]


async def test_a_daemon_that_falls_silent_leaves_the_engine_its_own_policies(bench: Bench) -> None:
    bench.beat(MARS.dumps())
    bench.at(5)
    assert bench.engine.used == [MARS], "the lease is not over"
    bench.at(5.1)
    assert bench.engine.used == [MARS, STOCK]
    bench.beat(MARS.dumps())
    assert bench.engine.used == [MARS, STOCK, MARS], "it is back"


async def test_a_scaled_clock_makes_no_silence_of_a_hiccup() -> None:
    """At a thousandfold speed the lease would be over in 5 ms of the wall: a second of it is waited."""
    bench = Bench(GateLimits(time_scale=1000))
    bench.beat(MARS.dumps())
    bench.at(1000)
    assert bench.engine.used == [MARS]
    bench.at(1000.1)
    assert bench.engine.used == [MARS, STOCK]
    bench.driver.stop()


async def test_policies_that_make_no_sense_are_told_once_and_the_gate_still_hears_the_daemon(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.beat(MARS.dumps())
    for _ in range(3):
        bench.beat('{"priority":{"policy":"of tomorrow"}}')
    assert bench.engine.used == [MARS, STOCK], "nothing of the old ones is left"
    assert bench.gate.health()["mode"] == "governed"
    assert len(caplog.messages) == 1
    assert "of tomorrow" in caplog.messages[0]


async def test_a_paused_programs_context_is_evicted_first(bench: Bench) -> None:
    bench.beat(MARS.dumps())
    for index, name in enumerate("abc"):
        bench.driver.submit(call(name, 300 * 16, 1))
        bench.at(1 + index)
    for command in (Pause(program_id="b"), Admit(program_id="c"), Pause(program_id="c"), Admit(program_id="c")):
        bench.driver.receive(command, bench.now_ns)
    assert bench.engine.parked == [("b", True), ("c", False), ("c", True), ("c", False)]
    assert [grant.program_id for grant in bench.gate.state().grants] == ["c"], "the gate hears them, too"
    bench.beat(MARS.dumps())
    bench.driver.submit(call("d", 350 * 16, 1))
    bench.at(5)
    cache = bench.engine.cache
    left = {name: node.blocks for name in "abcd" if (node := cache.find(name)) is not None}
    assert left == {"a": 300, "c": 300, "d": 350}, "b had one piece"
