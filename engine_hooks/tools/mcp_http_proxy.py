"""A proxy for MCP over HTTP: point any client at it instead of its server, and it reports the tool calls.

    pip install penstock-agents[mcp]
    python -m engine_hooks.tools.mcp_http_proxy http://127.0.0.1:8000/mcp [--port P] [--program ID] [--timeout S]

It speaks Streamable HTTP: it passes on each request, and each answer as it comes, a single JSON text or a stream of
events. Calls belong to the program that the request names (in its ``_meta``, or in the header
``x-penstock-program-id``), else to ``--program`` or ``$PENSTOCK_PROGRAM_ID``, else to a program for each MCP
session, which ends with it.
"""

import asyncio
import contextlib
import signal
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import ClientResponse, web
from yarl import URL

from controlplane import clocks
from controlplane.transport.bounds import Bounds, raise_open_files
from controlplane.transport.http_listener import HttpListener
from engine_hooks.guard import log
from engine_hooks.tools.mcp_http_exchange import ClientLeft, Exchange, of_a_connection
from engine_hooks.tools.mcp_messages import MOST_BYTES
from engine_hooks.tools.mcp_proxy import common_parser
from engine_hooks.tools.mcp_session import Owner, Passed, Session
from engine_hooks.tools.shared import PROGRAM_HEADER, guard, is_on, reporter

SESSION_HEADER = "mcp-session-id"
_CONNECT_S = 10.0
_NOTIFY_S = 10.0
_SHUTDOWN_S = 2.0  # for streams, which are open as long as their clients
_KEEP_ALIVE_S = (
    4.0  # less than the 5 s after which common servers close, so that no call meets a closing connection
)
_MOST_SESSIONS = 4096
_MOST_HEADER_BYTES = 64 << 10  # a bearer token may be long
_MOST_MOVES = 3
_SHARE = 0.4  # of the files that may be open: each request has a connection to the server, too
BOUNDS = Bounds(connections=4096, by_peer=3072, body_s=300.0, unread_s=60.0, arrived_bytes=8 * MOST_BYTES)
_READ_BYTES = 1 << 20
_DECODED = ("", "identity", "gzip", "deflate", "br", "zstd")  # by aiohttp, which refuses what is not installed
# Of the request as it came, not of the message; "mcp-method" and "mcp-name" repeat what is in the body.
_OF_A_REQUEST = ("host", "content-length", "content-encoding", "accept-encoding", "expect")
_OF_THE_BODY = ("mcp-method", "mcp-name")


class Proxy:
    """Passes requests on to ``url`` and reports the tool calls in them."""

    def __init__(self, url: str, program: str = "", timeout_s: float = 0.0) -> None:
        self._url = URL(url)
        self._program = program
        self._timeout_s = timeout_s
        self._owner = Owner(reporter(), program)  # of what belongs to no session
        self._sessions: OrderedDict[str, Session] = OrderedDict()  # by id, or by where their messages go
        self._client: aiohttp.ClientSession | None = None
        self._notices: set[asyncio.Task[None]] = set()

    def app(self) -> web.Application:
        """The ASGI application, which answers at every path."""
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_route("*", "/{path:.*}", self.pass_on)
        app.cleanup_ctx.append(self._connected)
        return app

    async def _connected(self, app: web.Application) -> Any:
        timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_S)  # a stream stays open for hours
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
        async with aiohttp.ClientSession(
            timeout=timeout,
            read_bufsize=_READ_BYTES,
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),  # each client's cookies are its own
            max_line_size=_MOST_HEADER_BYTES,
            max_field_size=_MOST_HEADER_BYTES,
        ) as self._client:
            yield
            if self._notices:
                await asyncio.wait(self._notices, timeout=_SHUTDOWN_S)
        for session in self._sessions.values():
            guard.run("MCP end", session.close)
        guard.run("MCP end", self._owner.end)

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        encoding = request.headers.get("content-encoding", "").strip().lower()
        if encoding not in _DECODED:
            return _refusal(415, f"a body in {encoding} cannot be read here: send gzip, deflate or no encoding")
        try:
            body = await request.read()
        except web.RequestPayloadError as error:
            return _refusal(400, f"the body cannot be read: {error}")
        key = request.headers.get(SESSION_HEADER, "") or str(request.rel_url)
        session = self._sessions.get(key)
        if session is None and SESSION_HEADER in request.headers:
            session = self._begin_session(key)
        shared = session is not None
        if shared:
            self._sessions.move_to_end(key)
        if session is None:
            session = Session(reporter(), self._owner, self._timeout_s)
        passed = Passed(body, [])
        if request.method == "POST":
            program = self._program or request.headers.get(PROGRAM_HEADER, "")
            passed = guard.run("MCP request", session.from_client, body, clocks.awake_s(), program) or passed
            if body and not passed.data:
                return web.Response(status=202)
        exchange = Exchange(request, session, passed, self, shared=shared)
        try:
            return await exchange.run()
        except ClientLeft:
            return web.Response()  # which nobody reads
        finally:
            gone = exchange.status == 404 or (request.method == "DELETE" and 0 < exchange.status < 400)
            if gone and (ended := self._sessions.pop(key, None)) is not None:
                guard.run("MCP end", ended.close)

    @contextlib.asynccontextmanager
    async def ask(self, request: web.Request, body: bytes, *, own: bool = False) -> AsyncIterator[ClientResponse]:
        """Send ``body`` to the server as ``request``, also where it has moved on its own host; yield the answer.

        ``own``: the proxy's own message rather than the client's. Raises ``aiohttp.ClientError``.
        """
        assert self._client is not None
        url, method = self._target(request), "POST" if own else request.method
        headers = [(n, v) for n, v in _sent_headers(request) if not (own and n.lower() in _OF_THE_BODY)]
        for _ in range(_MOST_MOVES):
            sending = self._client.request(method, url, headers=headers, data=body or None, allow_redirects=False)
            async with sending as answer:
                moved = _moved(url, answer)
                if moved is None:
                    yield answer
                    return
            url = moved
        raise aiohttp.ClientError(f"it sends requests on in a circle, by {url}")

    def notify(self, request: web.Request, message: bytes) -> None:
        """Send the server a message of the proxy's own in the background, whatever becomes of it."""
        task = asyncio.get_running_loop().create_task(self._notify(request, message))
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)

    async def _notify(self, request: web.Request, message: bytes) -> None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(_NOTIFY_S), self.ask(request, message, own=True) as answer:
                await answer.read()

    def session_at(self, endpoint: str) -> Session:
        """The session of the older transport, whose messages go to ``endpoint``."""
        target = str(self._url.join(URL(endpoint)).relative())
        return self._sessions.get(target) or self._begin_session(target)

    def _target(self, request: web.Request) -> URL:
        """The server's address, with or without a last slash, or another page of its host, for authorization."""
        if request.path.rstrip("/") != self._url.path.rstrip("/"):
            return self._url.origin().join(request.rel_url)
        return self._url.update_query(request.query)

    def _begin_session(self, key: str) -> Session:
        session = Session(reporter(), Owner(reporter(), self._program), self._timeout_s)
        self._sessions[key] = session
        if len(self._sessions) > _MOST_SESSIONS:  # of clients that never said that they left
            _, oldest = self._sessions.popitem(last=False)
            guard.run("MCP end", oldest.close)
        return session


def _refusal(status: int, text: str) -> web.Response:
    return web.json_response({"error": {"message": f"penstock: {text}"}}, status=status)


def _moved(url: URL, answer: ClientResponse) -> URL | None:
    """Where on its own host the server wants the same request; None: the answer is the client's to read."""
    if answer.status in (307, 308):
        with contextlib.suppress(ValueError):
            moved = url.join(URL(answer.headers.get("location", "")))
            return moved if moved.origin() == url.origin() else None
    return None


def _sent_headers(request: web.Request) -> list[tuple[str, str]]:
    """A request's headers as they go to the server, which is asked to compress nothing, so that it can be read."""
    left_out = of_a_connection(request.headers.get("connection", "")) | {*_OF_A_REQUEST}
    passing = [(name, text) for name, text in request.headers.items() if name.lower() not in left_out]
    return [*passing, ("accept-encoding", "identity")]


def _warn(event: str, /, **fields: Any) -> None:
    log.warning("penstock: %s %s", event, fields)


async def serve(url: str, host: str, port: int, program: str, timeout_s: float) -> None:
    """Serve until cancelled or terminated; print the address on standard error."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    listener = HttpListener(
        "MCP proxy",
        Proxy(url, program, timeout_s).app(),
        BOUNDS.within(_SHARE),
        _warn,
        shutdown_timeout=_SHUTDOWN_S,
        max_line_size=_MOST_HEADER_BYTES,
        max_field_size=_MOST_HEADER_BYTES,
    )
    address = await listener.start(host, port)
    try:
        own = URL(url).with_scheme("http").with_host(address[0]).with_port(address[1]).with_user(None)
        sys.stderr.write(f"penstock: {own} passes on to {url}\n")
        sys.stderr.flush()
        await ended.wait()
    finally:
        await listener.stop()
        reporter().close()


def main() -> int:
    """Run the proxy from the command line."""
    parser = common_parser("mcp_http_proxy", __doc__)
    parser.add_argument("--host", default="127.0.0.1", help="to listen at; default: 127.0.0.1")
    parser.add_argument(
        "--port", type=int, default=0, help="to listen at; default: any that is free, told at start"
    )
    parser.add_argument("url", help="the server's")
    options = parser.parse_args()
    if URL(options.url).scheme not in ("http", "https"):
        parser.error(f"{options.url!r} is no http:// or https:// address")
    if not is_on():
        parser.error("PENSTOCK_TOOLS is off: let the client speak to the server itself")
    raise_open_files()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(options.url, options.host, options.port, options.program, max(0.0, options.timeout)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
