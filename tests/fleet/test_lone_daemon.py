"""A fleet of one daemon that stalls, or is gone for a while: what it held stays in its queue, off the engines."""

import asyncio
from pathlib import Path

from support.daemon_process import eventually
from support.held_turns import RETRIES, clients_of, of_envoy, one_slot, waiting

from controlplane.lab.fleet.processes import Kind
from controlplane.lab.fleet.site import Site

TURNS = 20
STALL_S = 2.0
TIMEOUT_S = 240.0
CUT = r"^http\.asking\.ext_proc\.streams_failed: (\d+)$"


async def is_cut(site: Site) -> bool:
    return await of_envoy(site, CUT) >= TURNS


async def are_held(site: Site, again: int = 0) -> bool:
    return await of_envoy(site, RETRIES) >= again and await waiting(site) == TURNS


async def held_on(site: Site) -> None:
    clients = await clients_of(site, TURNS)
    (daemon,) = site.of(Kind.DAEMON)
    try:
        for number, client in enumerate(clients[1:]):
            client.ask(f"held-{number}", 1000, 1)
        await eventually(lambda: are_held(site), what="held turns", timeout_s=TIMEOUT_S, every_s=0.1)
        daemon.freeze()
        await asyncio.sleep(STALL_S)  # which Envoy is to bear
        daemon.thaw()
        await eventually(lambda: are_held(site), what="turns held on", timeout_s=TIMEOUT_S, every_s=0.1)
        assert await of_envoy(site, RETRIES) == 0
        daemon.freeze()  # until Envoy has given it up and cut all that it held
        await eventually(lambda: is_cut(site), what="cut", timeout_s=TIMEOUT_S, every_s=0.1)
        daemon.thaw()
        await eventually(lambda: are_held(site, TURNS), what="held again", timeout_s=TIMEOUT_S, every_s=0.1)
        assert await of_envoy(site, RETRIES) == TURNS
        assert site.ways()["around"] == 0, "none was sent to an engine meanwhile"
        assert not any(client.is_answered for client in clients[1:])
    finally:
        for client in clients:
            client.close()


def test_what_a_lone_daemon_holds_is_held_on(tmp_path: Path) -> None:
    with one_slot(tmp_path) as site:
        asyncio.run(held_on(site))
