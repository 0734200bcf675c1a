"""The plugin in an engine's HTTP process: the gate and its emitter.

The gate is made before the server has an event loop; it goes to work with the server's first message, and only if
this server's arguments are supported and its hooks are in place. Until a daemon is heard it lets everything pass. A
probe has no gate, only the health page.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from controlplane import clocks
from controlplane.core.model.events import Event
from controlplane.emit.emitter import Emitter
from controlplane.gate import Gate, GateLink, Inbox, Mode
from engine_hooks.engine.board import HealthFile, account
from engine_hooks.engine.settings import GATE, Settings
from engine_hooks.guard import Guard, log


class HttpSide:
    """The gate and what belongs to it. ``why_passive``, ``role`` and ``behind`` are asked when the server starts.

    ``board`` is what the scheduler's process writes on; ``engine`` its name and version. ``behind``: the places of
    several engines that turns can be sent to; none where there is one. ``higher_first``: of the ``priority`` that
    requests have in their body the higher number goes first in this engine.
    """

    def __init__(
        self,
        settings: Settings,
        why_passive: Callable[[], str],
        board: HealthFile,
        engine: tuple[str, str],
        role: Callable[[], str] = lambda: GATE,
        behind: Callable[[], Sequence[str]] = tuple,
        higher_first: Callable[[], bool] = bool,
    ) -> None:
        self.guard = Guard()
        self._health_file = board
        self._engine = engine
        self.gate = Gate(
            send=self._send,
            now_ns=clocks.awake_ns,
            limits=settings.gate,
            tenant_header=settings.tenant_header,
        )
        self._settings = settings
        self._why_passive = why_passive
        self._passive_because = "the server has not started"
        self._loop: asyncio.AbstractEventLoop | None = None
        link = GateLink(self.gate, send=self._send, publisher=lambda: self._emitter.publisher)
        self._inbox = Inbox(link.receive, now_ns=clocks.awake_ns)
        self._role = role
        self._behind = behind
        self._higher_first = higher_first
        self._emitter = Emitter(
            url=settings.bus,
            node=settings.node,
            role=GATE,
            on_command=self._inbox.post,
            on_heartbeat=self._inbox.post,
        )

    def middleware(self, paths: Iterable[str]) -> dict[str, Any]:
        """What its ``GateMiddleware`` is made with, which gates these paths."""
        asked = {"paths": frozenset(paths), "on_loop": self.start, "health": self.health}
        more = {"continuity": self._settings.continuity, "repairs": self._settings.repairs}
        return {"gate": self.gate, **more, **asked}

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """The server's event loop runs: listen to the daemon, unless something speaks against it."""
        self.guard.run("start", self._start, loop)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._passive_because = "its start failed"
        self._passive_because = self._why_passive()
        if self._passive_because:
            log.warning("penstock: the gate is passive: %s", self._passive_because)
            return
        self._loop = loop
        self.gate.places.behind(self._behind())
        self.gate.hints.higher_first = self._higher_first()
        self._inbox.attach(loop)
        self._emitter.start(role=self._role())  # its port is known by now
        log.info("penstock: gate ready, node %s, %s %s", self._settings.node, *self._engine)

    def terminating(self, result: Any, saved: Any, *args: Any) -> None:
        """SIGTERM: the engine drains and ends, so nothing held can run any more."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.guard.run, "close", self._close)

    def _close(self) -> None:
        if self.gate.health()["mode"] != Mode.PASSIVE:  # else nothing is held, and the engine drains as ever
            self.gate.close()

    def health(self) -> object:
        """What ``GET /penstock/health`` shows."""
        report = account(self.guard, self._emitter)
        return {
            **self.gate.health(),
            "plugin": {
                **_plugin(self._settings, self._engine),
                "role": self._role(),
                "passive_because": self._passive_because,
                "hook_failures": report["hook_failures"],
            },
            "emitter": report["emitter"],
            "scheduler": self._health_file.read(),
            **self._ranks(),
        }

    def _ranks(self) -> dict[str, object]:
        """What each of several schedulers tells; their first is what pages of one scheduler show."""
        report = {place: self._health_file.read(slot) for slot, place in enumerate(self._behind())}
        return {"schedulers": report, "placed_programs": self.gate.places.programs()} if report else {}

    def _send(self, event: Event, urgent: bool) -> None:
        self._emitter.emit(event, urgent)


def probe_health(
    settings: Settings, guard: Guard, engine: tuple[str, str], why_passive: Callable[[], str], board: HealthFile
) -> Callable[[], object]:
    """What a probe's health page shows: what it does, it does in the scheduler's process, which tells of it."""

    def health() -> object:
        return {
            "mode": str(settings.mode),
            "plugin": {
                **_plugin(settings, engine),
                "passive_because": why_passive(),
                "hook_failures": dict(guard.failures),
            },
            "scheduler": board.read(),
        }

    return health


def _plugin(settings: Settings, engine: tuple[str, str]) -> dict[str, str]:
    name, version = engine
    return {"mode": str(settings.mode), "node": settings.node, name: version}
