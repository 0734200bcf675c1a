"""One HTTP request of an MCP client and what the server answers, on its way through the proxy.

What is in a stream of events passes event by event, and any other answer to a request once it is complete, so that
a call which gets none can still be answered with an error.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import aiohttp
from aiohttp import ClientResponse, web

from engine_hooks.tools.mcp_messages import EVENTS, Piece, Splitter, batch, event_data, event_id, event_with
from engine_hooks.tools.mcp_session import Passed, Session
from engine_hooks.tools.shared import guard

# Of one connection, not of the message; what passes is not compressed, so that it can be read.
_OF_A_CONNECTION = ("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings")
_OF_AN_ANSWER = ("content-length", "content-encoding", "date")
_LOOK_S = 1.0  # how often a stream looks for calls that others have left
_NO_ANSWER = "the MCP server ended its answer without one to this request"

Ask = Callable[[bytes], AbstractAsyncContextManager[ClientResponse]]


class ClientLeft(Exception):
    """The client has closed the connection."""


class Exchange:
    """Passes on one answer. ``shared``: the session has an id, so the client may come back for the rest of it.

    :param ask: sends a body to the server with the headers of ``request``.
    """

    def __init__(self, request: web.Request, session: Session, passed: Passed, ask: Ask, *, shared: bool) -> None:
        self.status = 0  # of the server's answer
        self.endpoint = ""  # where the client is to send its messages, if a stream says so
        self._request, self._session, self._ask, self._shared = request, session, ask, shared
        self._body, self._requests = passed
        self._response: web.StreamResponse | None = None
        self._resumable = False
        self._framing: Splitter | None = None

    async def run(self) -> web.StreamResponse:
        """Pass on the request and all of the answer. Raises ``ClientLeft``."""
        try:
            return await self._run()
        except (asyncio.CancelledError, ClientLeft):
            self._leave(resumable=self._resumable)
            raise
        finally:
            self._leave(resumable=True)

    async def _run(self) -> web.StreamResponse:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._patience_s()):
                    answer = await stack.enter_async_context(self._ask(self._body))
                    self.status = answer.status
                    if answer.content_type != "text/event-stream":
                        return await self._pass_on_text(answer)
            except TimeoutError:
                if self._response is not None:  # a long text is on its way
                    return self._broken()
                return await self._give_up_all()
            except aiohttp.ClientError as error:
                if self._response is not None:
                    return self._broken()
                text = f"the MCP server at {self._request.app['url']} does not answer: {error or type(error).__name__}"
                return self._own_answer([self._session.fail(one, text) for one in self._requests], text, 502)
            return await self._pass_on_events(answer)

    # A text

    async def _pass_on_text(self, answer: ClientResponse) -> web.StreamResponse:
        if not self._requests:
            await self._begin(answer)
            async for chunk in answer.content.iter_any():
                await self._write(chunk)
            return await self._end()
        body = Splitter(None)
        async for chunk in answer.content.iter_any():
            for piece in body.feed(chunk):
                if self._response is None:
                    await self._begin(answer)
                await self._write(self._changed(piece))
        rest = body.rest()
        if self._response is not None:
            await self._write(rest)
            return await self._end()
        passed = self._changed(Piece(rest, first=True, last=True))
        if answer.status == 202 and self._shared:
            return web.Response(status=202, headers=_passing(answer))  # the answer will come in another stream
        errors = [self._session.fail(one, _NO_ANSWER) for one in self._requests]
        if answer.status < 300 and not passed.strip():
            return self._own_answer(errors, _NO_ANSWER)
        headers = _passing(answer)
        return web.Response(status=answer.status, headers=headers, body=passed)

    # Events

    async def _pass_on_events(self, answer: ClientResponse) -> web.StreamResponse:
        await self._begin(answer)
        self._framing = framing = Splitter(EVENTS)
        try:
            while chunk := await self._read(answer):
                for piece in framing.feed(chunk):
                    await self._write(self._event(piece))
            if rest := framing.rest():
                await self._write(self._event(Piece(rest, not framing.inside, True)))
        except _NothingMore:
            return await self._end()
        except aiohttp.ClientError:
            if framing.inside or self._request.method != "POST" or (self._resumable and self._unanswered()):
                return self._broken()
        if not (self._resumable and self._shared):
            for one in self._unanswered():
                await self._write(event_with(self._session.fail(one, _NO_ANSWER)))
        return await self._end()

    async def _read(self, answer: ClientResponse) -> bytes:
        """The next bytes; meanwhile answer calls that take too long. Raises ``_NothingMore`` after the last."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience_s()):
                    return await answer.content.readany()
            late = self._session.give_up(self._watched(), time.monotonic())
            for error, stop in late:
                await self._write(event_with(error))
                await self._tell(stop)
            if late and self._requests and not self._unanswered():
                raise _NothingMore

    def _event(self, piece: Piece) -> bytes:
        """What passes of an event."""
        if not piece.whole:
            return self._changed(piece)
        self._resumable = self._resumable or bool(event_id(piece.data))
        data = event_data(piece.data)
        if data.startswith(b"/") or data.startswith(b"http"):  # the older transport's first event
            self.endpoint = self.endpoint or data.decode(errors="replace").strip()
        passed = self._changed(Piece(data, first=True, last=True))
        if passed is data:
            return piece.data
        return event_with(passed, piece.data) if passed else b""

    # Time

    def _unanswered(self) -> list:  # type: ignore[type-arg]
        return [one for one in self._requests if not one.answered]

    def _watched(self) -> list:  # type: ignore[type-arg]
        """The calls that this stream may answer: its own, and those that no other brings."""
        if self._request.method == "GET" and self._shared:
            return [one for one in self._session.open if not one.carried]
        return self._unanswered()

    def _patience_s(self) -> float | None:
        """How long it may wait for the server; None: for ever, as for a long message that has begun to pass."""
        if self._framing is not None and self._framing.inside:
            return None
        due_s = min((one.due_s for one in self._watched()), default=float("inf"))
        left_s = max(0.0, due_s - time.monotonic())
        if self._framing is not None and self._request.method == "GET" and self._request.app["timeout_s"]:
            return min(left_s, _LOOK_S)
        return None if left_s == float("inf") else left_s

    async def _give_up_all(self) -> web.StreamResponse:
        """Answer a request of which nothing has come, and tell the server to stop."""
        now_s = time.monotonic()
        late = self._session.give_up(self._requests, now_s)
        errors = [error for error, _ in late]
        errors += [self._session.fail(one, "given up with a call beside it") for one in self._unanswered()]
        for _, stop in late:
            await self._tell(stop)
        return self._own_answer(errors, "")

    async def _tell(self, message: bytes) -> None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(_LOOK_S), self._ask(message) as answer:
                await answer.read()

    # The client's side

    def _changed(self, piece: Piece) -> bytes:
        if not piece.first:
            return piece.data
        take = self._session.from_server if piece.whole else self._session.from_server_in_parts
        passed = guard.run("MCP answer", take, piece.data)
        return piece.data if passed is None else passed

    async def _begin(self, answer: ClientResponse) -> None:
        self._response = web.StreamResponse(status=answer.status, headers=_passing(answer))
        with _client_may_leave():
            await self._response.prepare(self._request)

    async def _write(self, data: bytes) -> None:
        assert self._response is not None
        with _client_may_leave():
            await self._response.write(data)

    async def _end(self) -> web.StreamResponse:
        assert self._response is not None
        with _client_may_leave():
            await self._response.write_eof()
        return self._response

    def _broken(self) -> web.StreamResponse:
        """The client sees its answer break off, as the server's did."""
        assert self._response is not None
        if self._request.transport is not None:
            self._request.transport.abort()
        return self._response

    def _own_answer(self, errors: list[bytes], text: str, status: int = 200) -> web.Response:
        headers = {"content-type": "application/json"}
        if not errors:
            return web.json_response({"error": {"message": f"penstock: {text}"}}, status=status)
        is_batch = self._body.lstrip()[:1] == b"["
        return web.Response(status=status, headers=headers, body=batch(errors) if is_batch else errors[0])

    def _leave(self, *, resumable: bool) -> None:
        for one in self._unanswered():
            one.carried = False
            if not (resumable and self._shared):
                self._session.fail(one, "")


class _NothingMore(Exception):
    """The stream's own calls are all answered."""


def _passing(answer: ClientResponse) -> list[tuple[str, str]]:
    left_out = of_a_connection(answer.headers.get("connection", "")) | {*_OF_AN_ANSWER}
    return [(name, text) for name, text in answer.headers.items() if name.lower() not in left_out]


def of_a_connection(connection: str) -> set[str]:
    """The names of headers that do not pass; ``connection`` is the header of that name."""
    return {*_OF_A_CONNECTION, *(name.strip().lower() for name in connection.split(","))}


@contextlib.contextmanager
def _client_may_leave() -> Iterator[None]:
    try:
        yield
    except ConnectionResetError as error:
        raise ClientLeft from error
