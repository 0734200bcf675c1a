"""What is done to a node, what its operator must be told of it, and what he may be told.

A new harm is a method and a line in ``HARMS``.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from random import Random

import psutil
from support.daemon_process import NODE
from support.disks import LoopDisk
from support.floods import ATTACKS, GREETING, HTTP2, Door, tcp, unix
from support.whole_loop import Loop

from controlplane.lab.fleet.agents import Agents
from controlplane.transport.endpoint import read_endpoint

_REQUEST = b"GET /penstock/health HTTP/1.1\r\nHost: localhost\r\n"


class Node:
    """Real processes, and what may be done to them. Each harm lasts ``for_s``, or as long as it takes."""

    def __init__(self, loop: Loop, disk: LoopDisk | None, page: int, api: int, random: Random) -> None:
        self.loop, self.disk, self._random = loop, disk, random
        self.api = f"127.0.0.1:{api}"
        self.agents: Agents | None = None
        self.engine_back_s = -inf  # when it was last there again; infinite while it is away
        self.ended = 0  # processes that nobody killed
        self._doors = {
            "page": tcp(page),
            "control API": tcp(api),
            "agents' socket": lambda: unix(loop.folder / f"{NODE}.sock"),
            "engine's gate": tcp(int(loop.url.rpartition(":")[2])),
        }

    @property
    def bus_pid(self) -> int:
        """Raises ``ProcessLookupError``, as for one that has ended, where no file tells of a server."""
        endpoint = read_endpoint(NODE, self.loop.folder)
        if endpoint is None:
            raise ProcessLookupError
        return endpoint.pid

    @property
    def daemon_pid(self) -> int:
        assert self.loop.daemon.process is not None
        return self.loop.daemon.process.pid

    async def kill_daemon(self, for_s: float) -> None:
        daemon = self.loop.daemon
        with suppress(ProcessLookupError):
            os.kill(self.daemon_pid, signal.SIGKILL)
        while not daemon.has_ended:  # noqa: ASYNC110  a disk that hangs keeps it
            await asyncio.sleep(0.05)
        await asyncio.sleep(self._random.choice((0.0, 0.0, 0.5, 3.0)))
        daemon.start()

    async def kill_bus(self, for_s: float) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.bus_pid, signal.SIGKILL)

    async def kill_engine(self, for_s: float) -> None:
        self.engine_back_s = inf
        await asyncio.to_thread(self.loop.kill_engine)
        await asyncio.to_thread(self.loop.start_double)
        self.engine_back_s = asyncio.get_running_loop().time()

    async def lose_client(self, for_s: float) -> None:
        assert self.agents is not None
        self.agents.kill_one()

    async def freeze_daemon(self, for_s: float) -> str:
        return await freeze([self.daemon_pid], for_s)

    async def freeze_bus(self, for_s: float) -> str:
        with suppress(ProcessLookupError):
            return await freeze([self.bus_pid], for_s)
        return "away"

    def freeze_engine(self, part: str) -> Callable[[float], Awaitable[str]]:
        async def run(for_s: float) -> str:
            with suppress(psutil.Error, AssertionError):  # it is away
                processes = self.loop.engine_processes()
                chosen = [processes[part]] if part else processes.values()
                return await freeze([each.pid for each in chosen], for_s)
            return "away"

        return run

    async def fill_disk(self, for_s: float) -> None:
        assert self.disk is not None
        await asyncio.to_thread(self.disk.fill)
        await asyncio.sleep(for_s)
        await asyncio.to_thread(self.disk.make_room)

    async def hang_disk(self, for_s: float) -> None:
        assert self.disk is not None
        await asyncio.to_thread(self.disk.hang)
        try:
            await asyncio.sleep(for_s)
        finally:
            await asyncio.to_thread(self.disk.go_on)

    def flood(self, at: str) -> Callable[[float], Awaitable[None]]:
        async def run(for_s: float) -> None:
            connect = self._doors.get(at)
            if connect is None:
                endpoint = read_endpoint(NODE, self.loop.folder)
                connect = tcp(int(endpoint.url.rpartition(":")[2]) if endpoint else 1)
            half, whole = _WORDS.get(at, (_REQUEST, _REQUEST + b"\r\n"))
            attack = self._random.choice(list(ATTACKS.values()))
            sockets = await asyncio.to_thread(attack, Door(connect, half, whole))
            if not sockets:  # they came and went
                return
            await asyncio.sleep(min(for_s, _LONGEST_FLOOD_S))
            for sock in sockets:
                sock.close()

        return run

    async def bring_back(self) -> str:
        """What has ended though nobody killed it, and is started again, as by whoever supervises it."""
        ended = []
        if self.loop.daemon.has_ended:
            ended.append("a daemon has ended by itself")
            self.loop.daemon.start()
        if self.loop.engine_has_ended:
            ended.append("an engine has ended by itself")
            await self.kill_engine(0)
        self.ended += len(ended)
        return ", ".join(ended)


_LONGEST_FLOOD_S = 15.0
_MOMENT_S = 10.0
_STOPS_WITHIN_S = 1.0
_WORDS = {
    "agents' socket": (b"\0\0\1\0\1x", GREETING),
    "control API": (HTTP2[:9], HTTP2),
    "bus": (b"CON", b"PING\r\n"),
}


async def freeze(pids: list[int], for_s: float) -> str:
    """What the processes were about when it ended; at once where none stops, as those that have ended already."""
    with stopped(pids):
        await asyncio.sleep(min(for_s, _STOPS_WITHIN_S))
        if any(_state(pid) == psutil.STATUS_STOPPED for pid in pids):
            await asyncio.sleep(max(0.0, for_s - _STOPS_WITHIN_S))
        return ", ".join(f"{pid} {_state(pid)}" for pid in pids)


def _state(pid: int) -> str:
    try:
        return psutil.Process(pid).status()
    except psutil.Error:
        return "gone"


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    try:
        _signal(pids, signal.SIGSTOP)
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """``finding``: what the operator must be told if it lasts for ``at_least_s``; ``may``: what else he may be."""

    weight: float
    do: Callable[[Node], Callable[[float], Awaitable[str | None]]]
    finding: str = ""
    at_least_s: float = inf
    may: frozenset[str] = frozenset()
    decides: bool = True  # the daemon, meanwhile


_ENGINE = frozenset({"engine_down", "gate_down", "no_engine", "window_closed"})
# "frozen" also tells of reading what was missed.
_BUS = frozenset({"bus_away", "frozen", "engine_down", "gate_down", "no_engine"})
_DISK = _BUS | {"snapshot_not_written", "disk_full", "disk_hangs", "failing", "decisions_failing"}
_FLOOD = frozenset({"connections_refused", "files_low"})


def _frozen(part: str, weight: float, finding: str = "engine_down") -> Harm:
    return Harm(
        weight=weight,
        do=lambda node: node.freeze_engine(part),
        finding=finding,
        at_least_s=30,
        may=_ENGINE,
    )


def _flood(at: str, finding: str = "", more: frozenset[str] = frozenset()) -> Harm:
    return Harm(
        weight=0.7,
        do=lambda node: node.flood(at),
        finding=finding,
        at_least_s=_MOMENT_S,  # what comes and goes may be served as a whole
        may=_FLOOD | more,
    )


HARMS = {
    "daemon is killed": Harm(weight=4, do=lambda n: n.kill_daemon, may=_BUS, decides=False),
    "bus is killed": Harm(weight=3, do=lambda n: n.kill_bus, may=_BUS),
    "engine is killed": Harm(
        weight=1, do=lambda n: n.kill_engine, finding="engine_down", at_least_s=30, may=_ENGINE
    ),
    "client vanishes": Harm(weight=3, do=lambda n: n.lose_client),
    "daemon is frozen": Harm(
        weight=3, do=lambda n: n.freeze_daemon, finding="frozen", at_least_s=3, may=_BUS, decides=False
    ),
    "bus is frozen": Harm(weight=3, do=lambda n: n.freeze_bus, finding="bus_away", at_least_s=12, may=_BUS),
    "engine is frozen": _frozen("", 2),
    "engine's server is frozen": _frozen("server", 1, "gate_down"),
    "engine's core is frozen": _frozen("core", 1),
    "engine's detokenizer is frozen": _frozen("detokenizer", 0.5, ""),
    "disk is full": Harm(weight=2, do=lambda n: n.fill_disk, finding="disk_full", at_least_s=15, may=_DISK),
    "disk hangs": Harm(weight=2, do=lambda n: n.hang_disk, finding="disk_hangs", at_least_s=25, may=_DISK),
    "flood of the page": _flood("page", "connections_refused"),
    "flood of the control API": _flood("control API"),
    "flood of the agents' socket": _flood("agents' socket"),
    "flood of the engine's gate": _flood("engine's gate", more=_ENGINE),
    "flood of the bus": _flood("bus", more=_BUS),
}
LINGERS = frozenset({"frozen", "connections_refused", "turns_refused", "events_refused", "events_rejected"})
"""Findings of what happened once: they stay for ten minutes, and tell of the next one by other numbers."""
