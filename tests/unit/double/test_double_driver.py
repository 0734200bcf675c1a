"""The driver with the real engine model, in real time scaled two hundred times where a test does not say else."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest

from controlplane.core.commands import Admit, Demote, Label, Prefetch, Release, Retain, StateRequest
from controlplane.core.events import (
    CommandApplied,
    CommandRejected,
    Event,
    FirstToken,
    PoolSampled,
    PublisherState,
    TurnEnded,
    TurnSubmitted,
)
from controlplane.core.types import seconds
from controlplane.gate import Gate, GateLimits
from controlplane.lab.double.clock import EngineClock
from controlplane.lab.double.driver import Driver
from controlplane.lab.sim.engine_model import Call, ContextTooLong, EngineModel
from controlplane.lab.sim.profile import load_profile

pytestmark = pytest.mark.asyncio

SCALE = 200.0


class Bench:
    """A driver and all that it sent."""

    def __init__(self, scale: float) -> None:
        self.sent: list[Event] = []
        self.sampled = asyncio.Event()
        self.clock = EngineClock(scale)
        gate = Gate(send=self.send, now_ns=self.clock.now_ns, limits=GateLimits(time_scale=scale))
        engine = EngineModel(load_profile("h200-llama31-8b"), pool_blocks=1000, block_tokens=16)
        self.driver = Driver(
            engine=engine, gate=gate, send=self.send, now_ns=self.clock.now_ns, publisher=lambda: "us"
        )

    def send(self, event: Event, urgent: bool) -> None:
        self.sent.append(event)
        if isinstance(event, PoolSampled):
            self.sampled.set()

    def kinds(self) -> list[type[Event]]:
        return [type(event) for event in self.sent if not isinstance(event, PoolSampled)]


def call(name: str, output_tokens: int = 10) -> Call:
    return Call(turn_id=name, program_id="p", prompt_tokens=160, output_tokens=output_tokens)


async def play(story: Callable[[Bench], Coroutine[Any, Any, None]], scale: float = SCALE) -> None:
    bench = Bench(scale)
    bench.driver.start()
    async with asyncio.timeout(60):
        await story(bench)
    bench.driver.stop()


async def test_a_turn_runs_to_its_end_and_says_so() -> None:
    async def story(bench: Bench) -> None:
        turn = bench.driver.submit(call("t"))
        await bench.driver.idle()
        assert turn.ended is not None
        assert (turn.ended.ok, turn.ended.output_tokens) == (True, 10)
        assert bench.driver.produced_tokens(turn) == 10
        assert bench.kinds() == [TurnSubmitted, FirstToken, TurnEnded]
        await turn.news()  # returns at once: there will be no more

    await play(story)


async def test_news_come_with_the_first_token_and_after_a_while() -> None:
    async def story(bench: Bench) -> None:
        turn = bench.driver.submit(call("t", output_tokens=10_000))
        await turn.news()
        assert turn.first_token is not None
        before = bench.driver.produced_tokens(turn)
        await turn.news(0.01)
        assert before < bench.driver.produced_tokens(turn) < 10_000
        bench.driver.abort_all()
        await bench.driver.idle()
        assert turn.ended is not None
        assert not turn.ended.ok

    await play(story, scale=2.0)  # half a minute: a machine that falls asleep for a while does not see its end


async def test_a_context_that_does_not_fit_is_refused() -> None:
    async def story(bench: Bench) -> None:
        with pytest.raises(ContextTooLong):
            bench.driver.submit(call("t", output_tokens=1_000_000))
        assert bench.driver.open_turns == 0
        bench.driver.abort("t")

    await play(story)


async def test_commands_are_obeyed_or_rejected_with_a_reason() -> None:
    async def story(bench: Bench) -> None:
        bench.driver.submit(call("t"))
        await bench.driver.idle()
        bench.sent.clear()
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
        applied = [event.command_id for event in bench.sent if isinstance(event, CommandApplied)]
        rejected = [event for event in bench.sent if isinstance(event, CommandRejected)]
        assert applied == [1, 2, 3, 4, 5]
        assert [(event.command_id, event.reason) for event in rejected] == [
            (6, "there is no memory below the device, unpinned only: give the engine a tier"),
            (7, "there is no memory below the device: give the engine a tier"),
        ]

    await play(story)


async def test_the_state_tells_of_open_turns_grants_and_pins() -> None:
    async def story(bench: Bench) -> None:
        bench.driver.submit(call("t"))
        await bench.driver.idle()
        bench.driver.receive(Retain(program_id="p", ttl_ns=seconds(10_000)), 0)
        bench.driver.receive(Admit(program_id="g"), 0)
        other = Call(turn_id="o", program_id="q", prompt_tokens=160, output_tokens=10_000)
        bench.driver.submit(other)
        bench.sent.clear()
        bench.driver.receive(StateRequest(publisher="somebody else"), 0)
        bench.driver.receive(StateRequest(publisher="us"), 0)
        (state,) = [event for event in bench.sent if isinstance(event, PublisherState)]
        assert [(turn.program_id, turn.turn_id) for turn in state.open_turns] == [("q", "o")]
        assert state.open_turns[0].blocks == (160 + 10_000) // 16
        assert [grant.program_id for grant in state.grants] == ["g"]
        assert [pin.program_id for pin in state.pins] == ["p"]
        bench.driver.abort_all()

    await play(story)


async def test_the_pool_is_sampled_every_second_of_engine_time_but_not_too_often() -> None:
    async def story(bench: Bench) -> None:
        for _ in range(4):
            bench.sampled.clear()
            await bench.sampled.wait()
        times = [event.at_ns for event in bench.sent]
        assert all(later - earlier >= seconds(0.05 * SCALE) for earlier, later in pairwise(times))

    await play(story)
