"""An aiohttp application behind a ``Listener``: what breaks its bounds is answered in HTTP, and logged once."""

import asyncio
import contextlib
import logging
import socket
from http import HTTPStatus
from typing import Any

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawRequestMessage

from controlplane.transport.bounds import Bounds, Reason
from controlplane.transport.listener import Listener, Warn

_BACKLOG = 1024
_PIECE_BYTES = 1 << 12  # more than most heads have
_CLIENTS = (HttpProcessingError, web.RequestPayloadError, ConnectionError)  # errors that are not ours
_STATUS = {Reason.FULL: 503, Reason.DISPLACED: 503, Reason.SLOW: 408, Reason.LARGE: 503}


class HttpListener:
    """Serves ``app`` within ``bounds`` while open; ``options`` are those of aiohttp's ``AppRunner``."""

    def __init__(
        self,
        name: str,
        app: web.Application,
        bounds: Bounds,
        warn: Warn,
        **options: Any,
    ) -> None:
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,  # who hangs up leaves no work behind
            keepalive_timeout=bounds.idle_s + 1,
            logger=self._quiet(name),
            **options,
        )
        self.listener = Listener(name, bounds, lambda _: self._protocol(), warn, farewell=_farewell)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; the first address. Raises ``OSError``."""
        await self._runner.setup()
        assert self._runner.server is not None
        self._handle = self._runner.server.request_handler
        self._runner.server.request_handler = self._watch  # a middleware comes after what may fail already
        try:
            addresses = await _bound(host, port)
        except BaseException:
            await self.stop()
            raise
        for sock in addresses:
            self.listener.listen(sock)
        name = addresses[0].getsockname()
        return str(name[0]), int(name[1])

    async def stop(self) -> None:
        """Hang up on everybody, once requests under way had their time."""
        self.listener.stop_accepting()
        await self._runner.cleanup()
        self.listener.close()

    def _protocol(self) -> asyncio.Protocol:
        assert self._runner.server is not None
        return _InPieces(self._runner.server())

    async def _watch(self, request: Any) -> web.StreamResponse:
        connection = self.listener.connection_of(request.transport)
        if connection is None:
            return web.Response()  # which nobody reads
        comes = request.body_exists and not request.content.is_eof()
        connection.begin(has_body=comes)
        if comes:
            request.content.on_eof(connection.received)
        try:
            if request.headers.get(hdrs.EXPECT, "100-continue").lower() != "100-continue":
                return _refusal(HTTPStatus.EXPECTATION_FAILED, "expected 100-continue")  # aiohttp would repeat it
            return await self._handle(request)
        except web.RequestPayloadError as error:
            return _refusal(HTTPStatus.BAD_REQUEST, f"the body cannot be read: {error}")
        finally:
            connection.done()

    def _quiet(self, name: str) -> logging.Logger:
        """aiohttp's log, without tracebacks of clients' mistakes: anybody could fill it."""

        def is_ours(record: logging.LogRecord) -> bool:
            error = record.exc_info[1] if record.exc_info else None
            if not isinstance(error, _CLIENTS):
                return record.levelno >= logging.INFO
            error.__traceback__ = None  # it leads back to the error, and holds what came until the collector looks
            return False

        log = logging.Logger(f"aiohttp.{name}", logging.DEBUG)
        log.parent = logging.getLogger("aiohttp.server")
        log.addFilter(is_ours)
        return log


class _InPieces(asyncio.Protocol):
    """Hands what comes to aiohttp in small pieces, and nothing after the first that it cannot parse.

    It would keep a copy of each such piece, many times as long, for messages that nobody reads.
    """

    def __init__(self, inner: asyncio.Protocol) -> None:
        self._inner = inner
        self._is_over = False  # a refusal is under way, after which aiohttp hangs up
        self.connection_made = inner.connection_made  # type: ignore[method-assign]
        self.connection_lost = inner.connection_lost  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE_BYTES):
            if self._is_over:
                return
            self._inner.data_received(data[start : start + _PIECE_BYTES])
            waiting: Any = getattr(self._inner, "_messages", None)  # nothing else shows an error at once
            self._is_over = bool(waiting) and not isinstance(waiting[-1][0], RawRequestMessage)


async def _bound(host: str, port: int) -> list[socket.socket]:
    infos = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    with contextlib.ExitStack() as opened:
        sockets = []
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            sock = opened.enter_context(socket.socket(family, kind, protocol))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(_BACKLOG)
            sockets.append(sock)
        opened.pop_all()
    return sockets


def _refusal(status: HTTPStatus, why: str) -> web.Response:
    response = web.Response(text=f"{why}\n", status=status)
    response.force_close()
    return response


def _farewell(reason: Reason) -> bytes:
    status = HTTPStatus(_STATUS[reason])
    again = "Retry-After: 1\r\n" if status is HTTPStatus.SERVICE_UNAVAILABLE else ""
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n{again}"
    text = f"{reason}\n"
    return f"{head}Content-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode()
