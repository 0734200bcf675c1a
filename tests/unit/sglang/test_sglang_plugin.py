"""The entry point: what it installs where, and that nothing it meets can stop SGLang's start."""

import asyncio
import json
import multiprocessing
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sglang_double import SglangDouble

from controlplane.core.model.commands import Admit, Place, Retain
from controlplane.core.model.events import CommandApplied, Event, TurnQueued
from controlplane.emit.emitter import Emitter
from controlplane.gate import GATED_PATHS, GateMiddleware, HealthPage
from controlplane.wire.heartbeat import Heartbeat
from engine_hooks.engine.board import VARIABLE as BOARD
from engine_hooks.engine.settings import PluginMode, Settings
from engine_hooks.sglang import plugin, scheduler_side
from engine_hooks.sglang.http_side import HttpSide, gated_paths
from engine_hooks.sglang.targets import GENERATE, TERMINATE

VARIABLES = ("PLUGIN", "NODE", "NATS_URL", "STATE_DIR", "PIN_BUDGET_RATIO", "GATE_HOLD_S")


def beat() -> Heartbeat:
    """The daemon lives, and lets one in."""
    return Heartbeat(node="n", boot_id="boot", lease_ttl_ns=5_000_000_000, limit=1, window=1.0)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    monkeypatch.setattr(Emitter, "start", lambda self: None)  # no bus here; the thread has tests of its own
    monkeypatch.setenv(BOARD, "")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A start of SGLang, what is installed of it, and what is logged."""

    mode: str = "on"
    process: str = "MainProcess"
    lacks: str = ""
    middleware: type | None = None
    hooks: tuple[bool, bool] = (False, False)  # the HTTP process's, and the scheduler's
    told: str = ""


@pytest.mark.parametrize(
    "case",
    [
        Case(middleware=GateMiddleware, hooks=(True, True)),
        Case(process="SpawnProcess-1", hooks=(False, True)),
        Case(mode="probe", middleware=HealthPage, hooks=(True, True)),
        Case(mode="off"),
        Case(mode="soon", told="penstock: passive: PENSTOCK_PLUGIN: expected on, probe or off, got 'soon'"),
        Case(lacks=GENERATE, told=GENERATE),
        Case(lacks=TERMINATE, hooks=(True, True), told="the gate stays off"),
    ],
    ids=lambda case: " ".join(filter(None, (case.mode, case.process, case.lacks.rpartition(".")[2]))),
)
def test_what_is_installed(
    sglang: SglangDouble, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, case: Case
) -> None:
    monkeypatch.setenv("PENSTOCK_PLUGIN", case.mode)
    monkeypatch.setattr(multiprocessing, "current_process", lambda: types.SimpleNamespace(name=case.process))
    if case.lacks:
        sglang.remove(case.lacks)
    plugin.register()
    assert [middleware for middleware, _ in sglang.app.middlewares] == [case.middleware] * bool(case.middleware)
    hooked = {target.rpartition(".")[2] for target in sglang.registry.hooks}
    assert ("generate_request" in hooked, "process_batch_result" in hooked) == case.hooks
    assert ("sigterm_handler" in hooked) is (case.middleware is GateMiddleware)
    assert case.told in caplog.text


def test_without_the_pins_targets_the_engine_side_only_probes(
    sglang: SglangDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Settings] = []
    monkeypatch.setattr(scheduler_side, "install", told.append)
    plugin.register()
    sglang.remove("sglang.srt.mem_cache.radix_cache.RadixKey")
    plugin.register()
    assert [settings.mode for settings in told] == [PluginMode.ON, PluginMode.PROBE]
    assert len(sglang.app.middlewares) == 2


@pytest.mark.parametrize("error", [RuntimeError("two\nlines"), ImportError(), KeyError("k")])
def test_whatever_fails_is_told_in_one_line(
    sglang: SglangDouble, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(_settings: Settings) -> None:
        raise error

    monkeypatch.setattr(scheduler_side, "install", fail)
    plugin.register()
    (message,) = caplog.messages
    assert message.startswith("penstock: passive: ")
    assert "\n" not in message


def test_turns_are_gated_wherever_the_server_takes_them_in(sglang: SglangDouble) -> None:
    def ollama_chat() -> None:
        """Its path is set by the environment."""

    def get_tags() -> None:
        """Nothing is generated there."""

    routes = (("/my/chat", ollama_chat), ("/api/tags", get_tags))
    sglang.app.routes = [types.SimpleNamespace(path=path, endpoint=endpoint) for path, endpoint in routes]
    sglang.app.routes.append(types.SimpleNamespace(path="/page"))  # files, and no function
    assert gated_paths(sglang.app) == {*GATED_PATHS, "/my/chat"}


# The HTTP side at work


def started(sglang: SglangDouble) -> tuple[HttpSide, GateMiddleware, list[Event]]:
    """The plugin as a server that has just started sees it, and what its emitter is given."""
    plugin.register()
    sglang.registry.apply_hooks()
    ((_, options),) = sglang.app.middlewares
    side = options["on_loop"].__self__
    sent: list[Event] = []
    side._emitter.emit = lambda event, urgent=False: sent.append(event)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"served"})

    return side, GateMiddleware(app, **options), sent


class Exchange:
    """One request to the middleware."""

    def __init__(self, app: GateMiddleware | HealthPage, path: str, method: str = "POST") -> None:
        self.sent: list[Any] = []
        self.scope: dict[str, Any] = {"type": "http", "method": method, "path": path}
        self.scope["headers"] = [(b"x-session-id", b"p")]
        self._inbound: asyncio.Queue[Any] = asyncio.Queue()
        self._inbound.put_nowait({"type": "http.request", "body": b'{"text": "one"}', "more_body": False})
        self.task = asyncio.ensure_future(app(self.scope, self._inbound.get, self._send))

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def json(self) -> Any:
        return json.loads(self.sent[1]["body"])


async def health(app: GateMiddleware | HealthPage) -> Any:
    exchange = Exchange(app, "/penstock/health", "GET")
    await exchange.task
    return exchange.json


async def until(true: Callable[[], bool]) -> None:
    for _ in range(100):
        if true():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come about")


async def test_a_probe_serves_its_health_and_nothing_else(
    sglang: SglangDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_PLUGIN", "probe")

    async def served(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'"the engine"'})

    plugin.register()
    sglang.registry.apply_hooks()
    ((_, options),) = sglang.app.middlewares
    app = HealthPage(served, **options)
    told = await health(app)
    assert (told["mode"], told["plugin"]["mode"], told["scheduler"]) == ("probe", "probe", None)
    assert told["plugin"]["passive_because"] == ""
    exchange = Exchange(app, "/generate")
    await exchange.task
    assert exchange.json == "the engine"
    sglang.app.server_args.nnodes = 2
    assert "nnodes=2" in (await health(app))["plugin"]["passive_because"]


@pytest.mark.parametrize("lower_first", [False, True])
async def test_of_priorities_the_higher_goes_first_unless_sglang_is_told_otherwise(
    sglang: SglangDouble, lower_first: bool
) -> None:
    side, app, _ = started(sglang)
    sglang.app.server_args.schedule_low_priority_values_first = lower_first
    await health(app)
    assert side.gate.hints.higher_first is not lower_first


async def test_a_governed_gate_holds_a_turn_until_it_is_admitted(sglang: SglangDouble) -> None:
    side, app, sent = started(sglang)
    await health(app)
    side._inbox.post(beat())
    await asyncio.sleep(0)
    exchange = Exchange(app, "/v1/completions")
    await until(lambda: any(isinstance(event, TurnQueued) for event in sent))
    assert exchange.sent == []
    side._inbox.post(Retain(command_id=1, program_id="p", ttl_ns=1))  # the scheduler's to answer
    side._inbox.post(Admit(command_id=2, program_id="p"))
    await exchange.task
    assert exchange.status == 200
    assert [event.command_id for event in sent if isinstance(event, CommandApplied)] == [2]


async def test_turns_of_a_server_with_ranks_go_where_the_daemon_said(sglang: SglangDouble) -> None:
    sglang.app.server_args.port, sglang.app.server_args.dp_size = 30000, 2
    side, app, sent = started(sglang)
    told = await health(app)
    ranks = ["local/engine-30000-dp0", "local/engine-30000-dp1"]
    assert told["schedulers"] == dict.fromkeys(ranks)
    side._inbox.post(beat())
    side._inbox.post(Place(command_id=1, program_id="p", replica=ranks[1]))
    side._inbox.post(Place(command_id=2, program_id="p", replica="local/engine-30001-dp0"))
    side._inbox.post(Admit(command_id=3, program_id="p"))
    await asyncio.sleep(0)
    exchange = Exchange(app, "/v1/completions")
    await exchange.task
    assert exchange.scope["penstock"].place == ranks[1]
    assert [event.command_id for event in sent if isinstance(event, CommandApplied)] == [1, 3]


async def test_sigterm_closes_the_gate_of_a_governed_engine_only(sglang: SglangDouble) -> None:
    side, app, sent = started(sglang)
    await health(app)
    terminate = sglang.find(TERMINATE)
    terminate("handler")
    await asyncio.sleep(0)
    exchange = Exchange(app, "/generate")
    await exchange.task
    assert exchange.status == 200
    side._inbox.post(beat())
    await asyncio.sleep(0)
    held = Exchange(app, "/generate")
    await until(lambda: any(isinstance(event, TurnQueued) for event in sent))
    terminate("handler")
    await held.task
    assert (held.status, held.json["error"]["code"]) == (503, "gate_closed")


@pytest.mark.parametrize("cause", ["nnodes", "unbound"])
async def test_where_it_may_not_hold_the_gate_never_hears_the_daemon(
    sglang: SglangDouble, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    starts: list[Emitter] = []
    monkeypatch.setattr(Emitter, "start", starts.append)
    if cause == "nnodes":
        sglang.app.server_args.nnodes = 2
    else:
        sglang.registry.refused.add(GENERATE)

    _, app, _ = started(sglang)
    told = await health(app)
    assert told["plugin"]["passive_because"]
    assert "the gate is passive" in caplog.text
    assert starts == []
