"""Everybody that judges another's silence, in one table: time that did not run for us counts for nobody."""

import asyncio
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.core_driver import Driver
from support.pickers import heartbeat

from controlplane import clocks
from controlplane.clocks import AwakeClock
from controlplane.core.types import seconds
from controlplane.emit.slot_wait import SlotWait
from controlplane.fleet.checkup import Checkup
from controlplane.fleet.front import Front
from controlplane.fleet.kube_leader import LeaderEndpoint, Pod
from controlplane.fleet.lease import Entry, Lease
from controlplane.fleet.roster import Engine, Roster, Standing
from controlplane.gate import Gate, Mode
from controlplane.shell.bus import Bus
from controlplane.shell.clock import Clock
from controlplane.shell.nats_server import EmbeddedNats
from engine_hooks.engine import steering
from engine_hooks.sglang.lockstep import Lockstep
from engine_hooks.tools.mcp_session import Owner, Session

ROOT = Path(__file__).parents[2]
FREEZES_S = (0.5, 1.0, 3.0, 8.0, 18.0, 60.0, 90.0)
TICK_S = 0.1


class Machine:
    """A machine's clocks. All of it runs, or is paused: then ``monotonic`` jumps and nobody has done anything."""

    def __init__(self) -> None:
        self.ns = seconds(1000)
        self.awake = AwakeClock(lambda: self.ns)

    def run(self, duration_s: float) -> None:
        for _ in range(round(duration_s / TICK_S)):
            self.ns += seconds(TICK_S)
            self.awake.tick()

    def pause(self, duration_s: float) -> None:
        self.ns += seconds(duration_s)

    def awake_s(self) -> float:
        return self.awake.now_ns() / 1e9

    def elapsed_s(self) -> float:
        return self.ns / 1e9


class Judge:
    """One that listens to a peer. ``limit_s``: it gives the peer up after so long a silence, or a second more."""

    limit_s = 0.0

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def hear(self) -> None:
        """The peer gives a sign of life."""

    def has_given_up(self) -> bool:
        """Whether it takes the peer for dead, as far as it has looked by now."""
        raise NotImplementedError


class TheBus(Judge):
    limit_s = 15.0

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.revived = 0
        self.bus = Bus("nats://nowhere", "node", self.revive, awake_s=machine.awake_s)
        self.bus._client = SimpleNamespace(is_connected=True)  # type: ignore[assignment]

    def revive(self) -> None:
        self.revived += 1

    def hear(self) -> None:
        self.bus._heard_s = self.machine.awake_s()

    def has_given_up(self) -> bool:
        self.bus._revive_the_deaf()
        return self.revived > 0


class TheBusDelivers(TheBus):
    limit_s = 5.0

    def has_given_up(self) -> bool:
        return not self.bus.delivers


class AHungServer(Judge):
    """It was told to end, and gets a while for it."""

    limit_s = 5.0

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.server = EmbeddedNats("node", Path("nowhere"))
        self.killed = False

    def hear(self) -> None:
        self.server._ends_by_s = self.machine.awake_s() + 5.0

    def has_given_up(self) -> bool:
        before = self.server._ends_by_s
        self.server._pid = 1 << 30  # nobody's
        self.server._kill_if_late()
        self.killed = self.killed or self.server._ends_by_s != before
        return self.killed


class ALease(Judge):
    """Somebody else's, which is renewed as long as that one runs."""

    limit_s = 12.0

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.revision = 1
        self.lease = Lease(self, "us", ttl_s=12.0, elapsed_s=machine.elapsed_s, awake_s=machine.awake_s)

    async def read(self) -> Entry | None:
        return Entry(b"0 other", self.revision)

    async def write(self, holder: bytes, last: int) -> int:
        return last + 1

    def hear(self) -> None:
        self.revision += 1

    def has_given_up(self) -> bool:
        asyncio.run(self.lease.step())
        return self.lease.leading


class TheGate(Judge):
    limit_s = 5.0

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.gate = Gate(send=lambda event, urgent: None, now_ns=machine.awake.now_ns)

    def hear(self) -> None:
        self.gate.on_heartbeat(heartbeat(lease_s=5.0))

    def has_given_up(self) -> bool:
        return self.gate.mode is not Mode.GOVERNED


class AFleetsGate(Judge):
    limit_s = 1.0

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.front = Front("fleet", "nats://nowhere", now_ns=Clock(awake_ns=machine.awake.now_ns).now_ns)

    def hear(self) -> None:
        self.front.gate.on_heartbeat(heartbeat(lease_s=5.0))

    def has_given_up(self) -> bool:
        return not self.front.is_led


class AnEnginesPolicies(Judge):
    limit_s = 5.0

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.lease = steering.Lease(machine.awake.now_ns)

    def hear(self) -> None:
        self.lease.heard(SimpleNamespace(engine_policies="some", lease_ttl_ns=seconds(5)))  # type: ignore[arg-type]

    def has_given_up(self) -> bool:
        return not self.lease.text()


class AnEngineWithoutAnswer(Judge):
    limit_s = 30.0

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.roster = Roster([Engine(place="a/engine-1", address="10.0.0.1:1")])
        plain: Any = SimpleNamespace(answers={"a/engine-1": 0})
        self.checkup = Checkup(self.roster, plain, now_ns=machine.awake.now_ns)

    def hear(self) -> None:
        self.has_given_up()
        self.checkup._seen["a/engine-1"].answered_ns = self.machine.awake.now_ns()

    def has_given_up(self) -> bool:
        self.checkup._look_at_all(None, SimpleNamespace(start_soon=lambda *_: None))  # type: ignore[arg-type]
        return any(engine.standing is Standing.GONE for engine in self.roster)


class APublisher(Judge):
    """An engine that holds a turn: asked after a minute, three times."""

    limit_s = 90.0

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.clock, self.driver, self.turns = Clock(awake_ns=machine.awake.now_ns), Driver(), 0

    def hear(self) -> None:
        self.turns += 1
        self.driver.now_ns = self.clock.now_ns()
        self.driver.submit("p", f"t{self.turns}")

    def has_given_up(self) -> bool:
        self.driver.now_ns = self.clock.now_ns()
        self.driver.tick()
        return "node/engine/1" not in self.driver.ledger.publishers.sequences


class AHookForASlot(Judge):
    limit_s = 3.0

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.heard_s = machine.awake_s()
        self.wait = SlotWait(lambda: None, lambda: self.heard_s, patience_s=math.inf)

    def hear(self) -> None:
        self.heard_s = self.machine.awake_s()

    def has_given_up(self) -> bool:
        return not self.wait._next_look_s()


class AnMcpServer(Judge):
    limit_s = 20.0

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        reports: Any = SimpleNamespace(
            **{
                name: lambda *_, **__: None
                for name in ("program_started", "tool_enqueued", "tool_started", "tool_ended")
            }
        )
        self.session = Session(reports, Owner(reports, "p"), timeout_s=20.0)
        self.calls = 0

    def hear(self) -> None:
        """It has answered, and is asked again."""
        self.session._open.clear()
        self.calls += 1
        call = b'{"jsonrpc": "2.0", "id": %d, "method": "tools/call", "params": {"name": "t"}}' % self.calls
        self.session.from_client(call, clocks.awake_s())

    def has_given_up(self) -> bool:
        return bool(self.session.give_up(self.session.open, clocks.awake_s()))


class AnotherRank(Judge):
    limit_s = 60.0

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.hear()

    def hear(self) -> None:
        peers: Any = SimpleNamespace(leads=True, absent=lambda: 1, reported=lambda: "")
        self.lockstep = Lockstep(peers, lambda: ())

    def has_given_up(self) -> bool:
        self.lockstep.say(has_news=True, steers=False, until_ns=None)
        return bool(self.lockstep.passive_because)


class AnOutrankedLeader(Judge):
    limit_s = 30.0

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.endpoint = LeaderEndpoint(
            cluster=None,  # type: ignore[arg-type]
            slice_name="s",
            pod=Pod(name="p", address="10.0.0.1"),
            revision=lambda: None,
        )

    def hear(self) -> None:
        self.endpoint._outranked_since = None

    def has_given_up(self) -> bool:
        return self.endpoint._counts_anew()


JUDGES: tuple[Callable[[Machine], Judge], ...] = (*Judge.__subclasses__(), TheBusDelivers)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(clocks, "awake_ns", machine.awake.now_ns)
    monkeypatch.setattr(clocks, "awake_s", machine.awake_s)
    monkeypatch.setattr(clocks, "elapsed_s", machine.elapsed_s)
    return machine


@pytest.mark.parametrize("paused_s", FREEZES_S)
@pytest.mark.parametrize("make", JUDGES)
def test_nobody_is_given_up_for_a_time_that_did_not_run(
    machine: Machine, make: Callable[[Machine], Judge], paused_s: float
) -> None:
    """Nor by several pauses, one after the other, each before anything could be heard."""
    judge = make(machine)
    judge.hear()
    assert not judge.has_given_up()
    for _ in range(3):
        machine.run(0.2)
        assert not judge.has_given_up()
        machine.pause(paused_s)
        assert not judge.has_given_up(), "as it wakes"
        machine.run(0.1)
        judge.hear()
        assert not judge.has_given_up()


@pytest.mark.parametrize("paused_s", (0.0, *FREEZES_S))
@pytest.mark.parametrize("make", JUDGES)
def test_who_is_silent_while_we_run_is_given_up_in_time(
    machine: Machine, make: Callable[[Machine], Judge], paused_s: float
) -> None:
    judge = make(machine)
    judge.hear()
    awake_s = 0.0
    while not judge.has_given_up():
        machine.run(0.2)
        awake_s += 0.2
        if 0.4 < awake_s <= 0.6:
            machine.pause(paused_s)
        assert awake_s <= judge.limit_s + 1.5
    assert awake_s >= judge.limit_s - 1.5


@pytest.mark.parametrize("paused_s", FREEZES_S)
def test_our_own_lease_goes_by_all_time(machine: Machine, paused_s: float) -> None:
    """Others ran while we did not, and one of them may lead."""
    own = ALease(machine)
    own.read = lambda: _nothing()  # type: ignore[method-assign]
    asyncio.run(own.lease.step())
    assert own.lease.leading
    machine.pause(paused_s)
    assert own.lease.leading == (paused_s < 11.0)


async def _nothing() -> None:
    return None


STOPS_ITSELF = """
import asyncio, os, signal, sys
from controlplane import clocks
from controlplane.eventloop import run
async def stop():
    clocks.awake_s()
    await asyncio.sleep(0.3)
    before = clocks.elapsed_s(), clocks.awake_s()
    os.kill(os.getpid(), signal.SIGSTOP)
    print(clocks.elapsed_s() - before[0], clocks.awake_s() - before[1], flush=True)
run(stop) if sys.argv[1] == "loop" else asyncio.run(stop())
"""


@pytest.mark.parametrize("who", ["loop", "thread"])
def test_a_real_process_that_is_stopped_counts_what_it_ran(who: str) -> None:
    """By a loop that ticks, and by a thread."""
    with subprocess.Popen([sys.executable, "-c", STOPS_ITSELF, who], stdout=subprocess.PIPE, text=True) as process:
        os.waitpid(process.pid, os.WUNTRACED)
        time.sleep(3.0)
        process.send_signal(signal.SIGCONT)
        assert process.stdout is not None
        elapsed_s, awake_s = map(float, process.stdout.readline().split())
    assert elapsed_s >= 3.0
    assert awake_s < elapsed_s - 2.0


# Where another clock is read: no file may begin to judge by it unseen.
OTHER_CLOCKS = {
    "controlplane/cli/ask.py": "how long a command asks",
    "controlplane/clocks.py": "what the two clocks are made of",
    "controlplane/emit/runtime.py": "when events happened",
    "controlplane/emit/tool_reporter.py": "how long a tool took",
    "controlplane/fleet/kube_leader.py": "when what it wrote is written again",
    "controlplane/fleet/leader.py": "when it moves on, and asks for the lead",
    "controlplane/operate/doctor.py": "a round trip; the clock's own error",
    "controlplane/shell/advise/questions.py": "when it asks again",
    "controlplane/shell/bus.py": "when an error is logged again",
    "controlplane/shell/clock.py": "where the daemon's clock begins",
    "controlplane/shell/event_socket.py": "since when events may be lost, by whoever ran meanwhile",
    "controlplane/shell/health_watch.py": "whether the wall clock was set, and how long ago something was",
    "controlplane/shell/hooks.py": "when events happened",
    "controlplane/shell/host_probe.py": "rates of the host, which ran",
    "controlplane/shell/http_server.py": "the age of what it shows",
    "controlplane/shell/shadow/estimates.py": "when it asks again",
    "controlplane/shell/tasks.py": "when an error is logged again",
    "controlplane/shell/traces.py": "when spans began",
    "engine_hooks/engine/attached.py": "pins, and when events happened",
    "engine_hooks/engine/pins.py": "a time that the daemon gave",
    "engine_hooks/engine/probe.py": "how long turns took",
    "engine_hooks/engine/steering.py": "what a program was served lately",
    "engine_hooks/guard.py": "how long a hook took",
    "engine_hooks/sglang/attached.py": "pins, and when events happened",
    "engine_hooks/sglang/light_sleep.py": "how long a scheduler sleeps",
    "engine_hooks/sglang/lockstep.py": "one time for all ranks",
    "engine_hooks/sglang/moves.py": "how long moves took",
    "engine_hooks/sglang/steering.py": "what a program was served lately",
    "engine_hooks/tools/resources/client.py": "a time that the agent gave",
    "engine_hooks/tools/resources/keeper.py": "a time that the agent gave",
    "engine_hooks/vllm/attached.py": "pins, and how long a scheduler sleeps",
}
_CLOCK = re.compile(
    r"\btime\.(monotonic|perf_counter|time|time_ns|monotonic_ns|perf_counter_ns|clock_gettime\w*)\b|\bcurrent_time\b"
)


def test_no_silence_is_judged_by_another_clock() -> None:
    read = {
        path.relative_to(ROOT).as_posix()
        for room in ("controlplane", "engine_hooks")
        for path in (ROOT / room).rglob("*.py")
        if "lab" not in path.relative_to(ROOT).parts and _CLOCK.search(path.read_text())
    }
    assert read == set(OTHER_CLOCKS), "a new place says why it may, or uses controlplane.clocks"
