"""A thousand turns at once on a machine that is busy: each is held by its daemon, and none is asked for again."""

import asyncio
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.lab.fleet.processes import Kind
from controlplane.lab.fleet.site import Site, SiteOptions, running_site

TURNS = 1000
BYTES = 100_000  # of each body
BUSY = 2  # loops that do nothing but take CPU time
LONG = 60_000  # tokens of the turn that keeps the only slot
TIMEOUT_S = 150.0
ONE = '[admission]\npolicy = "fixed"\nwindow = 1\n'
TIMEOUTS = (
    r"ext_proc\.message_timeouts: (\d+)$"  # by Envoy's count, of daemons that did not say in time that they hold
)
RETRIES = r"^cluster\.inner\.upstream_rq_retry: (\d+)$"


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
def busy() -> Iterator[None]:
    """Others want the CPUs too."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def counted(url: str, pattern: str) -> int:
    """The sum of the numbers that a page has, of which there is at least one."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        found = re.findall(pattern, answer.read().decode(), re.MULTILINE)
    assert found, f"{pattern} is not on {url}"
    return sum(int(float(number)) for number in found)


async def held_at_once(site: Site) -> dict[str, int]:
    """What is counted once every turn is held, or one is answered."""
    (daemon,), (envoy,) = site.of(Kind.DAEMON), site.of(Kind.ENVOY)
    page, stats = site.metrics(daemon), f"{site.admin(envoy)}/stats"
    clients = [await Client.connected(envoy.port) for _ in range(1 + TURNS)]
    clients[0].ask("first", 5, LONG)
    while await asyncio.to_thread(counted, page, r'^penstock_programs\{.*"active".*\} (\S+)') < 1:  # noqa: ASYNC110
        await asyncio.sleep(0.1)  # until it has the slot
    with busy():
        began_s = time.monotonic()
        for number, client in enumerate(clients[1:]):
            client.ask(f"held-{number}", BYTES, 1)
        held = 0
        while (
            held < TURNS and time.monotonic() < began_s + TIMEOUT_S and not any(c.is_answered for c in clients[1:])
        ):
            await asyncio.sleep(0.25)
            held = await asyncio.to_thread(counted, page, r"^penstock_waiting_turns (\S+)")
        took_s = time.monotonic() - began_s
    found = {
        "held": held,
        "answered": sum(client.is_answered for client in clients[1:]),
        "timeouts": counted(stats, TIMEOUTS),
        "asked again": counted(stats, RETRIES),
        "around": site.ways()["around"],
    }
    for client in clients:
        client.close()
    print(f"{held} held after {took_s:.1f} s")  # noqa: T201
    return found


def test_a_thousand_turns_at_once_are_held_on_a_busy_machine(tmp_path: Path) -> None:
    options = SiteOptions(engines=1, daemons=1, envoys=1, time_scale=1, pool_tokens=200_000, more=ONE)
    with running_site(options, tmp_path) as site:
        while not site.is_asked():  # until then turns go around the daemon
            time.sleep(0.1)
        found = asyncio.run(held_at_once(site))
    assert found == {"held": TURNS, "answered": 0, "timeouts": 0, "asked again": 0, "around": 0}
