"""The entry point and the HTTP side: what is wrapped, what becomes of an app; nothing stops vLLM's start."""

import multiprocessing
import os
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_double import SchedulerDouble, VllmDouble

from controlplane.emit.emitter import Emitter
from controlplane.gate import GateMiddleware, HealthPage
from engine_hooks.engine import board
from engine_hooks.engine.board import VARIABLE as BOARD
from engine_hooks.vllm import plugin
from engine_hooks.vllm.carrier import Carry
from engine_hooks.vllm.scheduler_side import PORT_VARIABLE, RANKS_VARIABLE
from engine_hooks.vllm.targets import ADD_REQUEST, BUILD_STACK, FROM_ARGS, SCHEDULER_CLASS, SHUTDOWN, TARGETS
from engine_hooks.vllm.verify import RUST_VARIABLE, main, ranks_of, unproven_engine, unproven_server

VARIABLES = ("PLUGIN", "NODE", "NATS_URL", "STATE_DIR", "PIN_BUDGET_RATIO", "GATE_HOLD_S")


class Middleware:
    """Starlette's record of one."""

    def __init__(self, cls: type, **options: Any) -> None:
        self.cls = cls
        self.options = options


class AppDouble:
    """FastAPI's app."""

    def __init__(self, *middlewares: type, **args: Any) -> None:
        self.state = SimpleNamespace(args=SimpleNamespace(port=8000, middleware=[], **args))
        self.user_middleware = [Middleware(each) for each in middlewares]


class Authentication:
    """vLLM's own middleware."""


@pytest.fixture(autouse=True)
def environment(vllm: VllmDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    for name in (BOARD, PORT_VARIABLE, RANKS_VARIABLE):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(plugin, "_installed", False)
    monkeypatch.setattr(plugin, "_ensure_handler", lambda: None)
    monkeypatch.setattr(Emitter, "start", lambda emitter, role="": None)
    monkeypatch.setattr(board, "_post", lambda *args: None)
    vllm.set("starlette.middleware.Middleware", Middleware)
    vllm.set(FROM_ARGS, classmethod(lambda cls, args: ("made of", args)))
    vllm.set(SCHEDULER_CLASS, lambda self: SchedulerDouble)


def serve(vllm: VllmDouble, *middlewares: type, **args: Any) -> AppDouble:
    """A server reads its arguments, and builds its app."""
    plugin.register()
    app = AppDouble(*middlewares, **args)
    assert vllm.find(FROM_ARGS)(app.state.args) == ("made of", app.state.args)
    vllm.find(BUILD_STACK)(app)
    return app


def test_the_gate_is_inside_authentication_and_the_carrier_inside_the_gate(vllm: VllmDouble) -> None:
    app = serve(vllm, Authentication)
    assert [each.cls for each in app.user_middleware] == [Authentication, GateMiddleware, Carry]
    vllm.find(BUILD_STACK)(app)
    assert len(app.user_middleware) == 3, "one gate, however often the stack is built"


def test_what_inherits_from_the_server_knows_its_port_and_its_board(vllm: VllmDouble) -> None:
    serve(vllm)
    assert os.environ[PORT_VARIABLE] == "8000"
    assert os.environ[BOARD].startswith("/proc/")


@pytest.mark.parametrize(("command", "told"), [("serve", True), ("", False)])
def test_before_a_front_end_in_rust_its_scheduler_is_served_alone_and_the_log_says_so(
    vllm: VllmDouble,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    command: str,
    told: bool,
) -> None:
    """The module that ``api_server`` is does not ask for the variable, and has an application as ever."""
    monkeypatch.setenv(RUST_VARIABLE, "1")
    plugin.register()
    vllm.find(FROM_ARGS)(SimpleNamespace(port=8000, middleware=[], subparser=command))
    assert os.environ[PORT_VARIABLE] == "8000"
    assert ("no gate in this server: vLLM's Rust front end" in caplog.text) is told


@pytest.mark.parametrize(
    "args",
    [
        {"middleware": [], "grpc": True},
        {"middleware": [], "headless": True},
        {},  # of "vllm run-batch", whose port is that of its metrics
    ],
)
def test_what_serves_no_http_claims_no_port(vllm: VllmDouble, args: dict[str, Any]) -> None:
    plugin.register()
    vllm.find(FROM_ARGS)(SimpleNamespace(port=8000, **args))
    assert (os.environ[PORT_VARIABLE], os.environ[BOARD]) == ("", "")


def test_another_applications_app_is_left_alone(vllm: VllmDouble) -> None:
    plugin.register()
    vllm.find(FROM_ARGS)(SimpleNamespace(port=8000))
    app = AppDouble()
    del app.state.args
    vllm.find(BUILD_STACK)(app)
    assert app.user_middleware == []


@pytest.mark.parametrize(
    ("mode", "lacks", "middlewares", "told"),
    [
        ("probe", "", [HealthPage, Carry], ""),
        ("off", "", [], ""),
        ("soon", "", [], "penstock: passive: PENSTOCK_PLUGIN: expected on, probe or off, got 'soon'"),
        ("on", SHUTDOWN, [Carry], "the gate stays off with vLLM 0.32.0"),
        ("on", ADD_REQUEST, [], ADD_REQUEST),
    ],
)
def test_what_is_installed(
    vllm: VllmDouble,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    lacks: str,
    middlewares: list[type],
    told: str,
) -> None:
    monkeypatch.setenv("PENSTOCK_PLUGIN", mode)
    if lacks:
        vllm.remove(lacks)
    assert [each.cls for each in serve(vllm).user_middleware] == middlewares
    assert told in caplog.text
    assert (vllm.find(SCHEDULER_CLASS)(None) is SchedulerDouble) is (mode in ("off", "soon"))


def test_the_scheduler_is_a_subclass_of_the_one_that_was_chosen(vllm: VllmDouble) -> None:
    plugin.register()
    made = vllm.find(SCHEDULER_CLASS)(None)
    assert made is not SchedulerDouble
    assert issubclass(made, SchedulerDouble)


def test_a_server_that_ends_closes_its_gate_first(vllm: VllmDouble) -> None:
    app = serve(vllm)
    side = app.user_middleware[0].options["on_loop"].__self__
    closed: list[Any] = []
    side._loop = SimpleNamespace(call_soon_threadsafe=lambda *args: closed.append(args))
    vllm.find(SHUTDOWN)("client")
    assert len(closed) == 1


# Why it is passive


def why(app: AppDouble, monkeypatch: pytest.MonkeyPatch, told: Any) -> str:
    side = app.user_middleware[0].options["on_loop"].__self__
    monkeypatch.setattr(board.HealthFile, "read", lambda self, slot=0: told)
    side._start(SimpleNamespace())
    passive_because: str = side.health()["plugin"]["passive_because"]
    return passive_because


def test_the_gate_is_passive_where_the_schedulers_process_is(
    vllm: VllmDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = serve(vllm)
    assert why(app, monkeypatch, {"passive_because": "its own"}) == "its own"
    assert "tells nothing" in why(app, monkeypatch, None)
    assert why(app, monkeypatch, {"passive_because": ""}) == ""
    side = app.user_middleware[0].options["on_loop"].__self__
    assert side.gate.hints.higher_first is False, "of priorities the lower goes first in vLLM"


@pytest.mark.parametrize(
    ("role", "connector", "extra", "told"),
    [
        ("kv_producer", "NixlConnector", {}, ""),
        ("kv_consumer", "LMCacheConnectorV1", {}, ""),
        ("kv_both", "NixlConnector", {}, "kv_connector=NixlConnector"),
        ("kv_both", "MultiConnector", {"connectors": [{"kv_connector": "NixlConnector"}]}, "NixlConnector"),
        ("kv_both", "MultiConnector", {"connectors": [{"kv_connector": "OffloadingConnector"}]}, ""),
        ("kv_both", "MultiConnector", {"connectors": "nonsense"}, ""),
        ("kv_both", "OffloadingConnector", {}, ""),
        (None, None, None, ""),
    ],
)
def test_which_side_an_engine_is_must_be_known_where_prefill_and_decoding_are_apart(
    role: str | None, connector: str | None, extra: dict[str, object] | None, told: str
) -> None:
    transfer = SimpleNamespace(kv_role=role, kv_connector=connector, kv_connector_extra_config=extra)
    because = unproven_engine(SimpleNamespace(kv_transfer_config=transfer, parallel_config=None), "8000")
    assert bool(because) is bool(told)
    assert told in because
    assert not told or '"kv_role": "kv_producer" or "kv_consumer"' in because


@pytest.mark.parametrize(
    ("more", "ranks", "told"),
    [
        ({}, 4, ""),
        ({"data_parallel_backend": "mp", "data_parallel_size_local": 4}, 4, ""),
        ({"data_parallel_external_lb": True, "data_parallel_size_local": 1}, 1, ""),  # others choose the server
        ({"data_parallel_rank": 0}, 1, ""),
        ({"data_parallel_hybrid_lb": True, "data_parallel_size_local": 2}, 2, ""),
        ({"data_parallel_start_rank": 0, "data_parallel_size_local": 2}, 2, ""),
        ({"data_parallel_hybrid_lb": True, "data_parallel_size_local": 1}, 1, ""),
        ({"data_parallel_size_local": 1}, 4, "several hosts"),
        ({"data_parallel_backend": "ray"}, 4, "backend ray"),
        ({"enable_elastic_ep": True}, 4, "come and go"),
    ],
)
def test_ranks_are_chosen_where_the_server_starts_those_that_it_has(
    more: dict[str, Any], ranks: int, told: str
) -> None:
    because = unproven_server(args := SimpleNamespace(data_parallel_size=4, **more))
    assert bool(because) is bool(told)
    assert told in because
    assert ranks_of(args) == ranks
    assert unproven_server(SimpleNamespace(data_parallel_size=1, **more)) == ""


def test_each_of_several_servers_has_a_gate_of_its_own_and_their_parents_board(
    vllm: VllmDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = serve(vllm)
    assert gate_of(parent).health()["plugin"]["role"] == "gate-8000"
    monkeypatch.setattr(multiprocessing, "current_process", lambda: SimpleNamespace(name="ApiServer_1"))
    file = os.open(os.environ[board.VARIABLE], os.O_WRONLY)
    os.pwrite(file, b'{"passive_because": "told to the parent"}', 0)
    os.close(file)
    monkeypatch.setattr(plugin, "_installed", False)
    plugin.register()  # in the middle of the call that makes something of the arguments: they are not told
    app = AppDouble()
    vllm.find(BUILD_STACK)(app)
    child = gate_of(app)
    child._start(SimpleNamespace())  # type: ignore[arg-type]
    told = child.health()["plugin"]
    assert (told["role"], told["passive_because"]) == ("gate-8000-1", "told to the parent")


def gate_of(app: AppDouble) -> Any:
    return app.user_middleware[0].options["on_loop"].__self__


# The report


def test_the_report_says_what_works_and_what_is_missing(
    vllm: VllmDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main() == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "vLLM 0.32.0: tested (supported: 0.32.0)", "the version is the module's"
    assert said[-3:] == ["probe: works here", "gate: works here", "pins: works here"]
    assert len(said) == 4 + len(TARGETS)
    vllm.remove("vllm.v1.core.kv_cache_utils.FreeKVCacheBlockQueue.prepend_n")
    vllm.set("vllm.__version__", "0.20.2")
    assert main() == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "vLLM 0.20.2: not tested (supported: 0.32.0)"
    assert [line.rpartition(".")[2] for line in said if line.startswith("missing")] == ["prepend_n"]
    assert said[-1] == "pins: stays off"
