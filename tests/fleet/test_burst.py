"""A thousand turns at once on a machine that is busy: each is held by its daemon, and none is asked for again."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.held_turns import RETRIES, clients_of, of_envoy, one_slot, waiting

from controlplane.lab.fleet.site import Site

TURNS = 1000
BYTES = 100_000  # of each body
BUSY = 2  # loops that do nothing but take CPU time
TIMEOUT_S = 150.0
TIMEOUTS = (
    r"ext_proc\.message_timeouts: (\d+)$"  # by Envoy's count, of daemons that did not say in time that they hold
)


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


async def held_at_once(site: Site) -> dict[str, int]:
    """What is counted once every turn is held, or one is answered."""
    clients = await clients_of(site, TURNS)
    with busy():
        began_s = time.monotonic()
        for number, client in enumerate(clients[1:]):
            client.ask(f"held-{number}", BYTES, 1)
        held = 0
        while (
            held < TURNS and time.monotonic() < began_s + TIMEOUT_S and not any(c.is_answered for c in clients[1:])
        ):
            await asyncio.sleep(0.25)
            held = await waiting(site)
        took_s = time.monotonic() - began_s
    found = {
        "held": held,
        "answered": sum(client.is_answered for client in clients[1:]),
        "timeouts": await of_envoy(site, TIMEOUTS),
        "asked again": await of_envoy(site, RETRIES),
        "around": site.ways()["around"],
    }
    for client in clients:
        client.close()
    print(f"{held} held after {took_s:.1f} s")  # noqa: T201
    return found


def test_a_thousand_turns_at_once_are_held_on_a_busy_machine(tmp_path: Path) -> None:
    with one_slot(tmp_path) as site:
        found = asyncio.run(held_at_once(site))
    assert found == {"held": TURNS, "answered": 0, "timeouts": 0, "asked again": 0, "around": 0}
