"""The plugin in SGLang's HTTP process: the gate, its emitter, and the hook that carries identities on.

The gate is made before the server has an event loop; it goes to work with the server's first message, and only if
this server's arguments are supported and its hooks were bound. Until a daemon is heard it lets everything pass. A
probe has no gate, only the hook and the health page.
"""

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any

from controlplane.core.events import Event
from controlplane.emit.emitter import Emitter
from controlplane.gate import GATED_PATHS, Continuity, Gate, GateLink, GateMiddleware, HealthPage, Inbox, Mode
from engine_hooks.guard import Guard, log
from engine_hooks.sglang.board import Board, account
from engine_hooks.sglang.carrier import carrier
from engine_hooks.sglang.settings import GATE, Settings, role_of
from engine_hooks.sglang.targets import GENERATE, TERMINATE, Feature
from engine_hooks.sglang.verify import sglang_version, unbound, unproven

# The functions of SGLang's server that generate: some of their paths are set by the environment.
_GENERATING = frozenset(
    {
        "anthropic_v1_messages",
        "generate_request",
        "ollama_chat",
        "ollama_generate",
        "openai_v1_chat_completions",
        "openai_v1_completions",
        "sagemaker_chat_completions",
        "v1_responses_request",
        "vertex_generate",
    }
)


class HttpSide:
    """The gate and what belongs to it. ``why_passive`` and ``role`` are asked once, when the server starts.

    ``board`` is what the scheduler's process writes on.
    """

    def __init__(
        self,
        settings: Settings,
        why_passive: Callable[[], str],
        board: Board,
        role: Callable[[], str] = lambda: GATE,
    ) -> None:
        self.guard = Guard()
        self._board = board
        self.gate = Gate(send=self._send, now_ns=time.monotonic_ns, limits=settings.gate)
        self._settings = settings
        self._why_passive = why_passive
        self._passive_because = "the server has not started"
        self._loop: asyncio.AbstractEventLoop | None = None
        link = GateLink(self.gate, send=self._send, publisher=lambda: self._emitter.publisher)
        self._inbox = Inbox(link.receive, now_ns=time.monotonic_ns)
        self._role = role
        self._emitter = Emitter(
            url=settings.bus,
            node=settings.node,
            role=GATE,
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
        self._emitter.start(role=self._role())  # its port is known by now
        log.info("penstock: gate ready, node %s, SGLang %s", self._settings.node, sglang_version())

    def terminating(self, result: Any, kept: Any, *args: Any) -> None:
        """SIGTERM: the engine drains and ends, so nothing held can run any more."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.guard.run, "close", self._close)

    def _close(self) -> None:
        if self.gate.health()["mode"] != Mode.PASSIVE:  # else nothing is held, and SGLang drains as it always did
            self.gate.close()

    def health(self) -> object:
        """What ``GET /penstock/health`` shows."""
        told = account(self.guard, self._emitter)
        return {
            **self.gate.health(),
            "plugin": {
                **_plugin(self._settings),
                "passive_because": self._passive_because,
                "hook_failures": told["hook_failures"],
            },
            "emitter": told["emitter"],
            "scheduler": self._board.read(),
        }

    def _send(self, event: Event, urgent: bool) -> None:
        self._emitter.emit(event, urgent)


def install(settings: Settings, *, lacking: bool = False) -> HttpSide | None:
    """Register the HTTP process's hooks, the gate unless the settings ask for a probe, and the health page.

    ``lacking``: this SGLang has not what the gate and the page need, so that there is the one hook only. SGLang
    must be importable. Raises whatever is wrong with it before anything is changed.
    """
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks: dict[str, Callable[..., Any]] = {}
    if lacking or not settings.obeys:
        guard = Guard()
        hooks[GENERATE] = carrier(GenerateReqInput, guard)
        HookRegistry.register(GENERATE, hooks[GENERATE], HookType.AROUND)
        if not lacking:
            _serve_probe_health(settings, guard, hooks)
        return None

    from sglang.srt.entrypoints.http_server import app

    def role() -> str:
        return role_of(GATE, getattr(app, "server_args", None))

    side = HttpSide(settings, functools.partial(_why_passive, app, hooks), Board(), role)
    hooks[GENERATE] = carrier(GenerateReqInput, side.guard)
    hooks[TERMINATE] = side.guard.around("sigterm_handler", after=side.terminating)
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)
    continuity = Continuity() if settings.continuity else None
    app.add_middleware(
        GateMiddleware,
        gate=side.gate,
        paths=gated_paths(app),
        on_loop=side.start,
        health=side.health,
        continuity=continuity,
    )
    return side


def gated_paths(app: Any) -> frozenset[str]:
    """Where turns come in: the usual paths, and wherever this server has put what generates."""
    found = {
        route.path
        for route in getattr(app, "routes", ())
        if getattr(getattr(route, "endpoint", None), "__name__", "") in _GENERATING
    }
    return frozenset(GATED_PATHS) | found


def _serve_probe_health(settings: Settings, guard: Guard, hooks: dict[str, Callable[..., Any]]) -> None:
    """What a probe does, it does in the scheduler's process: the page shows what that one tells."""
    from sglang.srt.entrypoints.http_server import app

    board = Board()

    def health() -> object:
        return {
            "mode": str(settings.mode),
            "plugin": {
                **_plugin(settings),
                "passive_because": _why_passive(app, hooks),
                "hook_failures": dict(guard.failures),
            },
            "scheduler": board.read(),
        }

    app.add_middleware(HealthPage, health=health)


def _plugin(settings: Settings) -> dict[str, str]:
    return {"mode": str(settings.mode), "node": settings.node, "sglang": sglang_version()}


def _why_passive(app: Any, hooks: dict[str, Callable[..., Any]]) -> str:
    """Why the plugin must do nothing on this server; empty if it may."""
    problems = unbound(hooks, Feature.GATE)
    if problems:
        return problems[0].message
    return unproven(getattr(app, "server_args", None))
