"""A proxy for MCP over HTTP: point any client at it instead of its server, and it reports the tool calls.

    pip install penstock[mcp]
    python -m engine_hooks.tools.mcp_http_proxy http://127.0.0.1:8000/mcp [--port P] [--program ID] [--timeout S]

It speaks Streamable HTTP: it passes on each request, and each answer as it comes, a single JSON text or a stream of
events. Calls belong to the program that the request names (in its ``_meta``, or in the header
``x-penstock-program-id``), else to ``--program`` or ``$PENSTOCK_PROGRAM_ID``, else to a program for each MCP
session, which ends with it.
"""

import argparse
import asyncio
import contextlib
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
from aiohttp import ClientResponse, web
from yarl import URL

from engine_hooks.tools.mcp_calls import Calls
from engine_hooks.tools.mcp_proxy import add_common
from engine_hooks.tools.shared import PROGRAM_HEADER, guard, is_on, reporter

SESSION_HEADER = "mcp-session-id"
_CONNECT_S = 10.0
_MOST_SESSIONS = 4096
_MOST_BODY_BYTES = 64 << 20
# Of one connection, not of the message; and nothing compressed, so that what passes can be read.
_OWN_REQUEST_HEADERS = (
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "accept-encoding",
    "keep-alive",
)
_OWN_ANSWER_HEADERS = (
    "connection",
    "content-length",
    "transfer-encoding",
    "content-encoding",
    "keep-alive",
    "date",
)


class _ClientLeft(Exception):
    """The client has left, so nobody reads the answer."""


class Proxy:
    """Passes requests on to ``url`` and reports the tool calls in them."""

    def __init__(self, url: str, program: str = "", timeout_s: float = 0.0) -> None:
        self._url = URL(url)
        self._program = program
        self._timeout_s = timeout_s
        self._sessions: OrderedDict[str, Calls] = OrderedDict()
        self._client: aiohttp.ClientSession | None = None

    def app(self) -> web.Application:
        """The ASGI application, which answers at every path."""
        app = web.Application(client_max_size=_MOST_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self.pass_on)
        app.cleanup_ctx.append(self._connected)
        return app

    async def _connected(self, app: web.Application) -> Any:
        timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_S)  # a stream stays open for hours
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as self._client:
            yield
        for calls in self._sessions.values():
            guard.run("MCP end", calls.end)

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """Pass on one request and all of its answer."""
        body = await request.read()
        session = request.headers.get(SESSION_HEADER, "")
        program = self._program or request.headers.get(PROGRAM_HEADER, "")
        calls = self._calls_of(session, program)
        called = guard.run("MCP request", calls.to_server, body) if request.method == "POST" else None
        relay = _Relay(request, calls)
        try:
            try:
                async with asyncio.timeout(self._timeout_s if called and self._timeout_s else None):
                    await self._relay(request, body, relay)
            except TimeoutError:
                await self._give_up(request, calls, relay)
        except _ClientLeft:
            return relay.response  # its calls go on: it may come back and read their answers in another stream
        except aiohttp.ClientError as error:
            for one in called or ():
                calls.failed(one)
            if relay.begun:  # the client sees its stream break off, as the server's did
                if request.transport is not None:
                    request.transport.abort()
                return relay.response
            text = f"penstock: the MCP server at {self._url} does not answer: {error}"
            return web.json_response({"error": text}, status=502)
        if relay.status >= 400:
            for one in called or ():
                calls.failed(one)
        if request.method == "DELETE" and session in self._sessions and relay.status < 400:
            self._sessions.pop(session).end()
        return relay.response

    async def _relay(self, request: web.Request, body: bytes, relay: "_Relay") -> None:
        async with self._ask(request, request.method, body) as answer:
            await relay.begin(answer)
            async for chunk in answer.content.iter_any():
                await relay.pass_on(chunk)
            await relay.end()

    async def _give_up(self, request: web.Request, calls: Calls, relay: "_Relay") -> None:
        """Answer the calls that took too long, and tell the server to stop them."""
        for one in calls.overdue():
            await relay.answer(one.to_client)
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with asyncio.timeout(_CONNECT_S), self._ask(request, "POST", one.to_server) as answer:
                    await answer.read()
        await relay.end()

    def _ask(self, request: web.Request, method: str, data: bytes) -> AbstractAsyncContextManager[ClientResponse]:
        """Send ``data`` to the server with the headers of ``request``; entering the context yields the answer."""
        assert self._client is not None
        headers = [(n, v) for n, v in request.headers.items() if n.lower() not in _OWN_REQUEST_HEADERS]
        return self._client.request(method, self._target(request), headers=headers, data=data or None)

    def _target(self, request: web.Request) -> URL:
        """The server's address, or another page of its host, which authorization needs."""
        if request.path != self._url.path:
            return self._url.origin().join(request.rel_url)
        return self._url.update_query(request.query)

    def _calls_of(self, session: str, program: str) -> Calls:
        """The calls of a session; ``session`` is empty until the server names one, and if it has none."""
        calls = self._sessions.get(session)
        if calls is None:
            calls = self._sessions[session] = Calls(reporter(), program, timeout_s=self._timeout_s)
            if len(self._sessions) > _MOST_SESSIONS:  # of clients that never said that they left
                _, oldest = self._sessions.popitem(last=False)
                oldest.end()
        self._sessions.move_to_end(session)
        return calls


class _Relay:
    """One answer on its way: it goes to the client as it comes, and to ``calls`` message by message."""

    def __init__(self, request: web.Request, calls: Calls) -> None:
        self.calls = calls
        self.response = web.StreamResponse()
        self.status = 0
        self._request = request
        self._events = False
        self._rest = b""

    @property
    def begun(self) -> bool:
        return self.status != 0

    async def begin(self, answer: ClientResponse) -> None:
        kept = [(n, v) for n, v in answer.headers.items() if n.lower() not in _OWN_ANSWER_HEADERS]
        self._events = answer.content_type == "text/event-stream"
        self.response = web.StreamResponse(status=answer.status, headers=kept)
        self.status = answer.status
        await self.response.prepare(self._request)

    async def pass_on(self, chunk: bytes) -> None:
        """Read the complete events in a chunk, or keep the chunk until the answer is complete."""
        self._rest += chunk
        if self._events:
            *events, self._rest = self._rest.replace(b"\r\n", b"\n").split(b"\n\n")
            for event in events:
                self._look(event)
        await self._write(chunk)

    def _look(self, event: bytes) -> None:
        lines = [line[5:].lstrip() for line in event.split(b"\n") if line.startswith(b"data:")]
        if lines:
            guard.run("MCP answer", self.calls.to_client, b"\n".join(lines))

    async def answer(self, message: bytes) -> None:
        """Send the proxy's own answer in the form that the server's would have had."""
        if not self.begun:
            self.status = 200
            self.response = web.StreamResponse(headers={"content-type": "application/json"})
            await self.response.prepare(self._request)
            await self._write(message)
        elif self._events:
            await self._write(b"event: message\ndata: " + message.strip() + b"\n\n")

    async def end(self) -> None:
        if self._rest and not self._events:
            guard.run("MCP answer", self.calls.to_client, self._rest)
        if self.begun:
            with _client_may_leave():
                await self.response.write_eof()

    async def _write(self, data: bytes) -> None:
        with _client_may_leave():
            await self.response.write(data)


@contextlib.contextmanager
def _client_may_leave() -> Iterator[None]:
    try:
        yield
    except ConnectionResetError as error:
        raise _ClientLeft from error


async def serve(url: str, host: str, port: int, program: str, timeout_s: float) -> None:
    """Serve until cancelled; print the address on standard error."""
    runner = web.AppRunner(Proxy(url, program, timeout_s).app(), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        address = runner.addresses[0]
        sys.stderr.write(f"penstock: http://{address[0]}:{address[1]}{URL(url).path} passes on to {url}\n")
        sys.stderr.flush()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
        reporter().close()


def main() -> int:
    """Run the proxy from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m engine_hooks.tools.mcp_http_proxy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_common(parser)
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
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(options.url, options.host, options.port, options.program, max(0.0, options.timeout)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
