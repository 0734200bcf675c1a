"""Turns that are held: one program has the only slot for long, and others ask."""

import asyncio
import json
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.lab.fleet.processes import Kind
from controlplane.lab.fleet.site import Site, SiteOptions, running_site
from support.daemon_process import eventually

RETRIES = r"^cluster\.inner\.upstream_rq_retry: (\d+)$"  # in Envoy's statistics
_LONG = 60_000  # tokens of the turn that keeps the only slot
_ACTIVE = r'^penstock_programs\{.*"active".*\} (\S+)'
_WAITING = r"^penstock_waiting_turns (\S+)"


class Client:
    """A connection, and one turn over it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.answer: asyncio.Task[bytes] | None = None

    @classmethod
    async def connected(cls, port: int) -> "Client":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def ask(self, program: str, size: int, tokens: int) -> None:
        """All of it in one piece, from memory: nothing but Envoy and its daemon takes time from now on."""
        body = {"model": "m", "messages": [{"role": "user", "content": "x" * size}], "program_id": program}
        data = json.dumps(body | {"max_tokens": tokens, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: fleet\r\ncontent-length: {len(data)}\r\n"
        self._writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + data)
        self.answer = asyncio.ensure_future(self._reader.read(100))

    @property
    def is_answered(self) -> bool:
        return self.answer is not None and self.answer.done()

    def close(self) -> None:
        if self.answer is not None:
            self.answer.cancel()
        self._writer.close()


@contextmanager
def one_slot(folder: Path) -> Iterator[Site]:
    """A site of one engine, one daemon and one Envoy, which asks that daemon."""
    window = '[admission]\npolicy = "fixed"\nwindow = 1\n'
    options = SiteOptions(engines=1, daemons=1, envoys=1, time_scale=1, pool_tokens=200_000, more=window)
    with running_site(options, folder) as site:
        while not site.is_asked():  # until then turns go around the daemon
            time.sleep(0.1)
        yield site


async def clients_of(site: Site, turns: int) -> list[Client]:
    """So many that have not asked yet, behind one that has the slot and keeps it."""
    (envoy,) = site.of(Kind.ENVOY)
    first, *others = [await Client.connected(envoy.port) for _ in range(1 + turns)]
    first.ask("first", 5, _LONG)

    async def has_slot() -> bool:
        return await _on_page(site, _ACTIVE) == 1

    await eventually(has_slot, what="slot of the first program")
    return [first, *others]


async def waiting(site: Site) -> int:
    """How many turns the daemon holds."""
    return await _on_page(site, _WAITING)


async def of_envoy(site: Site, pattern: str) -> int:
    """What Envoy counts."""
    (envoy,) = site.of(Kind.ENVOY)
    return await asyncio.to_thread(_counted, f"{site.admin(envoy)}/stats", pattern)


async def _on_page(site: Site, pattern: str) -> int:
    (daemon,) = site.of(Kind.DAEMON)
    return await asyncio.to_thread(_counted, site.metrics(daemon), pattern)


def _counted(url: str, pattern: str) -> int:
    """The sum of the numbers that a page has, of which there is at least one."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        found = re.findall(pattern, answer.read().decode(), re.MULTILINE)
    assert found, f"{pattern} is not on {url}"
    return sum(int(float(number)) for number in found)
