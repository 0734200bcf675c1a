"""Faults on purpose: one process of a site after the other is killed or frozen, in an order that follows a seed.

Each is brought back. How long the fleet is without a leader that serves, and what each fault costs whoever sends
requests, is told by kind.
"""

import asyncio
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from random import Random

from controlplane.lab.fleet.agents import Agents, Cut
from controlplane.lab.fleet.processes import Kind, Process
from controlplane.lab.fleet.site import Site

_DOWN_S = (0.0, 0.0, 0.5, 3.0)  # how long a process stays away
_FROZEN_S = (0.5, 6.0)
_WHOLE_WITHIN_S = 90.0
_LOOK_S = 0.05


class Fault(StrEnum):
    """What is done to a site."""

    LEADER_KILLED = "leading daemon killed"
    STANDBY_KILLED = "standby daemon killed"
    NATS_KILLED = "nats-server killed"
    ENGINE_KILLED = "engine killed"
    ENVOY_KILLED = "Envoy killed"
    CLIENT_GONE = "client gone"
    LEADER_FROZEN = "leading daemon frozen"
    NATS_FROZEN = "nats-server frozen"


WEIGHTS = {
    Fault.LEADER_KILLED: 5,
    Fault.STANDBY_KILLED: 2,
    Fault.NATS_KILLED: 4,
    Fault.ENGINE_KILLED: 3,
    Fault.ENVOY_KILLED: 2,
    Fault.CLIENT_GONE: 2,
    Fault.LEADER_FROZEN: 1,
    Fault.NATS_FROZEN: 1,
}


_KILLED = {
    Kind.NATS: Fault.NATS_KILLED,
    Kind.ENGINE: Fault.ENGINE_KILLED,
    Kind.ENVOY: Fault.ENVOY_KILLED,
}
"""What it is to kill one; of a daemon it depends on whether it leads."""


@dataclass(slots=True)
class Account:
    """What faults there were, and how long each took to be over, in seconds."""

    counts: Counter[Fault] = field(default_factory=Counter)
    recovered_s: dict[Fault, list[float]] = field(default_factory=lambda: defaultdict(list))
    never: list[str] = field(default_factory=list)  # what did not come back in time
    over: list[str] = field(default_factory=list)  # each fault after which it was whole again, in a sentence

    def lines(self) -> list[str]:
        """One for each kind."""
        lines = []
        for fault, count in self.counts.most_common():
            took = sorted(self.recovered_s.get(fault, ()))
            p50 = f"p50 {took[len(took) // 2]:.1f} s, most " if len(took) > 1 else ""
            times = f"whole again after {p50}{took[-1]:.1f} s" if took else ""
            lines.append(f"{count:5} {fault:22} {times}".rstrip())
        return [*lines, *self.never]


class Faults:
    """Strikes a site while agents use it."""

    def __init__(self, site: Site, agents: Agents, *, seed: int, patience: float = 0.5) -> None:
        self._patience = patience
        self._site, self._agents, self._random = site, agents, Random(seed)
        self._returning: set[asyncio.Task[None]] = set()
        self.account = Account()
        self.latest = ""

    async def any_one(self) -> Fault:
        """As the seed says; return once the site is whole again, or sooner, as patience says."""
        fault = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        await self.strike(fault, patient=self._random.random() < self._patience)
        return fault

    async def strike(self, fault: Fault, *, patient: bool = True) -> None:
        """Do it, and undo it. ``patient``: until the site is whole again; else an engine comes back by itself."""
        self.account.counts[fault] += 1
        self.latest = str(fault)
        if fault is Fault.CLIENT_GONE:
            self._agents.kill_one()
            return
        process = await self._victim(fault)
        if process is not None:
            await self._strike(fault, process, patient=patient)

    async def by_hand(self, process: Process) -> None:
        """Kill that one, and return once the site is whole again."""
        fault = _KILLED.get(process.kind)
        if fault is None:
            leads = await asyncio.to_thread(self._site.leader) is process
            fault = Fault.LEADER_KILLED if leads else Fault.STANDBY_KILLED
        self.account.counts[fault] += 1
        await self._strike(fault, process, patient=True, counts=True)

    async def _strike(self, fault: Fault, process: Process, *, patient: bool, counts: bool = False) -> None:
        """``counts``: the time until it is whole again is told, though something else was away already."""
        self.latest = f"{fault}: {process.name}"
        began_s, counts = time.monotonic(), counts or not self._returning
        if fault in (Fault.LEADER_FROZEN, Fault.NATS_FROZEN):
            await self._freeze(process)
        else:
            await self.kill(process, patient=patient or fault is not Fault.ENGINE_KILLED)
        if patient and await self.until_whole() and counts:
            took_s = time.monotonic() - began_s
            self.account.recovered_s[fault].append(took_s)
            self.account.over.append(f"{fault}, {process.name}: whole again after {took_s:.1f} s")

    async def kill(self, process: Process, *, patient: bool = True) -> None:
        """Kill one and bring it back. ``patient``: until it is ready, which takes a real engine half a minute."""
        await asyncio.to_thread(process.kill)
        await asyncio.sleep(self._random.choice(_DOWN_S))
        process.start()
        returning = asyncio.create_task(asyncio.to_thread(process.wait))
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)
        if patient:
            await returning

    async def until_whole(self) -> bool:
        """Whether a daemon leads, and Envoy sees every engine, within a time that is long enough for that.

        Raises ``EngineUnavailable`` if an engine that was killed does not start again.
        """
        await asyncio.gather(*self._returning)
        until_s = time.monotonic() + _WHOLE_WITHIN_S
        while lack := await asyncio.to_thread(self._site.lacks):
            if time.monotonic() > until_s:
                self.account.never.append(f"{lack}, {_WHOLE_WITHIN_S:g} s after the latest fault ({self.latest})")
                return False
            self._site.keep()
            await asyncio.sleep(_LOOK_S)
        return True

    async def _freeze(self, process: Process) -> None:
        process.freeze()
        await asyncio.sleep(self._random.uniform(*_FROZEN_S))
        process.thaw()  # and it may end itself, as its loop hung for too long

    async def _victim(self, fault: Fault) -> Process | None:
        match fault:
            case Fault.LEADER_KILLED | Fault.LEADER_FROZEN:
                return await asyncio.to_thread(self._site.leader)
            case Fault.STANDBY_KILLED:
                leader = await asyncio.to_thread(self._site.leader)
                return self._one(Kind.DAEMON, but=leader)
            case Fault.ENGINE_KILLED:
                return self._one(Kind.ENGINE)
            case Fault.ENVOY_KILLED:
                return self._one(Kind.ENVOY)
            case _:
                return self._one(Kind.NATS)

    def _one(self, kind: Kind, *, but: Process | None = None) -> Process | None:
        there = [process for process in self._site.of(kind) if process.alive and process.back_s < inf]
        running = [process for process in there if process is not but]
        return self._random.choice(running) if running else None


class Why(StrEnum):
    """What explains a request that failed."""

    ENGINE = "cut on an engine that was killed"
    ENVOY = "cut with the Envoy that was killed"
    NOTHING = "failed for no such reason"


def why(cut: Cut, site: Site) -> Why:
    """Ask at once: a process knows when it was away last, and no earlier time."""
    if any(engine.back_s >= cut.began_s for engine in site.of(Kind.ENGINE) if engine.kills):
        return Why.ENGINE
    if any(
        envoy.back_s >= cut.began_s
        for envoy in site.of(Kind.ENVOY)
        if envoy.kills and cut.envoy.endswith(envoy.address)
    ):
        return Why.ENVOY
    return Why.NOTHING
