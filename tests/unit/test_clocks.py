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
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.core_driver import Driver
from support.pickers import heartbeat

from controlplane import clocks
from controlplane.clocks import AwakeClock
from controlplane.core.model.types import seconds
from controlplane.daemon.bus.clock import Clock
from controlplane.daemon.bus.connection import Bus
from controlplane.daemon.bus.nats_server import EmbeddedNats
from controlplane.emit.slot_wait import SlotWait
from controlplane.fleet.buckets import Entry
from controlplane.fleet.checkup import Checkup
from controlplane.fleet.front import Front
from controlplane.fleet.kube_leader import LeaderEndpoint
from controlplane.fleet.lease import Lease
from controlplane.fleet.roster import Engine, Roster, Standing
from controlplane.gate import Gate, Mode
from engine_hooks.engine import steering
from engine_hooks.sglang.lockstep import Lockstep
from engine_hooks.tools.mcp_session import Owner, Session

ROOT = Path(__file__).parents[2]
FREEZES_S = (0.5, 3.0, 18.0, 90.0)
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


@dataclass(frozen=True)
class Judge:
    """One that listens to a peer, which ``hear`` has give a sign of life.

    ``has_given_up``: whether it takes the peer for dead, as far as it has looked by now; that it does after a
    silence of ``limit_s``, or a second more.
    """

    limit_s: float
    hear: Callable[[], object]
    has_given_up: Callable[[], bool]


def a_bus(machine: Machine) -> tuple[Bus, list[bool], Callable[[], object]]:
    revived: list[bool] = []
    bus = Bus("nats://nowhere", "node", lambda: revived.append(True), awake_s=machine.awake_s)
    bus._client = SimpleNamespace(is_connected=True)  # type: ignore[assignment]
    return bus, revived, lambda: setattr(bus, "_last_seen_s", machine.awake_s())


def a_bus_that_is_deaf(machine: Machine) -> Judge:
    bus, revived, hear = a_bus(machine)
    return Judge(15.0, hear, lambda: bool(bus._revive_the_deaf() or revived))  # type: ignore[func-returns-value]


def a_bus_that_delivers(machine: Machine) -> Judge:
    bus, _, hear = a_bus(machine)
    return Judge(5.0, hear, lambda: not bus.delivers)


def a_hung_server(machine: Machine) -> Judge:
    """It was told to end, and gets a while for it."""
    server, killed = EmbeddedNats("node", Path("nowhere")), [False]

    def has_given_up() -> bool:
        before, server._pid = server._ends_by_s, 1 << 30  # nobody's
        server._kill_if_late()
        killed[0] |= server._ends_by_s != before
        return killed[0]

    return Judge(5.0, lambda: setattr(server, "_ends_by_s", machine.awake_s() + 5.0), has_given_up)


class Bucket:
    """Where a lease lies: ours, or one of somebody else who renews it as long as that one runs."""

    def __init__(self, machine: Machine, entry: bytes | None) -> None:
        self.revision, self.entry = 1, entry
        self.lease = Lease(self, "us", ttl_s=12.0, elapsed_s=machine.elapsed_s, awake_s=machine.awake_s)

    async def read(self) -> Entry | None:
        return None if self.entry is None else Entry(self.entry, self.revision)

    async def write(self, holder: bytes, last: int) -> int:
        return last + 1

    def step(self) -> bool:
        asyncio.run(self.lease.step())
        return self.lease.leading


def a_lease(machine: Machine) -> Judge:
    other = Bucket(machine, b"0 other")
    return Judge(12.0, lambda: setattr(other, "revision", other.revision + 1), other.step)


def a_gate(machine: Machine) -> Judge:
    gate = Gate(send=lambda event, urgent: None, now_ns=machine.awake.now_ns)
    return Judge(5.0, lambda: gate.on_heartbeat(heartbeat(lease_s=5.0)), lambda: gate.mode is not Mode.GOVERNED)


def a_fleets_gate(machine: Machine) -> Judge:
    front = Front("fleet", "nats://nowhere", now_ns=Clock(awake_ns=machine.awake.now_ns).now_ns)
    return Judge(1.0, lambda: front.gate.on_heartbeat(heartbeat(lease_s=5.0)), lambda: not front.is_led)


def an_engines_policies(machine: Machine) -> Judge:
    lease = steering.Lease(machine.awake.now_ns)
    told: Any = SimpleNamespace(engine_policies="some", lease_ttl_ns=seconds(5))
    return Judge(5.0, lambda: lease.receive(told), lambda: not lease.text())


def an_engine_without_answer(machine: Machine) -> Judge:
    roster = Roster([Engine(place="a/engine-1", address="10.0.0.1:1")])
    plain: Any = SimpleNamespace(answers={"a/engine-1": 0})
    checkup, idle = Checkup(roster, plain, now_ns=machine.awake.now_ns), SimpleNamespace(start_soon=lambda *_: None)

    def has_given_up() -> bool:
        checkup._look_at_all(None, idle)  # type: ignore[arg-type]
        return any(engine.standing is Standing.GONE for engine in roster)

    def hear() -> None:
        has_given_up()
        checkup._seen["a/engine-1"].answered_ns = machine.awake.now_ns()

    return Judge(30.0, hear, has_given_up)


def a_publisher(machine: Machine) -> Judge:
    """An engine that holds a turn: asked after a minute, three times."""
    clock, driver, turns = Clock(awake_ns=machine.awake.now_ns), Driver(), count(1)

    def hear() -> None:
        driver.now_ns = clock.now_ns()
        driver.submit("p", f"t{next(turns)}")

    def has_given_up() -> bool:
        driver.now_ns = clock.now_ns()
        driver.tick()
        return "node/engine/1" not in driver.ledger.publishers.sequences

    return Judge(90.0, hear, has_given_up)


def a_hook_for_a_slot(machine: Machine) -> Judge:
    seen_s = [machine.awake_s()]
    wait = SlotWait(lambda: None, lambda: seen_s[0], patience_s=math.inf)
    return Judge(3.0, lambda: seen_s.__setitem__(0, machine.awake_s()), lambda: not wait._next_look_s())


def an_mcp_server(_: Machine) -> Judge:
    names = ("program_started", "tool_enqueued", "tool_started", "tool_ended")
    reports: Any = SimpleNamespace(**{name: lambda *_, **__: None for name in names})
    session, calls = Session(reports, Owner(reports, "p"), timeout_s=20.0), count(1)

    def hear() -> None:
        """It has answered, and is asked again."""
        session._open.clear()
        call = b'{"jsonrpc": "2.0", "id": %d, "method": "tools/call", "params": {"name": "t"}}' % next(calls)
        session.from_client(call, clocks.awake_s())

    return Judge(20.0, hear, lambda: bool(session.give_up(session.open, clocks.awake_s())))


def another_rank(_: Machine) -> Judge:
    peers: Any = SimpleNamespace(leads=True, absent=lambda: 1, reported=lambda: "")
    at_work = [Lockstep(peers, lambda: ())]

    def has_given_up() -> bool:
        at_work[0].next_message(has_news=True, steers=False, until_ns=None)
        return bool(at_work[0].passive_because)

    return Judge(60.0, lambda: at_work.__setitem__(0, Lockstep(peers, lambda: ())), has_given_up)


def an_outranked_leader(_: Machine) -> Judge:
    cluster: Any = None
    endpoint = LeaderEndpoint(cluster=cluster, slice_name="s", pod="p", address="10.0.0.1", revision=lambda: None)
    return Judge(30.0, lambda: setattr(endpoint, "_outranked_since", None), endpoint._counts_anew)


JUDGES: tuple[Callable[[Machine], Judge], ...] = (
    a_bus_that_is_deaf,
    a_bus_that_delivers,
    a_hung_server,
    a_lease,
    a_gate,
    a_fleets_gate,
    an_engines_policies,
    an_engine_without_answer,
    a_publisher,
    a_hook_for_a_slot,
    an_mcp_server,
    another_rank,
    an_outranked_leader,
)


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
    own = Bucket(machine, None)
    assert own.step()
    machine.pause(paused_s)
    assert own.lease.leading == (paused_s < 11.0)


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


def test_a_real_process_that_is_stopped_counts_what_it_ran() -> None:
    """By a loop that ticks, and by a thread."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen([sys.executable, "-c", STOPS_ITSELF, who], stdout=subprocess.PIPE, text=True)
            )
            for who in ("loop", "thread")
        ]
        for process in processes:
            os.waitpid(process.pid, os.WUNTRACED)
        time.sleep(3.0)
        for process in processes:
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
    "controlplane/operate/bus_check.py": "a round trip; the clock's own error",
    "controlplane/operate/decisions.py": "which decisions of a second share a line",
    "controlplane/operate/top/app.py": "for how long nothing was seen, as a person counts",
    "controlplane/operate/top/looks.py": "when it looks again",
    "controlplane/daemon/observe/samples.py": "when samples were taken",
    "controlplane/daemon/bus/connection.py": "when an error is logged again",
    "controlplane/daemon/bus/clock.py": "where the daemon's clock begins",
    "controlplane/daemon/bus/event_socket.py": "since when events may be lost, by whoever ran meanwhile",
    "controlplane/daemon/status/health_watch.py": "whether the wall clock was set, and how long ago something was",
    "controlplane/daemon/bus/hooks.py": "when events happened",
    "controlplane/daemon/otlp/receiver.py": "for how long a span has been over",
    "controlplane/daemon/process/host_probe.py": "rates of the host, which ran",
    "controlplane/daemon/api/http_server.py": "the age of what it shows",
    "controlplane/daemon/shadow/estimates.py": "when it asks again",
    "controlplane/daemon/process/tasks.py": "when an error is logged again",
    "controlplane/daemon/observe/traces.py": "when spans began",
    "engine_hooks/engine/attached.py": "pins, and when events happened",
    "engine_hooks/engine/pins.py": "a time that the daemon gave",
    "engine_hooks/engine/probe.py": "how long turns took",
    "engine_hooks/guard.py": "how long a hook took",
    "engine_hooks/sglang/attached.py": "pins, and when events happened",
    "engine_hooks/sglang/light_sleep.py": "how long a scheduler sleeps",
    "engine_hooks/sglang/lockstep.py": "one time for all ranks",
    "engine_hooks/sglang/moves.py": "how long moves took",
    "engine_hooks/tools/resources/cgroups.py": "how long the kernel takes",
    "engine_hooks/tools/resources/client.py": "a time that the agent gave",
    "engine_hooks/tools/resources/freezer.py": "how long it took; to thaw too soon hurts nobody",
    "engine_hooks/tools/resources/keeper.py": "a time that the agent gave",
    "engine_hooks/tools/resources/sandboxes.py": "how long a tool waited",
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
