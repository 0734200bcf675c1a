"""``python -m tests.kills --kills 1000``: real processes under load are killed, frozen and flooded; disks fail.

Daemon, nats-server, engine and clients, alone or two at once, in an order that follows from the seed, for so many
harms or ``--minutes``. Every other program reports its tools through the daemon's socket. Exits with 1 when a
request failed that no kill of its engine or client explains, or a program or a report was lost; with 2 when a turn
waited beside an idle engine for too long, a gate did not hear its daemon again, the window jumped, or the operator
was not told of what was done, or of what was not.
"""

# ruff: noqa: T201 - what a command prints

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import aiohttp
from support.daemon_process import NODE
from support.disks import LoopDisk
from support.ports import free_port
from support.real_engine import ELSEWHERE, RealEngine
from support.whole_loop import Loop

from controlplane.emit.tool_reporter import ToolReporter
from controlplane.lab.fleet.agents import Agents, Cut

from .harms import HARMS, Node
from .told import Done, Operator

DOUBLE = "double"
POOL_TOKENS = {DOUBLE: 16_000, "sglang": 480, "vllm": 480}  # so few that programs wait for each other
CLIENTS = 10
FILES = 1024  # that the daemon may open: fewer than the connections of a flood
DISK_BYTES = 4 << 30  # the stream may take one of them
IDLE_ENGINE_S = 75.0  # failure-rules.md: the longest that anybody waits beside a free slot while faults go on
HEARD_S = 120.0  # within which a gate hears a daemon after a kill, while no other follows
SLOW_S = 20.0  # a gate that does not hear a daemon for so long after a kill is told with what led to it
ENDS_S = 600.0  # within which all clients end once nothing is done any more
REQUEST_S = 900.0  # longer than any harm: clients are patient
SHORTEST_S, LONGEST_S = 0.5, 90.0  # on both sides of what the daemon takes for the end of its server
TWO_AT_ONCE = 0.2


class Watch:
    """Looks at the gate ten times a second."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.idle_s = 0.0  # the longest time that a turn waited while the engine ran none
        self.open_s: list[float] = []  # each time that the gate was without a daemon
        self.mode = ""

    async def run(self) -> None:
        idle_since = open_since = None
        timeout = aiohttp.ClientTimeout(total=2)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                await asyncio.sleep(0.1)
                now_s = time.monotonic()
                try:
                    async with session.get(f"{self._url}/penstock/health") as answer:
                        health = await answer.json()
                except (aiohttp.ClientError, TimeoutError, OSError):
                    idle_since = open_since = None  # the engine is down, and its gate with it
                    self.mode = ""
                    continue
                self.mode = health["mode"]
                idle = health["held_turns"] and not health["running_turns"]
                idle_since = (idle_since or now_s) if idle else None
                if idle_since is not None:
                    self.idle_s = max(self.idle_s, now_s - idle_since)
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
    """One harm after the other, or two at once."""

    def __init__(
        self, node: Node, seed: int, random: Random, tools: Tools, *, engine: str, longest_s: float
    ) -> None:
        loop = node.loop
        self._node, self._random, self._longest_s = node, random, longest_s
        self.watch = Watch(loop.url)
        self.operator = Operator(node.api)
        self.agents = node.agents = Agents(
            [loop.url], count=CLIENTS, seed=seed, why=self._why, tool=tools.of, longest_s=REQUEST_S
        )
        parts = set(loop.engine_processes())
        left_out = {"server", "core", "detokenizer"} - (parts if len(parts) > 1 else set())
        self._weights = {
            name: harm.weight
            for name, harm in HARMS.items()
            if name not in {f"engine's {part} is frozen" for part in left_out}
            and (node.disk is not None or not name.startswith("disk"))
        }
        if engine != DOUBLE:
            self._weights["engine is killed"] /= 3  # each takes a minute
        self.recovered_s: list[float] = []  # from a harm's end until the gate hears a daemon
        self.unheard = 0  # harms after which none was heard
        self._latest: deque[str] = deque(maxlen=8)

    async def harm(self) -> None:
        """Do one, or two at once."""
        if ended := await self._node.bring_back():
            self.tell(ended)
        names = random_names(self._random, self._weights, 2 if self._random.random() < TWO_AT_ONCE else 1)
        for_s = SHORTEST_S * (self._longest_s / SHORTEST_S) ** self._random.random()
        is_alone = len(names) == 1 and self.watch.mode == "governed"
        await asyncio.gather(*(self._do(name, for_s, is_alone=is_alone) for name in names))
        ended_s = time.monotonic()
        if names != ["client vanishes"] and self._random.random() < 0.7:  # else the next comes before this is over
            while self.watch.mode != "governed" and time.monotonic() < ended_s + HEARD_S:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            self.unheard += self.watch.mode != "governed"
            self.recovered_s.append(took_s := time.monotonic() - ended_s)
            if took_s > SLOW_S:
                self.tell(f"slow: {took_s:.1f} s until the gate hears a daemon")

    async def _do(self, name: str, for_s: float, *, is_alone: bool) -> None:
        self._latest.append(f"{name} ({for_s:.1f} s)")
        done = Done(name=name, began_s=time.monotonic(), is_alone=is_alone)
        self.operator.done.append(done)
        done.note = await HARMS[name].do(self._node)(for_s) or ""
        done.ended_s = time.monotonic()

    @property
    def ours(self) -> list[str]:
        """Requests that failed, or were refused, though no kill of the engine explains it."""
        seen = self.agents.seen
        failed = [f"{c.program}: {c.problem} after {c.ended_s - c.began_s:.1f} s" for c in seen.cuts if not c.why]
        refused = seen.counts["requests refused with Retry-After"]
        return [*failed, *([f"{refused} refused"] if refused else [])]

    def _why(self, cut: Cut) -> str:
        why = "requests whose engine was killed" if self._node.engine_back_s >= cut.began_s else ""
        if not why:
            self.tell(f"a request failed: {cut.problem}")
        return why

    def tell(self, what: str) -> None:
        """With what led to it."""
        print(f"{what}; the latest harms: {', '.join(self._latest)}; the daemon's log ends with")
        print("   ", "\n    ".join(self._node.loop.daemon.log.splitlines()[-12:]), flush=True)


def random_names(random: Random, weights: dict[str, float], count: int) -> list[str]:
    """Different ones, the heavier the likelier."""
    found: list[str] = []
    while len(found) < count:
        left = {name: weight for name, weight in weights.items() if name not in found}
        found += random.choices(list(left), list(left.values()))
    return found


def _at(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def _tell(name: str, values: list[float]) -> None:
    p50, p999, most = _at(values, 0.5), _at(values, 0.999), max(values, default=0.0)
    print(f"{name}: {len(values)} times, p50 {p50:.2f} s, p99.9 {p999:.2f} s, max {most:.2f} s")


def _node(folder: Path, engine: str, random: Random, ending: ExitStack) -> Node:
    """Started, with its state on a disk of its own where one may be mounted."""
    page, api = free_port(), free_port()
    config = folder / "penstock.toml"
    listening = f'[http]\nlisten = "127.0.0.1:{page}"\n[api]\nlisten = "127.0.0.1:{api}"\n'
    config.write_text(ELSEWHERE + listening)
    try:
        disk = LoopDisk(folder / "disk.img", folder / "disk", size=DISK_BYTES)
        ending.callback(disk.close)
    except OSError as error:
        print(f"no harm is done to the disk: {error}")
        disk = None
    state = (disk.folder if disk else folder) / "state"
    more = {"daemon": ("--config", str(config)), "logs": folder, "files": FILES, "pool_tokens": POOL_TOKENS[engine]}
    loop = Loop(state, "penstock", time_scale=1, **more) if engine == DOUBLE else RealEngine(state, engine, **more)
    ending.callback(loop.stop)
    loop.start()
    return Node(loop, disk, page, api, random)


async def soak(
    kills: int, seed: int, folder: Path, *, engine: str = DOUBLE, minutes: float = 0, longest_s: float = LONGEST_S
) -> int:
    random = Random(seed)
    with ExitStack() as ending:
        node = _node(folder, engine, random, ending)
        tools = Tools(node.loop.folder)
        ending.callback(tools.close)
        killer = Killer(node, seed + 1, random, tools, engine=engine, longest_s=longest_s)
        watching = [asyncio.create_task(each.run()) for each in (killer.watch, killer.operator)]
        began_s, told_s, count, unreported = time.monotonic(), 0.0, 0, ""
        killer.agents.start()
        while (time.monotonic() - began_s < 60 * minutes) if minutes else (count < kills):
            await killer.harm()
            count += 1
            await asyncio.sleep(random.uniform(0.0, 2.0))
            if (now_s := time.monotonic() - began_s) > told_s + 60:
                told_s = now_s
                print(f"{count} harms, {now_s:.0f} s: {dict(killer.agents.seen.counts)}", flush=True)
        try:
            await asyncio.wait_for(killer.agents.stop(), ENDS_S)
            lost = 0
            unreported = await tools.lost()
        except TimeoutError:
            lost = killer.agents.running
        for each in watching:
            each.cancel()
        await asyncio.wait(watching)
        assert all(each.cancelled() for each in watching), watching
        if ended := await node.bring_back():
            killer.tell(ended)
    print(f"{count} times harmed with seed {seed} in {time.monotonic() - began_s:.0f} s, engine: {engine}")
    return _report(killer, node, lost, unreported)


def _report(killer: Killer, node: Node, lost: int, unreported: str) -> int:
    """Print it. The exit status: 1, or 2 where only that did not hold which is judged by a clock."""
    seen, ours, operator, watch = killer.agents.seen, killer.ours, killer.operator, killer.watch
    told = seen.counts + Counter(cut.why for cut in seen.cuts if cut.why)
    for what, count in sorted(told.items()):
        print(f"{count:6}  {what}")
    print(f"{len(ours):6}  requests that failed by us")
    for problem in ours[:10]:
        print("       ", problem)
    print(f"{lost:6}  programs lost; reports of tools: {unreported or 'none is lost'}")
    print(f"{killer.unheard:6}  times a gate heard no daemon within {HEARD_S:g} s")
    print(f"{node.ended:6}  daemons and engines ended by themselves")
    _tell("gate without a daemon", watch.open_s)
    _tell("from a harm's end until the gate hears a daemon", killer.recovered_s)
    print(f"longest wait beside an idle engine: {watch.idle_s:.1f} s (bound {IDLE_ENGINE_S:g})")
    print("status was not answered:", *(f"{n:6}  {why}" for why, n in operator.unanswered.most_common(8)), sep="\n")
    jumps = list(operator.jumps())
    windows = [each.window for each in operator.looks]
    print(f"window: {min(windows):.1f} to {max(windows):.1f} in {len(windows)} looks, {len(jumps)} jumps")
    print(*(f"    {each}" for each in [*jumps, *operator.windows()]), sep="\n")
    table, untold = operator.table()
    print(*table, sep="\n")
    causeless = list(operator.without_cause())
    print(f"{len(causeless):6}  times told without cause", *(f"    {each}" for each in causeless), sep="\n")
    if ours or lost or unreported or node.ended:
        return 1
    return 2 if killer.unheard or jumps or untold or causeless or watch.idle_s > IDLE_ENGINE_S else 0
