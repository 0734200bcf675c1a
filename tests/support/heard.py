"""What is told on a node's bus."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import nats
from nats.aio.client import Client

from controlplane.core.model.events import Event
from controlplane.transport.delivery import delivered
from controlplane.transport.subjects import all_events_subject
from controlplane.wire.codec import DecodedBatch, decode_events
from support.daemon_process import TIMEOUT_S, until


class Heard:
    """The events of a node, on a thread of its own."""

    def __init__(self, url: str, node: str) -> None:
        self.batches: list[DecodedBatch] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._client = self._do(self._connect(url, node))

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    async def _connect(self, url: str, node: str) -> Client:
        async def hear(message: Any) -> None:
            self.batches.append(decode_events(message.data))

        async def ignore(error: Exception) -> None:
            """Where a server ends, so does the connection."""

        client = await nats.connect(url, allow_reconnect=False, connect_timeout=round(TIMEOUT_S), error_cb=ignore)
        await client.subscribe(all_events_subject(node), cb=hear)
        await delivered(client)
        return client

    def publish(self, subject: str, data: bytes) -> None:
        async def work() -> None:
            await self._client.publish(subject, data)
            await delivered(self._client)

        self._do(work())

    @property
    def events(self) -> list[Any]:
        return [event for batch in list(self.batches) for event in batch.events]

    def of(self, kind: type[Event], **fields: object) -> list[Any]:
        """Those of that kind with these fields, in order."""
        return [
            event
            for event in self.events
            if type(event) is kind and all(getattr(event, name) == value for name, value in fields.items())
        ]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            until(condition, what)
        except AssertionError as error:
            raise AssertionError(f"{error} among:\n" + "\n".join(map(str, self.events))) from None

    def first(self, count: int) -> list[Any]:
        """All events, once there are so many."""
        until(lambda: sum(len(batch.events) for batch in list(self.batches)) >= count, f"{count} events")
        return self.events

    def close(self) -> None:
        self._do(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
