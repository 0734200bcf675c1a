"""The fleet's endpoint picker: a gate whose transport is Envoy's ``ext_proc``, as the middleware's is ASGI.

Envoy asks over gRPC, a stream for each request. The answer says to which engine it goes, once the gate lets it in.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from controlplane import clocks
from controlplane.core.model.errors import ConfigError
from controlplane.daemon.process.logs import logger
from controlplane.fleet.active_turn import Turns
from controlplane.fleet.choice import Choice
from controlplane.fleet.messages import SERVICE, ProcessingRequest, ProcessingResponse
from controlplane.fleet.picker_context import PickerContext, PickerCounters
from controlplane.fleet.request_stream import RequestStream
from controlplane.fleet.roster import Engine, Roster
from controlplane.fleet.watchdog import Watchdog
from controlplane.gate.engine_api import EngineApi
from controlplane.gate.gate import Gate
from controlplane.gate.limits import GateLimits
from controlplane.gate.repairs import Repairer
from controlplane.gate.requests import GATED_PATHS
from controlplane.transport.bounds import grpc_options

LIVENESS, READINESS = "liveness", "readiness"
_ROLE = "x-penstock-role"
_GRACE_S = 2.0
_CONNECTIONS = 1024  # each worker of each Envoy has some
_STREAMS = 100_000  # at once over one of Envoy's connections: each held turn is one
OPTIONS = (
    *grpc_options(_CONNECTIONS, _STREAMS),
    ("grpc.so_reuseport", 0),
    # The gate refuses a smaller one already; Envoy's buffer bounds what comes of it.
    ("grpc.max_receive_message_length", GateLimits().max_arriving_bytes),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),  # Envoy looks each second whether the picker lives
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
)


class PickerServer:
    """Answers Envoy for one ``gate`` and the engines of one ``roster``. Use it in one event loop.

    ``turns`` is told of each turn as it goes. It serves nobody before ``set_serving(True)``: the health service
    says so, and whoever asks all the same is sent to another picker. ``patience_s``: after so many seconds in which
    the loop did not turn the process ends, as its held turns are asked for elsewhere only then; 0: never. With
    ``credentials`` it speaks TLS: Envoy sends it whole requests, with what authorizes them. ``health_page``: what
    it answers to ``GET /penstock/health``, where engines have no such page; ``names_in_request_id``: whether a
    request's id carries its turn's and program's, too (``gate.request_ids``); ``engine_api``: what makes an engine
    without a plugin obey, where there is such; ``repairs``: which of ``REPAIRS`` are made of requests that Envoy
    shows as a whole.
    """

    def __init__(
        self,
        *,
        gate: Gate,
        roster: Roster,
        turns: Turns,
        name: str,
        paths: Iterable[str] = GATED_PATHS,
        now_ns: Callable[[], int] = clocks.awake_ns,
        patience_s: float = 3.0,
        credentials: grpc.ServerCredentials | None = None,
        health_page: Callable[[], object] | None = None,
        engine_api: Callable[[Engine], EngineApi | None] = lambda engine: None,
        names_in_request_id: Callable[[], bool] = lambda: False,
        repairs: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name
        self._picker = PickerContext(
            gate=gate,
            choice=Choice(roster, gate.places),
            turns=turns,
            paths=frozenset(paths),
            now_ns=now_ns,
            health=health_page,
            engine_api=engine_api,
            names_in_request_id=names_in_request_id,
            repairer=Repairer(repairs),
        )
        self._credentials = credentials
        self._serving = False
        self._open = 0
        self._health = health.aio.HealthServicer()
        self._health_updates: set[asyncio.Task[None]] = set()
        self._server: grpc.aio.Server | None = None
        self._watchdog = Watchdog(patience_s) if patience_s > 0 else None
        self._log = logger("picker")

    @property
    def counters(self) -> PickerCounters:
        """What passed so far."""
        return self._picker.counters

    async def start(self, listen: str) -> int:
        """Listen at ``listen``, ``host:port`` or ``unix:path``, and return the port.

        Raises ``ConfigError`` where that cannot be.
        """
        server = grpc.aio.server(options=OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=ProcessingRequest.FromString,
            response_serializer=ProcessingResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        try:
            port = self._bind(server, listen)
        except RuntimeError as error:
            raise ConfigError(f"the picker cannot listen at {listen}: {error}") from None
        await self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self._set_health(self._serving)
        await server.start()
        self._server = server
        if self._watchdog is not None:
            self._watchdog.start()
        self._log.info("listening", name=self.name, address=listen, port=port)
        return port

    def set_serving(self, serving: bool) -> None:
        """Whether Envoy is to ask this picker. Once it is not, what it holds goes to be asked for elsewhere."""
        if serving == self._serving:
            return
        self._serving = serving
        self._log.info("serving" if serving else "serving no more", name=self.name, held=len(self._picker.holding))
        if self._server is not None:
            task = asyncio.get_running_loop().create_task(self._set_health(serving))
            self._health_updates.add(task)
            task.add_done_callback(self._health_updates.discard)
        if not serving:
            for stream in tuple(self._picker.holding):
                self._picker.counters.handed_over += 1
                stream.move_on()

    async def stop(self) -> None:
        """Send away what is held, and hang up. Answers that are under way go on without the picker."""
        self.set_serving(False)
        if self._watchdog is not None:
            self._watchdog.stop()
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(_GRACE_S)
            self._server = None
        self._picker.awaiting.stop()

    def state(self) -> dict[str, object]:
        """What a health page shows of the picker, ready for JSON."""
        return {"name": self.name, "serving": self._serving, "open_streams": self._open, **asdict(self.counters)}

    def _bind(self, server: grpc.aio.Server, listen: str) -> int:
        if self._credentials is None:
            return int(server.add_insecure_port(listen))
        return int(server.add_secure_port(listen, self._credentials))

    async def _set_health(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", SERVICE, READINESS):
            await self._health.set(name, status)

    async def _process(self, _: Any, context: Any) -> None:
        """One stream. An error of ours ends it alone, and Envoy asks again."""
        if not self._serving:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"picker {self.name} does not serve: ask another")
        self._open += 1
        try:
            await RequestStream(self._picker, context, _role(context)).run()
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            if context.cancelled() or context.done():
                return  # the other side had hung up
            self._log.exception("a request failed", name=self.name)
            await context.abort(grpc.StatusCode.INTERNAL, f"the picker failed: {type(error).__name__}")
        finally:
            self._open -= 1


def _role(context: Any) -> str:
    """What Envoy's filter is for, where its configuration says so."""
    return next((str(value) for key, value in context.invocation_metadata() or () if key == _ROLE), "")
