"""``penstock fleet demo``: a whole fleet on one machine, agents that use it, and a key that kills each process."""

import asyncio
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from signal import SIGINT
from tempfile import mkdtemp

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from controlplane.eventloop import on_signals
from controlplane.lab.fleet.agents import Agents, Seen
from controlplane.lab.fleet.faults import Account, Faults, Why, why
from controlplane.lab.fleet.processes import Process
from controlplane.lab.fleet.site import Site, SiteOptions, running_site
from controlplane.lab.fleet.submitted import turns_submitted
from controlplane.lab.surroundings import undisturbed

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
    kill_every_s: float = 0.0  # 0: only by key
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
    stopped: bool  # by Ctrl-C, before programs had ended: none is counted as lost or run twice

    @property
    def ours(self) -> list[str]:
        """Requests that failed for no reason that a fault of an engine or an Envoy gives."""
        return [f"{cut.program}: {cut.problem}" for cut in self.seen.cuts if cut.why == Why.NOTHING]

    @property
    def is_good(self) -> bool:
        return not (self.ours or self.lost or self.twice or self.account.never)

    def lines(self) -> list[str]:
        """As a report, the verdict first."""
        ttft = sorted(self.seen.ttft_s)
        count = sum(self.account.counts.values())
        faults = f"{count} {'fault' if count == 1 else 'faults'} in {self.took_s:.0f} s"
        lines = [f"{faults}: {self._verdict}", *self.account.lines()]
        lines += [f"{count:5} ends of {name} by itself" for name, count in self.ends.items() if count]
        lines += [f"{count:5} {what}" for what, count in sorted(self.seen.counts.items())]
        lines += [
            f"{count:5} requests {reason}" for reason, count in Counter(c.why for c in self.seen.cuts).items()
        ]
        lines += [f"      {problem[:160]}" for problem in self.ours[:10]]
        asked, around = self.ways["asking"], self.ways["around"]
        lines.append(f"{asked} requests asked a fleet daemon, {around} went around it, since each Envoy began last")
        if ttft:
            lines.append(f"first token after p50 {_at(ttft, 0.5):.2f} s, p99 {_at(ttft, 0.99):.2f} s")
        return lines

    @property
    def _verdict(self) -> str:
        if self.stopped:
            return "stopped before every program had ended, so none is counted as lost"
        return f"{self.lost or 'no'} program lost, {self.twice or 'no'} request run twice"


def run_fleet_demo(options: FleetDemoOptions, console: Console | None = None) -> Result:
    """Start the site, show it until it is over, and tell what happened. Raises ``ControlPlaneError``.

    Logs that nobody asked for stay only where something went wrong.
    """
    console = console or Console(highlight=False)
    folder = options.folder or Path(mkdtemp(prefix="penstock-fleet-demo-"))
    is_good = False
    try:
        with undisturbed(), _started(options.site, folder, console) as site:
            result = asyncio.run(_run(options, site, console))
            console.print("Ending all processes ...")
        is_good = result.is_good
    except (KeyboardInterrupt, SystemExit):
        is_good = True  # whoever ended it asks for no logs
        raise
    finally:
        if is_good and options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            console.print(f"Logs of each process: {folder}", soft_wrap=True)
    for line in result.lines():
        console.print(line, soft_wrap=True)
    return result


@contextmanager
def _started(options: SiteOptions, folder: Path, console: Console) -> Iterator[Site]:
    """A site; what of it is there is told."""
    began_s = time.monotonic()
    what = "engines" if options.real else "engine doubles"
    often = "" if options.real else ", some 10 s"
    console.print(f"Starting a NATS cluster, {what}, fleet daemons and Envoys{often} ...")

    def told(line: str) -> None:
        console.print(f"{time.monotonic() - began_s:5.1f} s  {line}")

    with running_site(options, folder, told) as site:
        yield site


async def _run(options: FleetDemoOptions, site: Site, console: Console) -> Result:
    agents = Agents(site.urls, count=options.agents, seed=options.seed + 1, why=partial(why, site=site))
    faults = Faults(site, agents, seed=options.seed, patience=options.patience)
    screen = _Screen(site, agents, faults, console)
    interrupted = asyncio.Event()
    listening = asyncio.create_task(on_signals(lambda _: interrupted.set(), SIGINT))
    began_s = time.monotonic()
    agents.start()
    with screen.shown():
        showing = asyncio.create_task(screen.show())
        working = asyncio.create_task(_until_over(options, agents, faults, screen))
        stopping = asyncio.create_task(interrupted.wait())
        try:
            await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
            stopped = not working.done()
            lost = 0 if stopped else working.result()
        finally:
            for task in (showing, working, stopping, listening):
                task.cancel()
            await asyncio.gather(showing, working, stopping, listening, return_exceptions=True)
            await agents.drop()
    submitted = {} if stopped else await turns_submitted(site.nats_url, [engine.name for engine in site.engines])
    twice = sum(max(0, count - agents.seen.asked[name]) for name, count in submitted.items())
    return Result(
        seen=agents.seen,
        account=faults.account,
        lost=lost,
        twice=twice,
        ways=site.ways(),
        ends={process.name: process.ends for process in site.processes.values()},
        took_s=time.monotonic() - began_s,
        stopped=stopped,
    )


async def _until_over(options: FleetDemoOptions, agents: Agents, faults: Faults, screen: "_Screen") -> int:
    """Faults, then the end of each program; how many did not end."""
    striking = asyncio.create_task(_strike(options, faults))
    quitting = asyncio.create_task(screen.until_quit(0 if options.kills else options.seconds))
    try:
        await asyncio.wait([striking, quitting], return_when=asyncio.FIRST_COMPLETED)
        if striking.done():
            striking.result()
    finally:
        striking.cancel()
        quitting.cancel()
    await asyncio.gather(striking, quitting, return_exceptions=True)
    screen.note = "no more faults: programs end"
    await faults.until_whole()
    try:
        await asyncio.wait_for(agents.stop(), _LOST_AFTER_S)
    except TimeoutError:
        return agents.running
    return 0


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
        self._told = [0, 0, 0]  # lines of each kind of news
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
            task = asyncio.get_running_loop().create_task(self._faults.by_hand(process))
            self._killing.add(task)
            task.add_done_callback(self._killing.discard)

    async def show(self) -> None:
        last_s = 0.0
        while True:
            leader = await asyncio.to_thread(self._site.leader)
            self._site.keep()
            for line in self._news():
                self._console.print(line, soft_wrap=True)
            if self._live is not None:
                self._live.update(self._table(leader), refresh=True)
            elif time.monotonic() - last_s >= _LINE_EVERY_S:
                last_s = time.monotonic()
                self._console.print(
                    f"{leader.name if leader else 'nobody'} leads; {self._counts()}", soft_wrap=True
                )
            await asyncio.sleep(_LOOK_S)

    def _news(self) -> list[str]:
        """What is over, and what should not be, as soon as it is known."""
        cuts = [cut for cut in self._agents.seen.cuts if cut.why == Why.NOTHING]
        account = self._faults.account
        known = (
            account.over,
            [f"!! {cut.program} through {cut.envoy}: {cut.problem}" for cut in cuts],
            [f"!! {line}" for line in account.never],
        )
        news = [line for lines, told in zip(known, self._told, strict=True) for line in lines[told:]]
        self._told = [len(lines) for lines in known]
        return news

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
