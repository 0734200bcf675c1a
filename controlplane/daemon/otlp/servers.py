"""OTLP's trace service over HTTP, in protobuf or JSON, and over gRPC, compressed or not."""

import zlib
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

import grpc
from aiohttp import hdrs, web
from anyio import to_thread
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from controlplane.config import OtlpConfig
from controlplane.core.model.errors import ConfigError
from controlplane.daemon.otlp.receiver import SpanReceiver
from controlplane.daemon.process.logs import logger
from controlplane.transport.bounds import Bounds, grpc_options
from controlplane.transport.http_listener import HttpListener

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
_MOST_BYTES = 4 << 20  # of a request that is unpacked; exporters send some 512 spans at once
_SHARE = 0.125  # of the files that the daemon may open
_BOUNDS = Bounds(connections=4096, by_peer=3072)
OPTIONS = (
    *grpc_options(connections=128, streams=16),
    ("grpc.max_receive_message_length", _MOST_BYTES),
    ("grpc.so_reuseport", 0),
)
_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_AWAY = "the daemon's bus is away: send it again"


class OtlpServers:
    """Serve ``receiver`` at the addresses that are not ``off``. ``delivers``: whether events would be kept now."""

    def __init__(self, receiver: SpanReceiver, config: OtlpConfig, delivers: Callable[[], bool]) -> None:
        self._receiver, self._config, self._delivers = receiver, config, delivers
        self._http: HttpListener | None = None
        self._grpc: grpc.aio.Server | None = None
        self._log = logger("otlp")

    async def start(self) -> None:
        """Listen. Raises ``ConfigError`` where that cannot be."""
        if self._config.http != "off" and self._http is None:
            app = web.Application(client_max_size=_MOST_BYTES)
            app.add_routes([web.post("/v1/traces", self._post)])
            # aiohttp would unpack all of a body, whatever becomes of it: from 300 kB it makes 300 MB in seconds.
            bounds, options = _BOUNDS.within(_SHARE), {"shutdown_timeout": 0.5, "auto_decompress": False}
            http = HttpListener("otlp", app, bounds, self._log.warning, **options)
            host, _, port = self._config.http.rpartition(":")
            try:
                await http.start(host.strip("[]"), int(port))
            except OSError as error:
                raise _cannot_listen("http", self._config.http, error.strerror) from None
            self._http = http
        if self._config.grpc != "off":
            server = grpc.aio.server(options=OPTIONS)
            # The request is decoded here: gRPC would call one that is none an error of ours.
            export = {"Export": grpc.unary_unary_rpc_method_handler(self._export)}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, export),))
            try:
                server.add_insecure_port(self._config.grpc)
            except RuntimeError as error:
                raise _cannot_listen("grpc", self._config.grpc, error) from None
            await server.start()
            self._grpc = server
        if self._http or self._grpc:
            self._log.info("listening", http=self._config.http, grpc=self._config.grpc)

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.stop()
        if self._grpc is not None:
            await self._grpc.stop(grace=0.2)

    async def _post(self, request: web.Request) -> web.Response:
        kind = request.content_type
        if kind not in (_PROTOBUF, _JSON):
            why = f"expected {_PROTOBUF} or {_JSON}, got {kind[:80]!r}"
            return _refusal(why, _PROTOBUF, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        encoding = request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower()
        if encoding not in _ENCODINGS:
            why = f"expected a body in {' or '.join(_ENCODINGS)}, got {encoding[:80]!r}"
            return _refusal(why, kind, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        if not self._delivers():
            return _refusal(_AWAY, kind, HTTPStatus.SERVICE_UNAVAILABLE)
        try:
            body = _ENCODINGS[encoding](await request.read())
            spans = await (_from_json(body) if kind == _JSON else _from_protobuf(body))
        except (web.HTTPRequestEntityTooLarge, OverflowError):
            why = f"expected at most {_MOST_BYTES} bytes, unpacked too"
            return _refusal(why, kind, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        except (DecodeError, json_format.ParseError, UnicodeDecodeError, RecursionError, zlib.error) as error:
            return _refusal(f"no ExportTraceServiceRequest: {str(error)[:200]}", kind, HTTPStatus.BAD_REQUEST)
        return _answer(await self._receiver.take(spans), kind, HTTPStatus.OK)

    async def _export(self, body: bytes, context: grpc.aio.ServicerContext) -> bytes:
        if not self._delivers():
            await context.abort(grpc.StatusCode.UNAVAILABLE, _AWAY)
        try:
            spans = await _from_protobuf(body)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no ExportTraceServiceRequest")
        return (await self._receiver.take(spans)).SerializeToString()


def _unpacked(body: bytes) -> bytes:
    """From gzip or zlib. Raises ``OverflowError`` where it is too long, and ``zlib.error``."""
    unpacker = zlib.decompressobj(wbits=47)  # either, by what it begins with
    unpacked = unpacker.decompress(body, _MOST_BYTES + 1)
    if len(unpacked) > _MOST_BYTES:
        raise OverflowError
    if not unpacker.eof:
        raise zlib.error("the body was cut")
    return unpacked


_ENCODINGS: dict[str, Callable[[bytes], bytes]] = {"identity": bytes, "gzip": _unpacked, "deflate": _unpacked}


async def _from_protobuf(body: bytes) -> ExportTraceServiceRequest:
    return ExportTraceServiceRequest.FromString(body)


async def _from_json(body: bytes) -> ExportTraceServiceRequest:
    """In a thread: of 4 MiB it takes a second."""
    parse: Any = partial(json_format.Parse, ignore_unknown_fields=True)
    parsed: ExportTraceServiceRequest = await to_thread.run_sync(parse, body, ExportTraceServiceRequest())
    return parsed


def _answer(message: Message, kind: str, status: HTTPStatus) -> web.Response:
    body = json_format.MessageToJson(message).encode() if kind == _JSON else message.SerializeToString()
    headers = {"Retry-After": "1"} if status is HTTPStatus.SERVICE_UNAVAILABLE else None
    return web.Response(body=body, content_type=kind, status=status, headers=headers)


def _refusal(why: str, kind: str, status: HTTPStatus) -> web.Response:
    return _answer(Status(message=why), kind, status)


def _cannot_listen(key: str, address: str, why: object) -> ConfigError:
    return ConfigError(f"$.otlp.{key}: cannot listen at {address}: {why}")
