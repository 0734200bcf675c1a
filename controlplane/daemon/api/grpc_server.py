"""The control API over gRPC: a Unix socket, or TCP with or without TLS; with health and reflection."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from controlplane.config import ApiConfig
from controlplane.core.model.errors import ConfigError, ControlPlaneError, EngineUnavailable, UnknownProgram
from controlplane.daemon.process.logs import logger
from controlplane.transport.bounds import grpc_options
from controlplane.transport.endpoint import MOST_SOCKET_PATH_BYTES
from controlplane.wire.control import METHODS, SERVICE
from controlplane.wire.files import MOST_SECRET_BYTES, read_bytes
from controlplane.wire.names import in_snake_case

_UNIX = "unix:"
_MOST_REQUEST_BYTES = 1 << 20
OPTIONS = (
    *grpc_options(connections=64, streams=128),
    ("grpc.max_receive_message_length", _MOST_REQUEST_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),  # who watches a quiet node asks whether we are there
)
_MODE = 0o600  # who may open it may hold every program: the daemon's own user
_CODES: tuple[tuple[type[ControlPlaneError], grpc.StatusCode], ...] = (
    (UnknownProgram, grpc.StatusCode.NOT_FOUND),
    (ConfigError, grpc.StatusCode.INVALID_ARGUMENT),
    (EngineUnavailable, grpc.StatusCode.ABORTED),
    (ControlPlaneError, grpc.StatusCode.INTERNAL),
)


class GrpcServer:
    """Serves ``api``, which has one coroutine or asynchronous generator for each method of the service."""

    def __init__(self, api: object, config: ApiConfig, default_path: Path) -> None:
        self.address = config.listen or f"{_UNIX}{default_path}"
        self._api, self._config = api, config
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self._log = logger("api")

    async def start(self) -> None:
        """Listen. Raises ``ConfigError`` where that cannot be; a default socket that cannot be is logged only."""
        if self.address == "off":
            return
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((self._handlers(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        try:
            self._bind(server)
        except (OSError, RuntimeError) as error:
            if self._config.listen:
                raise ConfigError(f"$.api.listen: cannot listen at {self.address}: {error}") from None
            self._log.warning("no control API", address=self.address, reason=str(error))
            return
        await server.start()
        self._server = server
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        if path := self._path():
            path.chmod(_MODE)
        self._log.info("listening", address=self.address)

    async def stop(self) -> None:
        if self._server is None:
            return
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace=0.2)
        if path := self._path():
            path.unlink(missing_ok=True)

    def _bind(self, server: grpc.aio.Server) -> None:
        if path := self._path():
            if len(bytes(path)) > MOST_SOCKET_PATH_BYTES:
                raise OSError(f"the path is longer than {MOST_SOCKET_PATH_BYTES} bytes")
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.unlink(missing_ok=True)
        if self._config.certificate:
            server.add_secure_port(self.address, _credentials(self._config))
        else:
            server.add_insecure_port(self.address)

    def _path(self) -> Path | None:
        return Path(self.address.removeprefix(_UNIX)) if self.address.startswith(_UNIX) else None

    def _handlers(self) -> grpc.GenericRpcHandler:
        handlers = {}
        for name, method in METHODS.items():
            behave = getattr(self._api, in_snake_case(name))
            make = grpc.unary_stream_rpc_method_handler if method.streams else grpc.unary_unary_rpc_method_handler
            handlers[name] = make(
                _streamed(behave) if method.streams else _answered(behave),
                request_deserializer=method.decode_request,
                response_serializer=method.encode_reply,
            )
        return grpc.method_handlers_generic_handler(SERVICE, handlers)


def _answered(behave: Callable[[Any], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def answer(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            return await behave(request)
        except ControlPlaneError as error:
            await _abort(context, error)

    return answer


def _streamed(behave: Callable[[Any], AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    async def stream(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        replies = behave(request)
        try:
            async with contextlib.aclosing(replies):  # type: ignore[type-var]
                async for reply in replies:
                    yield reply
        except ControlPlaneError as error:
            await _abort(context, error)

    return stream


async def _abort(context: grpc.aio.ServicerContext, error: ControlPlaneError) -> None:
    await context.abort(next(code for kind, code in _CODES if isinstance(error, kind)), str(error))


def _credentials(config: ApiConfig) -> grpc.ServerCredentials:
    chain, key = _secret(config.certificate), _secret(config.private_key)
    authority = _secret(config.client_ca) if config.client_ca else None
    return grpc.ssl_server_credentials(
        [(key, chain)], root_certificates=authority, require_client_auth=authority is not None
    )


def _secret(path: str) -> bytes:
    return read_bytes(Path(path), MOST_SECRET_BYTES)
