"""``penstock fleet demo``: a whole fleet on one machine, agents that use it, and a key that kills each process."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from controlplane.lab.fleet.agents import Agents, Seen
from controlplane.lab.fleet.faults import Account, Faults, Why, why
from controlplane.lab.fleet.processes import Process
from controlplane.lab.fleet.site import Site, SiteOptions, running_site
from controlplane.lab.fleet.submitted import turns_submitted

_LOOK_S = 0.5
_LINE_EVERY_S = 5.0
_LOST_AFTER_S = 180.0  # a program that has not ended so long after the last fault
_KEYS = "abcdefghijklmnoprstuvwxyz"  # q ends


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDemoOptions:
    """What the command line says."""

    agents: int = 12
    seconds: float = 60.0  # 0: until q or Ctrl-C
    kills: int = 0  # so many faults and no time; 0: the time counts
    kill_every_s: float = 0.0  # 0: only by keys
    patience: float = 0.5  # the share of faults after which nothing happens until the site is whole again
    seed: int = 1
    folder: Path | None = None  # where logs stay
    site: SiteOptions = field(default_factory=SiteOptions)


@dataclass(slots=True, kw_only=True)
class Result:
    """What became of a run."""

    seen: Seen
    account: Account
    lost: int  # programs that did not end
    twice: int  # requests that engines ran more often than they were sent
    ways: Counter[str]  # requests by the way that they took through Envoy, since each began last
    ends: dict[str, int]  # by name, how often a process ended by itself
    took_s: float

    @property
    def ours(self) -> list[str]:
        """Requests that failed for no reason that a fault of an engine or an Envoy gives."""
        return [f"{cut.program}: {cut.problem}" for cut in self.seen.cuts if cut.why == Why.NOTHING]

    @property
    def is_good(self) -> bool:
        return not (self.ours or self.lost or self.twice or self.account.never)

    def lines(self) -> list[str]:
        """As a report."""
        ttft = sorted(self.seen.ttft_s)
        lines = [f"{sum(self.account.counts.values())} faults in {self.took_s:.0f} s", *self.account.lines()]
        lines += [f"{count:5} ends of {name} by itself" for name, count in self.ends.items() if count]
        lines += [f"{count:5} {what}" for what, count in sorted(self.seen.counts.items())]
        lines += [
            f"{count:5} requests {reason}" for reason, count in Counter(c.why for c in self.seen.cuts).items()
        ]
        lines += [f"      {problem[:160]}" for problem in self.ours[:10]]
        lines.append(
            f"{self.ways['asking']} requests asked for by the Envoys that run, {self.ways['around']} around"
        )
        if ttft:
            lines.append(f"first token after p50 {_at(ttft, 0.5):.2f} s, p99 {_at(ttft, 0.99):.2f} s")
        lines.append(f"{self.lost or 'no'} program lost, {self.twice or 'no'} request run twice")
        return lines


def run_fleet_demo(options: FleetDemoOptions, console: Console | None = None) -> Result:
    """Start the site, show it until it is over, and tell what happened. Raises ``ControlPlaneError``."""
    console = console or Console(highlight=False)
    what = "engines" if options.site.real else "engine doubles"
    console.print(f"Starting a NATS cluster, {what}, fleet daemons and Envoys ...")
    with running_site(options.site, options.folder) as site:
        result = asyncio.run(_run(options, site, console))
    for line in result.lines():
        console.print(line)
    return result


async def _run(options: FleetDemoOptions, site: Site, console: Console) -> Result:
    agents = Agents(site.urls, count=options.agents, seed=options.seed + 1, why=partial(why, site=site))
    faults = Faults(site, agents, seed=options.seed, patience=options.patience)
    screen = _Screen(site, agents, faults, console)
    began_s = time.monotonic()
    agents.start()
    with screen.shown():
        showing = asyncio.create_task(screen.show())
        striking = asyncio.create_task(_strike(options, faults))
        try:
            ending = {striking} if options.kills else {asyncio.create_task(screen.until_quit(options.seconds))}
            await asyncio.wait(ending)
            if options.kills:
                striking.result()
            striking.cancel()
            await asyncio.wait([striking])
            await faults.until_whole()
            screen.note = "no more faults: programs end"
            try:
                await asyncio.wait_for(agents.stop(), _LOST_AFTER_S)
                lost = 0
            except TimeoutError:
                lost = agents.running
        finally:
            showing.cancel()
            await agents.drop()
    submitted = await turns_submitted(site.nats_url, [engine.name for engine in site.engines])
    twice = sum(max(0, count - agents.seen.asked[name]) for name, count in submitted.items())
    return Result(
        seen=agents.seen,
        account=faults.account,
        lost=lost,
        twice=twice,
        ways=site.ways(),
        ends={process.name: process.ends for process in site.processes.values()},
        took_s=time.monotonic() - began_s,
    )


async def _strike(options: FleetDemoOptions, faults: Faults) -> None:
    """The faults that the options ask for."""
    struck = 0
    while not options.kills or struck < options.kills:
        if not options.kill_every_s and not options.kills:
            await asyncio.sleep(3600)
            continue
        await asyncio.sleep(options.kill_every_s or 0.3)
        await faults.any_one()
        struck += 1


class _Screen:
    """A table on a terminal that is redrawn; lines elsewhere."""

    def __init__(self, site: Site, agents: Agents, faults: Faults, console: Console) -> None:
        self.note = ""
        self._site, self._agents, self._faults, self._console = site, agents, faults, console
        self._by_key = dict(zip(_KEYS, site.processes.values(), strict=False))
        self._reported = 0
        self._quit = asyncio.Event()
        self._killing: set[asyncio.Task[None]] = set()
        self._live: Live | None = None

    async def until_quit(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._quit.wait(), seconds or None)
        except TimeoutError:
            return

    @contextmanager
    def shown(self) -> Iterator[None]:
        if not (self._console.is_terminal and sys.stdin.isatty()):
            yield
            return
        import termios
        import tty

        before = termios.tcgetattr(sys.stdin)
        loop = asyncio.get_running_loop()
        tty.setcbreak(sys.stdin)
        loop.add_reader(sys.stdin, self._key)
        try:
            with Live(console=self._console, auto_refresh=False, transient=True) as self._live:
                yield
        finally:
            loop.remove_reader(sys.stdin)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

    def _key(self) -> None:
        key = sys.stdin.read(1)
        if key == "q":
            self._quit.set()
        elif (process := self._by_key.get(key)) is not None and process.alive:
            self._faults.latest = f"by key: {process.name}"
            task = asyncio.get_running_loop().create_task(self._faults.kill(process))
            self._killing.add(task)
            task.add_done_callback(self._killing.discard)

    async def show(self) -> None:
        last_s = 0.0
        while True:
            leader = await asyncio.to_thread(self._site.leader)
            self._site.keep()
            if self._live is not None:
                self._live.update(self._table(leader), refresh=True)
            elif time.monotonic() - last_s >= _LINE_EVERY_S:
                last_s = time.monotonic()
                for line in self._news():
                    self._console.print(line, soft_wrap=True)
                self._console.print(
                    f"{leader.name if leader else 'nobody'} leads; {self._counts()}", soft_wrap=True
                )
            await asyncio.sleep(_LOOK_S)

    def _news(self) -> list[str]:
        """What should not be, as soon as it is known."""
        bad = [
            f"{c.program} through {c.envoy}: {c.problem}" for c in self._agents.seen.cuts if c.why == Why.NOTHING
        ]
        bad += self._faults.account.never
        news, self._reported = bad[self._reported :], len(bad)
        return [f"!! {each}" for each in news]

    def _counts(self) -> str:
        seen = self._agents.seen
        lines = [f"{self._agents.running} programs run", f"{seen.counts['programs that ended']} ended"]
        lines += [f"{seen.counts['requests answered']} requests answered"]
        lines += [f"{count} {reason}" for reason, count in Counter(cut.why for cut in seen.cuts).items()]
        lines.append(f"{sum(self._faults.account.counts.values())} faults")
        return ", ".join([*lines, f"latest fault: {self._faults.latest or 'none'}"])

    def _table(self, leader: Process | None) -> Group:
        table = Table("key", "process", "", "pid", "MiB", "killed", box=None, header_style="dim")
        for key, process in self._by_key.items():
            state = "frozen" if process.frozen else "runs" if process.alive else "dead"
            style = {"runs": "green", "frozen": "yellow", "dead": "red"}[state]
            label = Text("leads" if process is leader else state, style=style)
            memory = f"{process.resident_bytes() / (1 << 20):.0f}"
            table.add_row(key, process.name, label, str(process.pid or ""), memory, str(process.kills or ""))
        note = self.note or "a key kills that process, which comes back; q ends"
        return Group(table, Text(self._counts()), Text(note, style="dim"))


def _at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]
