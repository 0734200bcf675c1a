"""Real nats-servers that a test starts and kills, and what it asks of those that are left."""

import re
import subprocess
from collections.abc import Iterator
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
    async def attempt() -> bool:
        try:
            await client.jetstream().add_stream(config)
        except (NatsError, TimeoutError):  # the cluster has no leader yet
            return False
        return True

    await eventually(attempt, what=f"stream {config.name}")


async def published(client: nats.aio.client.Client, subject: str, payload: bytes) -> None:
    """It is in its stream, perhaps twice. A cluster drops what comes while a stream's leader is elected."""

    async def attempt() -> bool:
        try:
            await client.jetstream().publish(subject, payload, timeout=1)
        except (NatsError, TimeoutError):
            return False
        return True

    await eventually(attempt, what=f"an acknowledgement of {subject}")
