"""The plugin in SGLang's HTTP process: the gate, its emitter, and the hook that carries identities on.

The gate is made before the server has an event loop; it goes to work with the server's first message, and only if
this server's arguments are supported and its hooks were bound. Until a daemon is heard it lets everything pass.
"""

import asyncio
import functools
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from controlplane.core.events import Event
from controlplane.emit.emitter import Emitter
from controlplane.gate import Gate, GateLink, GateMiddleware, Inbox, Mode
from engine_hooks.sglang.carrier import carrier
from engine_hooks.sglang.guard import Guard, log
from engine_hooks.sglang.settings import Settings
from engine_hooks.sglang.targets import GENERATE, TERMINATE, Feature
from engine_hooks.sglang.verify import sglang_version, unbound, unproven

_ROLE = "gate"
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+(?=@)")


class HttpSide:
    """The gate and what belongs to it. ``why_passive`` is asked once, when the server starts."""

    def __init__(self, settings: Settings, why_passive: Callable[[], str]) -> None:
        self.guard = Guard()
        self.gate = Gate(send=self._send, now_ns=time.monotonic_ns, limits=settings.gate)
        self._settings = settings
        self._why_passive = why_passive
        self._passive_because = "the server has not started"
        self._loop: asyncio.AbstractEventLoop | None = None
        link = GateLink(self.gate, send=self._send, publisher=lambda: self._emitter.publisher)
        self._inbox = Inbox(link.receive, now_ns=time.monotonic_ns)
        self._emitter = Emitter(
            url=settings.bus,
            node=settings.node,
            role=_ROLE,
            on_command=self._inbox.post,
            on_heartbeat=self._inbox.post,
        )

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
        self._inbox.attach(loop)
        self._emitter.start()
        log.info("penstock: gate ready, node %s, SGLang %s", self._settings.node, sglang_version())

    def terminating(self, result: Any, kept: Any, *args: Any) -> None:
        """SIGTERM: the engine drains and ends, so nothing held can run any more."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.guard.run, "close", self._close)

    def _close(self) -> None:
        if self.gate.health()["mode"] != Mode.PASSIVE:  # else nothing is held, and SGLang drains as it always did
            self.gate.close()

    def health(self) -> object:
        """What ``GET /penstock/health`` shows. No password of the bus is in it."""
        stats = asdict(self._emitter.stats)
        stats["last_error"] = _PASSWORD.sub("***", stats["last_error"])
        return {
            **self.gate.health(),
            "plugin": {
                "mode": str(self._settings.mode),
                "node": self._settings.node,
                "sglang": sglang_version(),
                "passive_because": self._passive_because,
                "hook_failures": dict(self.guard.failures),
            },
            "emitter": stats,
        }

    def _send(self, event: Event, urgent: bool) -> None:
        self._emitter.emit(event, urgent)


def install(settings: Settings, *, gated: bool = True) -> HttpSide | None:
    """Register the HTTP process's hooks, and the gate where ``gated``; SGLang must be importable.

    Raises whatever is wrong with this SGLang before anything is changed.
    """
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if not gated:
        HookRegistry.register(GENERATE, carrier(GenerateReqInput, Guard()), HookType.AROUND)
        return None

    from sglang.srt.entrypoints.http_server import app

    hooks: dict[str, Callable[..., Any]] = {}
    side = HttpSide(settings, functools.partial(_why_passive, app, hooks))
    hooks[GENERATE] = carrier(GenerateReqInput, side.guard)
    hooks[TERMINATE] = side.guard.around("sigterm_handler", after=side.terminating)
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)
    app.add_middleware(GateMiddleware, gate=side.gate, on_loop=side.start, health=side.health)
    return side


def _why_passive(app: Any, hooks: dict[str, Callable[..., Any]]) -> str:
    """Why the gate must not hold anything on this server; empty if it may."""
    problems = unbound(hooks, Feature.GATE)
    if problems:
        return problems[0].message
    return unproven(getattr(app, "server_args", None))
