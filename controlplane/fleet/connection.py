"""Connections to the fleet's NATS servers, which soon leave a server that has died or is frozen for another one."""

from collections import deque
from contextlib import suppress
from typing import Any

import nats
from anyio import fail_after, move_on_after
from nats.aio.client import Client
from nats.errors import Error as NatsError

from controlplane.core.model.errors import EngineUnavailable
from controlplane.daemon.process.logs import logger
from controlplane.transport.nats_options import nats_options, refusal
from controlplane.transport.nats_url import redact

IMPATIENT: dict[str, Any] = {"ping_interval": 1, "max_outstanding_pings": 2}
"""A client's usual patience with a server that says nothing is minutes."""
_log = logger("fleet")
_LAST_ERRORS = 8
_CONNECT_S = 3  # to one server
_CLOSES_WITHIN_S = 2.0
_WITHIN_S = 10.0  # a server that is frozen may be the first of several


async def connected(url: str, name: str, *, within_s: float = _WITHIN_S) -> Client:
    """A client that comes back by itself. Raises ``EngineUnavailable`` if nobody answers there in that time."""
    errors: deque[Exception] = deque(maxlen=_LAST_ERRORS)

    async def on_error(error: Exception) -> None:
        """The first is logged, as somebody may wait; what fails later is told by whom it fails."""
        if not errors:
            _log.warning("no NATS server", url=redact(url), error=str(error) or type(error).__name__)
        errors.append(error)

    client = Client()
    options: dict[str, Any] = {
        "name": name,
        "max_reconnect_attempts": -1,  # this holds for the first connection too, hence the limit
        "reconnect_time_wait": 0.2,
        "connect_timeout": _CONNECT_S,
        "error_cb": on_error,
        **IMPATIENT,
        **nats_options(url),
    }
    try:
        with fail_after(within_s):
            await client.connect(**options)
    except BaseException as error:
        with move_on_after(_CLOSES_WITHIN_S, shield=True), suppress(NatsError, OSError, TimeoutError):
            await client.close()
        if isinstance(error, NatsError | OSError | TimeoutError):
            why = refusal(errors) or str(error) or f"nothing within {within_s:g} s"
            raise EngineUnavailable(f"no NATS server answers at {redact(url)}: {why}") from None
        raise
    return client


async def impatient(**options: Any) -> Client:
    """``nats.connect``, for a bus that is given how to connect."""
    return await nats.connect(**{**options, **IMPATIENT})
