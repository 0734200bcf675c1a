"""Real nats-servers that a test starts and kills, and what it asks of those that are left."""

import re
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nats
from nats.errors import Error as NatsError
from nats.js.api import StreamConfig
from support.daemon_process import eventually
from support.ports import is_listening

from controlplane.transport.nats_options import nats_options


@contextmanager
def running(*commands: tuple[str, ...], log: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    with log.open("ab") as output:
        processes = [subprocess.Popen(command, stdout=output, stderr=output) for command in commands]
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.wait(60)


async def connected(url: str) -> nats.aio.client.Client:
    async def listens() -> bool:
        return all(is_listening(int(port)) for port in re.findall(r":(\d+)(?=,|$)", url))

    await eventually(listens, what=f"a server at {url}")
    return await nats.connect(**nats_options(url), error_cb=_quiet, reconnect_time_wait=0.1)


async def _quiet(error: Exception) -> None:
    """Servers are killed here."""


async def made(client: nats.aio.client.Client, config: StreamConfig) -> None:
    await _led(lambda: client.jetstream().add_stream(config), f"stream {config.name}")


async def published(client: nats.aio.client.Client, subject: str, payload: bytes) -> None:
    """It is in its stream, perhaps twice."""
    await _led(lambda: client.jetstream().publish(subject, payload, timeout=1), f"an acknowledgement of {subject}")


async def _led(ask: Callable[[], Awaitable[object]], what: str) -> None:
    """Ask until it is done. A cluster drops what comes while it, or a stream, elects a leader."""

    async def attempt() -> bool:
        try:
            await ask()
        except (NatsError, TimeoutError):
            return False
        return True

    await eventually(attempt, what=what)
