"""The driver and the daemon's engine policies, in the driver's own time; its event loop runs for nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from controlplane.core.commands import Admit, Pause
from controlplane.core.engine_policies import STOCK, EnginePolicies
from controlplane.core.events import Event, FirstToken, PoolSampled
from controlplane.core.memory.opportunistic import Opportunistic
from controlplane.core.priority.mlfq import Mlfq
from controlplane.core.types import seconds
from controlplane.gate import Gate, GateLimits
from controlplane.lab.double.driver import Driver
from controlplane.lab.sim.engine_model import Call, EngineModel
from controlplane.lab.sim.profile import load_profile
from controlplane.wire.heartbeat import Heartbeat

pytestmark = pytest.mark.asyncio

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

    def __init__(self, limits: GateLimits | None = None) -> None:
        self.now_ns = 0
        self.sent: list[Event] = []
        self.gate = Gate(send=self._send, now_ns=lambda: self.now_ns, limits=limits or GateLimits())
        self.engine = EngineSpy(load_profile("h200-llama31-8b"), pool_blocks=1000, block_tokens=16, max_running=1)
        self.driver = Driver(
            engine=self.engine, gate=self.gate, send=self._send, now_ns=lambda: self.now_ns, publisher=lambda: "us"
        )

    def _send(self, event: Event, urgent: bool) -> None:
        self.sent.append(event)

    def at(self, now_s: float) -> None:
        """Go on to a time, with a sample of the pool at it."""
        self.now_ns = seconds(now_s)
        self.driver.start()

    def beat(self, text: str) -> None:
        heartbeat = Heartbeat(
            node="n", boot_id="d", lease_ttl_ns=LEASE_NS, limit=3, window=3.0, engine_policies=text
        )
        self.driver.receive(heartbeat, self.now_ns)


async def play(story: Callable[[Bench], None]) -> None:
    bench = Bench()
    story(bench)
    bench.driver.stop()


async def test_a_heartbeat_switches_the_engines_policies_once() -> None:
    def story(bench: Bench) -> None:
        bench.beat(MARS.dumps())
        bench.beat(MARS.dumps())
        assert bench.engine.used == [MARS]
        bench.beat(STOCK.dumps())
        assert bench.engine.used == [MARS, STOCK]

    await play(story)


async def test_a_heartbeat_without_policies_changes_nothing() -> None:
    def story(bench: Bench) -> None:
        bench.beat("")
        assert bench.engine.used == []

    await play(story)


async def test_the_policies_order_the_engines_queue() -> None:
    def story(bench: Bench) -> None:
        bench.beat(MARS.dumps())
        for name, prompt_tokens in (("runs", 16), ("large", 9000), ("small", 16)):
            bench.driver.submit(Call(turn_id=name, program_id=name, prompt_tokens=prompt_tokens, output_tokens=8))
        bench.at(4)
        assert [event.turn_id for event in bench.sent if isinstance(event, FirstToken)] == [
            "runs",
            "small",
            "large",
        ]

    await play(story)


async def test_a_daemon_that_falls_silent_leaves_the_engine_its_own_policies() -> None:
    def story(bench: Bench) -> None:
        bench.beat(MARS.dumps())
        bench.at(5)
        assert bench.engine.used == [MARS], "the lease is not over"
        bench.at(5.1)
        assert bench.engine.used == [MARS, STOCK]
        bench.at(6)
        assert bench.engine.used == [MARS, STOCK]
        bench.beat(MARS.dumps())
        assert bench.engine.used == [MARS, STOCK, MARS], "it is back"

    await play(story)


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
    caplog: pytest.LogCaptureFixture,
) -> None:
    def story(bench: Bench) -> None:
        bench.beat(MARS.dumps())
        for _ in range(3):
            bench.beat('{"priority":{"policy":"of tomorrow"}}')
        assert bench.engine.used == [MARS, STOCK], "nothing of the old ones is left"
        assert bench.gate.health()["mode"] == "governed"
        bench.beat(MARS.dumps())
        assert bench.engine.used == [MARS, STOCK, MARS]

    await play(story)
    assert [message for message in caplog.messages if "of tomorrow" in message] == caplog.messages
    assert len(caplog.messages) == 1


async def test_grants_and_pauses_tell_whose_context_is_waited_for() -> None:
    def story(bench: Bench) -> None:
        bench.driver.receive(Pause(program_id="p"), 0)
        bench.driver.receive(Admit(program_id="p"), 0)
        bench.driver.receive(Pause(program_id="p"), 0)
        bench.driver.receive(Admit(program_id="p"), 0)
        assert bench.engine.parked == [("p", True), ("p", False), ("p", True), ("p", False)]
        assert [grant.program_id for grant in bench.gate.state().grants] == ["p"], "the gate hears them, too"

    await play(story)


async def test_a_paused_programs_context_is_evicted_first() -> None:
    def story(bench: Bench) -> None:
        bench.beat(MARS.dumps())
        for index, name in enumerate("abc"):
            bench.driver.submit(Call(turn_id=name, program_id=name, prompt_tokens=300 * 16, output_tokens=1))
            bench.at(1 + index)
        bench.driver.receive(Pause(program_id="b"), bench.now_ns)
        bench.beat(MARS.dumps())
        bench.driver.submit(Call(turn_id="d", program_id="d", prompt_tokens=350 * 16, output_tokens=1))
        bench.at(5)
        cache = bench.engine.cache
        left = {name: node.blocks for name in "abcd" if (node := cache.find(name)) is not None}
        assert left == {"a": 300, "c": 300, "d": 350}, "b had one piece"
        assert isinstance(bench.sent[-1], PoolSampled)

    await play(story)
