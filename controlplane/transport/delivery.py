"""To know that the server has read what was published."""

import asyncio
from typing import Protocol

_OVERDUE_S = 60  # by then each of our connections to a server that answers no ping has ended


class Connection(Protocol):
    """What of a NATS client this needs."""

    @property
    def pending_data_size(self) -> int:
        """Bytes that the client has not written yet."""

    async def flush(self, timeout: int) -> None:
        """Send a PING and wait for its PONG."""


async def delivered(client: Connection, timeout_s: float = 10) -> None:
    """Wait until the server has read all that was published and subscribed before.

    Raises ``TimeoutError`` if it does not say so in time, and what ``flush`` raises.

    ``flush`` of nats-py 2.16 alone is not enough: it writes its PING at once, ahead of what its writer task
    still holds, so the PONG says nothing of that.
    """
    await asyncio.sleep(0)  # the writer's turn
    if client.pending_data_size:  # it waits for a socket that is full: behind this PING it will have written
        await _answered(client, timeout_s)
    await _answered(client, timeout_s)


async def _answered(client: Connection, timeout_s: float) -> None:
    """``flush``, whose own limit is never reached: a PONG that comes after it ends the reading of nats-py 2.16.

    The connection would hear nothing any more, and take itself for connected until its pings are overdue.
    """
    asked = asyncio.ensure_future(client.flush(_OVERDUE_S))
    asked.add_done_callback(_seen)
    done, _ = await asyncio.wait({asked}, timeout=timeout_s)
    if not done:
        raise TimeoutError(f"the server has not answered within {timeout_s:g} s")
    asked.result()


def _seen(asked: "asyncio.Future[None]") -> None:
    """What comes of it when nobody waits any more is no error that nobody saw."""
    if not asked.cancelled():
        asked.exception()
