"""To know that the server has read what was published."""

import asyncio
from typing import Protocol


class Connection(Protocol):
    """What of a NATS client this needs."""

    @property
    def pending_data_size(self) -> int:
        """Bytes that the client has not written yet."""

    async def flush(self, timeout: int) -> None:
        """Send a PING and wait for its PONG."""


async def delivered(client: Connection, timeout_s: int = 10) -> None:
    """Wait until the server has read all that was published and subscribed before. Raises what ``flush`` raises.

    ``flush`` of nats-py 2.16 alone is not enough: it writes its PING at once, ahead of what its writer task
    still holds, so the PONG says nothing of that.
    """
    await asyncio.sleep(0)  # the writer's turn
    if client.pending_data_size:  # it waits for a socket that is full: behind this PING it will have written
        await client.flush(timeout_s)
    await client.flush(timeout_s)
