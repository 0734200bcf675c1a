"""One HTTP request of an MCP client and what the server answers, on its way through the proxy.

What is in a stream of events passes event by event, and any other answer to a request once it is complete, so that
a call which gets none can still be answered with an error.
"""

import asyncio
import contextlib
import math
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import ClientResponse, web

from controlplane import clocks
from engine_hooks.tools.mcp_messages import EVENTS, Piece, Splitter, batch, event_data, event_id, event_with
from engine_hooks.tools.mcp_session import Passed, Request, Session

if TYPE_CHECKING:
    from engine_hooks.tools.mcp_http_proxy import Proxy

# Of one connection, not of the message; what passes is not compressed, so that it can be read.
_OF_A_CONNECTION = ("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings")
_OF_AN_ANSWER = ("content-length", "content-encoding", "date")
_LOOK_S = 1.0  # how often a stream looks for calls that others have left
_NO_ANSWER = "the MCP server ended its answer without one to this request"


class ClientLeft(Exception):
    """The client has closed the connection."""


class Exchange:
    """Passes on one answer.

    :param session: if ``shared``, one that has an id, so that its client may come back for the rest of an answer.
    :param proxy: sends the server what the client sent, and more.
    """

    def __init__(
        self, request: web.Request, session: Session, passed: Passed, proxy: "Proxy", *, shared: bool
    ) -> None:
        self.status = 0  # of the server's answer
        self._request, self._session, self._proxy, self._shared = request, session, proxy, shared
        self._body, self._requests = passed
        self._response: web.StreamResponse | None = None
        self._resumable = False
        self._framing: Splitter | None = None

    async def run(self) -> web.StreamResponse:
        """Pass on the request and all of the answer. Raises ``ClientLeft``."""
        try:
            return await self._run()
        except (asyncio.CancelledError, ClientLeft):
            self._leave(may_come=self._comes_back)
            raise
        finally:
            self._leave(may_come=self._shared)

    async def _run(self) -> web.StreamResponse:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(_left_s(self._requests)):
                    answer = await stack.enter_async_context(self._proxy.ask(self._request, self._body))
                    self.status = answer.status
                    if answer.content_type != "text/event-stream":
                        return await self._pass_on_text(answer)
            except aiohttp.ClientError as error:
                if self._response is not None:
                    return self._broken(self._requests)
                text = f"the MCP server does not answer: {error or type(error).__name__}"
                return self._own_answer([self._session.fail(one, text) for one in self._unanswered()], text, 502)
            except TimeoutError:
                if self._response is not None:  # a long text is on its way
                    return self._broken(self._requests)
                return self._give_up_all()
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
                await self._write(self._session.piece_from_server(piece))
        rest = body.rest()
        if self._response is not None:
            await self._write(rest)
            return await self._end()
        passed = self._session.piece_from_server(Piece(rest, first=True, last=True))
        if not (answer.status == 202 and self._shared):  # else the answer will come in another stream
            errors = [self._session.fail(one, _NO_ANSWER) for one in self._unanswered()]
            if errors and answer.status < 300 and not passed.strip():
                return self._own_answer(errors)
        return web.Response(status=answer.status, headers=_passing(answer), body=passed)

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
            if framing.inside:
                return self._broken(self._requests)
            if not self._unanswered() or self._comes_back:
                return self._broken([])
        if not self._comes_back:
            for one in self._unanswered():
                await self._write(event_with(self._session.fail(one, _NO_ANSWER)))
        return await self._end()

    async def _read(self, answer: ClientResponse) -> bytes:
        """The next bytes; meanwhile answer calls that take too long. Raises ``_NothingMore`` after the last."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience_s()):
                    return await answer.content.readany()
            late = self._session.give_up(self._watched(), clocks.awake_s())
            for error, stop in late:
                await self._write(event_with(error))
                self._proxy.notify(self._request, stop)
            if late and self._requests and not self._unanswered():
                raise _NothingMore

    def _event(self, piece: Piece) -> bytes:
        """What passes of an event."""
        if not piece.whole:
            return self._session.piece_from_server(piece)
        self._resumable = self._resumable or bool(event_id(piece.data))
        data = event_data(piece.data)
        if piece.data.startswith(b"event: endpoint"):  # of the older transport, whose answers all come here
            self._session, self._shared = self._proxy.session_at(data.decode(errors="replace").strip()), True
        passed = self._session.piece_from_server(Piece(data, first=True, last=True))
        if passed is data:
            return piece.data
        return event_with(passed, piece.data) if passed else b""

    # Time

    @property
    def _comes_back(self) -> bool:
        """Whether the client can read in another stream what this one has not brought."""
        return self._resumable and self._shared

    def _unanswered(self) -> list[Request]:
        return [one for one in self._requests if not one.answered]

    def _watched(self) -> list[Request]:
        """The calls that this stream may answer: its own, and those that no other brings."""
        if self._request.method == "GET" and self._shared:
            return [one for one in self._session.open if not one.carried]
        return self._unanswered()

    def _patience_s(self) -> float | None:
        """How long to wait for the server's next bytes; None: for ever, as where a long message is on its way."""
        if self._framing is not None and self._framing.inside:
            return None
        left_s = _left_s(self._watched())
        if self._request.method == "GET" and self._session.timeout_s:  # others may leave a call at any time
            return _LOOK_S if left_s is None else min(left_s, _LOOK_S)
        return left_s

    def _give_up_all(self) -> web.StreamResponse:
        """Answer a request of which nothing has come in time, and tell the server to stop."""
        late = self._session.give_up(self._requests, clocks.awake_s())
        errors = [error for error, _ in late]
        errors += [self._session.fail(one, "given up with a call beside it") for one in self._unanswered()]
        for _, stop in late:
            self._proxy.notify(self._request, stop)
        return self._own_answer(errors)

    # The client's side

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

    def _broken(self, over: list[Request]) -> web.StreamResponse:
        """Let the client see its answer break off, as the server's did; ``over`` get no other."""
        assert self._response is not None
        for one in over:
            self._session.fail(one, _NO_ANSWER)
        if self._request.transport is not None:
            self._request.transport.abort()
        return self._response

    def _own_answer(self, errors: list[bytes], text: str = "", status: int = 200) -> web.Response:
        if not errors:
            return web.json_response({"error": {"message": f"penstock: {text}"}}, status=status)
        is_batch = self._body.lstrip()[:1] == b"["
        body = batch(errors) if is_batch else errors[0]
        return web.Response(status=status, content_type="application/json", body=body)

    def _leave(self, *, may_come: bool) -> None:
        """Part from the requests: what has no answer yet may get it in another stream, or never."""
        for one in self._unanswered():
            one.carried = False
            if not may_come:
                self._session.fail(one, _NO_ANSWER)


class _NothingMore(Exception):
    """The stream's own calls are all answered."""


def _passing(answer: ClientResponse) -> list[tuple[str, str]]:
    left_out = of_a_connection(answer.headers.get("connection", "")) | {*_OF_AN_ANSWER}
    return [(name, text) for name, text in answer.headers.items() if name.lower() not in left_out]


def _left_s(requests: list[Request]) -> float | None:
    """How long until the first of them has taken too long; None: none ever will."""
    due_s = min((one.due_s for one in requests), default=math.inf)
    return None if due_s == math.inf else max(0.0, due_s - clocks.awake_s())


def of_a_connection(connection: str) -> set[str]:
    """The names of headers that do not pass; ``connection`` is the header of that name."""
    return {*_OF_A_CONNECTION, *(name.strip().lower() for name in connection.split(","))}


@contextlib.contextmanager
def _client_may_leave() -> Iterator[None]:
    try:
        yield
    except ConnectionResetError as error:
        raise ClientLeft from error
