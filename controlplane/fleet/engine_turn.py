"""What a turn's engine does first and afterwards, where it has no plugin and an API of its own for that."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from controlplane.gate.engine_api import EngineApi
from controlplane.gate.tickets import Ticket

_PATIENCE_S = 1.0  # after that the proxy is told that the turn is held


class EngineTurn:
    """One turn at an ``EngineApi``, which hears of its end once, whoever says so."""

    def __init__(self, api: EngineApi, ticket: Ticket) -> None:
        self._api: EngineApi | None = api
        self._ticket = ticket
        self.fields: Mapping[str, object] = {}  # to set in its JSON body

    async def begin(self, path: str, is_held: Callable[[], Awaitable[None]]) -> None:
        """Wait until the engine is ready for it. ``is_held`` is called if that takes long."""
        if self._api is None:
            return
        ready = asyncio.ensure_future(self._api.before_turn(self._ticket, path))
        try:
            await asyncio.wait({ready}, timeout=_PATIENCE_S)
            if not ready.done():
                await is_held()
            self.fields = await ready
        except BaseException:
            ready.cancel()
            with suppress(asyncio.CancelledError):
                await ready
            self.end()
            raise

    def end(self) -> None:
        """The turn is over, or was never sent."""
        api, self._api = self._api, None
        if api is not None:
            api.turn_ended(self._ticket)
