"""A fleet of one daemon that stalls, or is gone for a while: what it held stays in its queue, off the engines."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.daemon_process import eventually
from support.held_turns import RETRIES, clients_of, of_envoy, one_slot, waiting

from controlplane.lab.fleet.processes import Kind
from controlplane.lab.fleet.site import Site

TURNS = 20
STALL_S = 2.0
TIMEOUT_S = 120.0
CUT = r"^http\.asking\.ext_proc\.streams_failed: (\d+)$"


async def stalled(site: Site) -> int:
    """Stop the daemon for a time that Envoy is to bear, and return how often turns have to be asked again."""
    (daemon,) = site.of(Kind.DAEMON)
    daemon.freeze()
    await asyncio.sleep(STALL_S)
    daemon.thaw()
    return 0


async def cut_off(site: Site) -> int:
    """As ``stalled``, until Envoy has given the daemon up and cut all that it held."""
    (daemon,) = site.of(Kind.DAEMON)
    daemon.freeze()

    async def is_cut() -> bool:
        return await of_envoy(site, CUT) >= TURNS

    await eventually(is_cut, what="cut", timeout_s=TIMEOUT_S, every_s=0.1)
    daemon.thaw()
    return TURNS


async def are_held(site: Site, again: int = 0) -> bool:
    return await of_envoy(site, RETRIES) >= again and await waiting(site) == TURNS


async def held_on(site: Site, fault: Callable[[Site], Awaitable[int]]) -> None:
    clients = await clients_of(site, TURNS)
    try:
        for number, client in enumerate(clients[1:]):
            client.ask(f"held-{number}", 1000, 1)
        await eventually(lambda: are_held(site), what="held turns", timeout_s=TIMEOUT_S, every_s=0.1)
        again = await fault(site)
        await eventually(lambda: are_held(site, again), what="turns held on", timeout_s=TIMEOUT_S, every_s=0.1)
        assert await of_envoy(site, RETRIES) == again
        assert site.ways()["around"] == 0, "none was sent to an engine meanwhile"
        assert not any(client.is_answered for client in clients[1:])
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize("fault", [stalled, cut_off])
def test_what_a_lone_daemon_holds_is_held_on(fault: Callable[[Site], Awaitable[int]], tmp_path: Path) -> None:
    with one_slot(tmp_path) as site:
        asyncio.run(held_on(site, fault))
