"""What a page may have the daemon do: only for who shows the page's key, which who may command the daemon is told.

The key travels in a header of its own, which no other web site can have a browser send.
"""

import secrets
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from controlplane.core.errors import ConfigError
from controlplane.shell.what_if import BusyError, Question, WhatIf

MOST_BODY_BYTES = 16_384
_KEY_BYTES = 24
_SCHEME = "Bearer "
_WITHOUT_KEY = (
    "only who may command this daemon may do that: open the page at the address that `penstock page` prints; "
    "its key is another one after each start of the daemon\n"
)

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PageOrders:
    """``POST /what-if`` with a question begins a replay and ``DELETE`` ends it; ``/live`` tells what came of it.

    ``key`` is a secret of this life of the daemon.
    """

    def __init__(self, what_if: WhatIf) -> None:
        self.what_if = what_if
        self.key = secrets.token_urlsafe(_KEY_BYTES)

    def routes(self) -> list[web.RouteDef]:
        """To add to the page's."""
        return [
            web.post("/what-if", self._for_who_may(self._ask)),
            web.delete("/what-if", self._for_who_may(self._cancel)),
        ]

    def has_key(self, request: web.Request) -> bool:
        """Whether it shows the key. A header may have any bytes."""
        shown = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        return secrets.compare_digest(shown, f"{_SCHEME}{self.key}".encode())

    def _for_who_may(self, handler: _Handler) -> _Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            if not self.has_key(request):
                return web.Response(text=_WITHOUT_KEY, status=401, headers={"WWW-Authenticate": "Bearer"})
            return await handler(request)

        return handle

    async def _ask(self, request: web.Request) -> web.StreamResponse:
        try:
            question = msgspec.json.decode(await request.read(), type=Question)
            self.what_if.ask(question)
        except (msgspec.DecodeError, UnicodeDecodeError, ConfigError) as error:
            return web.Response(text=f"{error}\n", status=400)
        except BusyError as error:
            return web.Response(text=f"{error}\n", status=409)
        return web.Response(text="it is being replayed\n", status=202)

    async def _cancel(self, _: web.Request) -> web.StreamResponse:
        self.what_if.cancel()
        return web.Response(text="no replay is under way now\n")
