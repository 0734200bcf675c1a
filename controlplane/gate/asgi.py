"""The little of ASGI that the gate needs: types, a request that is read twice, a JSON answer."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
SendMessage = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, SendMessage], Awaitable[None]]


class ClientGone(Exception):
    """The client disconnected before its request was complete."""


class Replay:
    """The receive side of a request whose body has already been read.

    The application gets the body once more, then whatever comes after it (the disconnect). ``listen`` waits for
    that while the turn is held, and the application still gets everything that ``listen`` heard.
    """

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive
        self._next: asyncio.Future[Message] | None = None

    def put(self, body: bytes) -> None:
        """The application is to get this body instead."""
        self._body = body

    def listen(self) -> "asyncio.Future[Message]":
        """The next message after the body, as a future; a disconnect stays the next one for good."""
        if self._next is None or (self._next.done() and self._next.result()["type"] != "http.disconnect"):
            self._next = asyncio.ensure_future(self._receive())
        return self._next

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if self._next is None:
            return await self._receive()
        pending = self._next
        # A reader that gives up must not take the message with it: the next one waits for the same.
        message = await asyncio.shield(pending)
        if self._next is pending and message["type"] != "http.disconnect":
            self._next = None
        return message

    def close(self) -> None:
        """Stop listening: the request is over."""
        if self._next is None:
            return
        if not self._next.done():
            self._next.cancel()
        elif not self._next.cancelled():
            self._next.exception()  # looked at, so that nobody warns that it was not
        self._next = None


async def send_json(
    send: SendMessage, status: int, content: object, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Answer with ``content`` as JSON."""
    body = json.dumps(content).encode()
    fixed = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
