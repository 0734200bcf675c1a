"""Connections to the fleet's NATS servers, which soon leave a server that has died or is frozen for another one."""

from typing import Any

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError

from controlplane.core.errors import EngineUnavailable
from controlplane.wire.endpoint import shown
from controlplane.wire.nats_options import nats_options, servers

IMPATIENT: dict[str, Any] = {"ping_interval": 1, "max_outstanding_pings": 2}
"""A client's usual patience with a server that says nothing is minutes."""
_CONNECT_S = 3


async def connected(url: str, name: str) -> Client:
    """A client that comes back by itself. Raises ``EngineUnavailable`` if nobody answers there."""
    try:
        return await nats.connect(
            servers(url),
            name=name,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,
            connect_timeout=_CONNECT_S,
            error_cb=_quiet,
            **IMPATIENT,
            **nats_options(),
        )
    except (NatsError, OSError, TimeoutError) as error:
        raise EngineUnavailable(f"no NATS server answers at {shown(url)}: {error or 'nothing'}") from None


async def impatient(url: str | list[str], **options: Any) -> Client:
    """``nats.connect``, for a bus that is given how to connect."""
    return await nats.connect(url, **{**options, **IMPATIENT})


async def _quiet(error: Exception) -> None:
    """What fails for want of a server is told by whom it fails."""
