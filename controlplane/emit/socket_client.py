"""A client of the daemon's Unix socket, in place of a NATS client, for agents without the bus's credentials."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from controlplane.core.model.errors import RemoteEventError
from controlplane.wire.frames import MAX_FRAME_BYTES, Frame, pack, read

_Handler = Callable[[Any], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Message:
    data: bytes


class SocketClient:
    """One connection. ``on_refused`` gets the reason of a refused batch; ``on_closed`` is called when it ends.

    ``on_commands`` must be given at the start, since the daemon's first frame is a command.
    """

    max_payload = MAX_FRAME_BYTES
    pending_data_size = 0  # a batch is written at once

    def __init__(
        self, on_refused: Callable[[str], None], on_closed: Callable[[], Awaitable[None]], on_commands: _Handler
    ) -> None:
        self.is_closed = False
        self._on_refused = on_refused
        self._on_closed = on_closed
        self._on_commands = on_commands
        self._sent = 0
        self._answered = 0
        self._answer = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def connect(self, path: str) -> None:
        """Connect to the socket. Raises ``OSError`` if nobody listens."""
        self._reader, self._writer = await asyncio.open_unix_connection(path)
        self._reading = asyncio.ensure_future(self._read())

    async def subscribe(self, subject: str, cb: _Handler) -> None:
        """Do nothing: commands come anyway, and the socket carries no heartbeats."""

    async def publish(self, subject: str, data: bytes) -> None:
        """Send one batch; the daemon knows its subject."""
        self._writer.write(pack(Frame.EVENTS, data))
        self._sent += 1
        await self._writer.drain()

    async def flush(self, timeout_s: float) -> None:
        """Wait until every batch is answered. Raises ``ConnectionError`` or ``TimeoutError``."""
        async with asyncio.timeout(timeout_s):
            while self._answered < self._sent:
                if self.is_closed:
                    raise ConnectionError("the daemon closed the socket")
                self._answer.clear()
                await self._answer.wait()

    async def close(self) -> None:
        self.is_closed = True
        if self._reading is not None:
            self._reading.cancel()
            self._writer.close()

    async def _read(self) -> None:
        try:
            while (frame := await read(self._reader)) is not None:
                await self._take(*frame)
        except RemoteEventError as error:
            self._on_refused(str(error))
        finally:
            self.is_closed = True
            self._answer.set()
        await self._on_closed()

    async def _take(self, kind: int, data: bytes) -> None:
        if kind == Frame.COMMANDS:
            await self._on_commands(_Message(data))
            return
        if kind == Frame.REFUSED:
            self._on_refused(data.decode(errors="replace"))
        self._answered += 1
        self._answer.set()
