"""``python -m tests.kills --kills 1000``: real processes are killed and frozen under load.

Daemon, nats-server, engine double and clients, in an order that follows from the seed. Every other program reports
its tools through the daemon's socket. Exits with 1 when a request failed that no kill of its engine or client
explains, a program or a report was lost, a turn waited beside a free slot for too long, or a gate did not hear its
daemon again.
"""

# ruff: noqa: T201 - what a command prints

import asyncio
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from random import Random

import aiohttp
from support.daemon_process import NODE
from support.whole_loop import Loop

from controlplane.emit.tool_reporter import ToolReporter
from controlplane.lab.fleet.agents import Agents, Cut
from controlplane.wire.endpoint import read_endpoint

SLOTS = 4
CLIENTS = 10
FREE_SLOT_S = 75.0  # failure-rules.md: the longest that anybody waits beside a free slot while faults go on
HEARD_S = 60.0  # within which a gate hears a daemon after a kill, while no other follows
SLOW_S = 20.0  # a gate that does not hear a daemon for so long after a kill is told with what led to it
WEIGHTS = {
    "daemon is killed": 6,
    "nats-server is killed": 5,
    "engine is killed": 2,
    "client vanishes": 5,
    "daemon is frozen": 1,
    "nats-server is frozen": 1,
    "both are frozen": 1,
}
FREEZE_S = (0.5, 40.0)  # on both sides of what the daemon takes for the end of its server


class Watch:
    """Looks at the gate twenty times a second."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.free_s = 0.0  # the longest time that a turn waited beside a free slot
        self.open_s: list[float] = []  # each time that the gate was without a daemon
        self.mode = ""

    async def run(self) -> None:
        free_since = open_since = None
        timeout = aiohttp.ClientTimeout(total=2)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                await asyncio.sleep(0.05)
                now_s = time.monotonic()
                try:
                    async with session.get(f"{self._url}/penstock/health") as answer:
                        health = await answer.json()
                except (aiohttp.ClientError, TimeoutError, OSError):
                    free_since = open_since = None  # the engine is down, and its gate with it
                    self.mode = ""
                    continue
                self.mode = health["mode"]
                free = health["held_turns"] and health["granted_programs"] < SLOTS
                free_since = (free_since or now_s) if free else None
                if free_since is not None:
                    self.free_s = max(self.free_s, now_s - free_since)
                if self.mode == "governed":
                    if open_since is not None:
                        self.open_s.append(now_s - open_since)
                    open_since = None
                else:
                    open_since = open_since or now_s


class Tools:
    """Every other program's tools, reported through the daemon's socket."""

    def __init__(self, folder: Path) -> None:
        self._reporter = ToolReporter(url=f"unix:{folder / NODE}.sock", node=NODE)
        self._calls = 0

    @contextmanager
    def of(self, program: str) -> Iterator[None]:
        """Runs, and is reported."""
        if int(program.rpartition("-")[2]) % 2:
            yield
            return
        self._calls += 1
        call = f"call-{self._calls}"
        self._reporter.tool_started(program, call, "bash")
        try:
            yield
        finally:
            self._reporter.tool_ended(program, call)

    async def lost(self) -> str:
        """What was not taken; empty if nothing is missing."""
        until_s = time.monotonic() + HEARD_S
        while (missing := self._missing()) and time.monotonic() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        stats = self._reporter.stats
        print(f"{stats.sent:6}  reports of tools, {stats.connections} connections")
        return str(stats) if missing or stats.dropped or stats.rejected else ""

    def _missing(self) -> bool:
        stats = self._reporter.stats
        return stats.sent < 2 * self._calls or stats.queued > 0

    def close(self) -> None:
        self._reporter.close()


class Killer:
    """One kill after the other."""

    def __init__(self, loop: Loop, seed: int, random: Random, tools: Tools) -> None:
        self._loop, self._random = loop, random
        self.watch = Watch(loop.url)
        self.agents = Agents([loop.url], count=CLIENTS, seed=seed, why=self._why, tool=tools.of)
        self._engine_back_s = 0.0  # when it was last there again; infinite while it is away
        self.counts: Counter[str] = Counter()
        self.recovered_s: list[float] = []  # from a kill until the gate hears a daemon
        self.unheard = 0  # kills after which none was heard
        self.ended = 0  # daemons that nobody killed
        self._latest: deque[str] = deque(maxlen=8)

    async def kill(self, kind: str) -> None:
        self.counts[kind] += 1
        self._latest.append(kind)
        began_s = time.monotonic()
        match kind:
            case "daemon is killed":
                if self._loop.daemon.has_ended:
                    self.ended += 1
                    self.tell("a daemon has ended by itself")
                self._loop.daemon.kill()
                await asyncio.sleep(self._random.choice((0.0, 0.0, 0.5, 3.0)))
                self._loop.daemon.start()
            case "nats-server is killed":
                with suppress(ProcessLookupError):
                    os.kill(self._bus_pid, signal.SIGKILL)
            case "engine is killed":
                assert self._loop.double is not None
                self._engine_back_s = inf
                self._loop.double.kill()
                self._loop.double.wait()
                await asyncio.to_thread(self._loop.start_double)
                self._engine_back_s = time.monotonic()
            case "client vanishes":
                self.agents.kill_one()
                return
            case "daemon is frozen":
                assert self._loop.daemon.process is not None
                await self._freeze(self._loop.daemon.process.pid)
                began_s = time.monotonic()
            case "nats-server is frozen":
                with suppress(ProcessLookupError):
                    await self._freeze(self._bus_pid)
                began_s = time.monotonic()
            case "both are frozen":
                assert self._loop.daemon.process is not None
                with suppress(ProcessLookupError):
                    await self._freeze(self._bus_pid, self._loop.daemon.process.pid)
                began_s = time.monotonic()
        if self._random.random() < 0.5:  # else the next one comes before this one is over
            while self.watch.mode != "governed" and time.monotonic() < began_s + HEARD_S:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            self.unheard += self.watch.mode != "governed"
            self.recovered_s.append(took_s := time.monotonic() - began_s)
            if took_s > SLOW_S:
                self.tell(f"slow: {took_s:.1f} s until the gate hears a daemon")

    @property
    def ours(self) -> list[str]:
        """Requests that failed, or were refused, though no kill of the engine explains it."""
        seen = self.agents.seen
        failed = [f"{c.program}: {c.problem} after {c.ended_s - c.began_s:.1f} s" for c in seen.cuts if not c.why]
        refused = seen.counts["requests refused with Retry-After"]
        return [*failed, *([f"{refused} refused"] if refused else [])]

    def _why(self, cut: Cut) -> str:
        return "requests whose engine was killed" if self._engine_back_s >= cut.began_s else ""

    def tell(self, what: str) -> None:
        """With what led to it."""
        print(f"{what}; the latest kills: {', '.join(self._latest)}; the daemon's log ends with")
        print("   ", "\n    ".join(self._loop.daemon.log.splitlines()[-12:]), flush=True)

    async def _freeze(self, *pids: int) -> None:
        low, high = FREEZE_S
        for number, then_s in (
            (signal.SIGSTOP, low * (high / low) ** self._random.random()),
            (signal.SIGCONT, 0.0),
        ):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            await asyncio.sleep(then_s)

    @property
    def _bus_pid(self) -> int:
        """Raises ``ProcessLookupError``, as for one that has ended, where no file tells of a server."""
        endpoint = read_endpoint(NODE, self._loop.folder)
        if endpoint is None:
            raise ProcessLookupError
        return endpoint.pid


def _at(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def _tell(name: str, values: list[float]) -> None:
    p50, p999, most = _at(values, 0.5), _at(values, 0.999), max(values, default=0.0)
    print(f"{name}: {len(values)} times, p50 {p50:.2f} s, p99.9 {p999:.2f} s, max {most:.2f} s")


async def soak(kills: int, seed: int, folder: Path) -> int:
    random = Random(seed)
    config = folder / "penstock.toml"
    config.write_text(f'[admission]\npolicy = "fixed"\nwindow = {SLOTS}\n')
    loop = Loop(folder, "penstock", daemon=("--config", str(config)))
    loop.start()
    tools = Tools(folder)
    killer = Killer(loop, seed + 1, random, tools)
    agents, watch = killer.agents, killer.watch
    watching = asyncio.create_task(watch.run())
    began_s = time.monotonic()
    try:
        agents.start()
        for number in range(1, kills + 1):
            await killer.kill(random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0])
            await asyncio.sleep(random.uniform(0.0, 0.6))
            if number % 50 == 0:
                print(f"{number} kills, {time.monotonic() - began_s:.0f} s: {dict(agents.seen.counts)}", flush=True)
        await asyncio.wait_for(agents.stop(), 180)
        lost = False
        unreported = await tools.lost()
    except TimeoutError:
        lost, unreported = True, ""
    finally:
        watching.cancel()
        tools.close()
        killer.ended += loop.daemon.has_ended
        loop.stop()
    seen, ours = agents.seen, killer.ours
    print(f"{kills} kills with seed {seed} in {time.monotonic() - began_s:.0f} s")
    for kind, count in killer.counts.most_common():
        print(f"{count:6}  {kind}")
    told = seen.counts + Counter(cut.why for cut in seen.cuts if cut.why)
    for what, count in sorted(told.items()):
        print(f"{count:6}  {what}")
    print(f"{len(ours):6}  requests that failed by us")
    for problem in ours[:10]:
        print("       ", problem)
    print(f"{'some' if lost else 'no'} program is lost; reports of tools: {unreported or 'none is lost'}")
    print(f"{killer.unheard} times a gate heard no daemon within {HEARD_S:g} s")
    print(f"{killer.ended} daemons ended by themselves")
    _tell("gate without a daemon", watch.open_s)
    _tell("from a kill until the gate hears a daemon", killer.recovered_s)
    print(f"longest wait beside a free slot: {watch.free_s:.1f} s (bound {FREE_SLOT_S:g})")
    broken = ours or lost or unreported or killer.unheard or killer.ended
    return 1 if broken or watch.free_s > FREE_SLOT_S else 0
