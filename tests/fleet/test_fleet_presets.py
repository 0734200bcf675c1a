"""What presets do in a fleet of three engine doubles, of which one is crowded: they pause, and restore elsewhere.

At first one engine takes programs. Two of the three there have turns that run on and on, and ask for more than its
pool holds; the third one's tool runs. What then becomes of that one is the preset's rule.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.daemon_process import BusClient
from support.fleets import penstock, running

from controlplane.core.model import commands as cmd
from controlplane.fleet.registry import registry
from controlplane.fleet.roster import Standing
from controlplane.lab.fleet.processes import Kind
from controlplane.lab.fleet.site import Site, SiteOptions, running_site

pytestmark = pytest.mark.asyncio
SCALE = 10.0
WORD_TOKENS = 64
SMALL, LARGE = 9_000, 18_000  # tokens of prompts
LONG = 20_000  # of an output: nobody waits for its end
CROWDED = "node-1/engine"
OTHERS = ("node-2/engine", "node-3/engine")


@contextmanager
def site_of(preset: str, folder: Path, *double: str) -> Iterator[Site]:
    options = SiteOptions(
        daemons=1,
        envoys=1,
        pool_tokens=40_000,
        tokens_per_word=WORD_TOKENS,
        time_scale=SCALE,
        preset=preset,
        double=double,
    )
    with running_site(options, folder) as site:
        yield site


class Crowd:
    """The programs, and who watches the daemon."""

    def __init__(self, site: Site, http: aiohttp.ClientSession, bus: BusClient) -> None:
        self.site, self.http, self.bus = site, http, bus
        self.running: dict[str, asyncio.Task[None]] = {}

    async def turn(self, name: str, tokens: int, output: int = 1) -> None:
        prompt = f"{name} " + "word " * (tokens // WORD_TOKENS)
        body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": output}
        headers = {"x-penstock-program-id": name}
        url = f"{self.site.urls[0]}/v1/chat/completions"
        async with self.http.post(url, json=body, headers=headers) as answer:
            text = await answer.text()  # to its end: a turn that its client left is nothing to continue
            assert answer.status == 200, text

    def begin(self, name: str, tokens: int, output: int = 1) -> None:
        self.running[name] = asyncio.ensure_future(self.turn(name, tokens, output))

    async def leave(self, *names: str) -> None:
        """Their clients go."""
        for name in names:
            self.running[name].cancel()
        await asyncio.wait([self.running.pop(name) for name in names])

    async def stands(self, name: str, what: str, **wanted: Any) -> None:
        """Return once the program is so."""

        def is_so(status: dict[str, Any]) -> bool:
            found = status["programs"].get(name, {})
            return all(found.get(key) == value for key, value in wanted.items())

        await self.bus.status_where(is_so, f"{name}: {what}")

    async def begin_held(self, name: str, tokens: int) -> None:
        """Begin a paused program's turn, which the gate holds. One that outran the pause is left."""
        while True:
            pauses = self.pauses(name)
            self.begin(name, tokens)
            status = await self.bus.status_where(
                lambda s: s["programs"][name]["queued_turns"] or s["programs"][name]["open_turns"], f"{name}'s turn"
            )
            if not status["programs"][name]["open_turns"]:
                return
            await self.leave(name)
            await self.bus.hears(lambda _, before=pauses: self.pauses(name) > before, f"{name} to be paused again")

    def pauses(self, name: str) -> int:
        """How often the program was paused."""
        return sum(isinstance(each, cmd.Pause) and each.program_id == name for each in self.bus.commands)

    def places(self, name: str) -> list[str]:
        """Where it was sent, until it was let in last: from then on its next turn is placed."""
        own = [c for c in self.bus.commands if isinstance(c, cmd.Place | cmd.Admit) and c.program_id == name]
        while isinstance(own[-1], cmd.Place):
            own.pop()
        return [c.replica for c in own if isinstance(c, cmd.Place)]

    async def serve_on(self, places: tuple[str, ...], standing: Standing) -> None:
        """These engines take programs, or take none."""
        async with registry(self.site.nats_url, "fleet") as known:
            engines = {engine.place: engine for engine in await known.engines()}
            await known.put(*(replace(engines[place], standing=standing) for place in places))
        takes = len(engines) - (len(places) if standing is Standing.DRAINING else 0)
        await self.bus.status_where(lambda s: s["status"]["engines"]["serving"] == takes, f"{takes} that serve")


@asynccontextmanager
async def crowd(site: Site) -> AsyncIterator[Crowd]:
    """The first engine's pool is asked for more than it holds, and a program there was paused whose tool runs."""
    bus = await BusClient.connect(site.nats_url, "fleet")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        c = Crowd(site, http, bus)
        try:
            await c.serve_on(OTHERS, Standing.DRAINING)
            for name in ("acts", "runs", "runs on"):
                await c.turn(name, SMALL)
            for name in ("runs", "runs on"):
                c.begin(name, LARGE, LONG)
            await bus.hears(lambda each: isinstance(each, cmd.Pause) and each.program_id == "acts", "its pause")
            yield c
        finally:
            await c.leave(*c.running)
            await bus.close()


async def test_a_program_that_thunderagent_paused_goes_on_wherever_there_is_room(tmp_path: Path) -> None:
    with site_of("thunderagent", tmp_path) as site:
        async with crowd(site) as c:
            pause = await c.bus.hears(
                lambda each: isinstance(each, cmd.Pause) and each.program_id == "acts", "its pause"
            )
            assert "of the pool: acting" in pause.reason
            await c.begin_held("acts", SMALL + 1000)
            await c.stands("acts", "its turn at the gate", status="waiting", replica=CROWDED)
            await c.serve_on(OTHERS, Standing.SERVING)
            await c.running["acts"]
            first, then = c.places("acts")
            assert (first, then in OTHERS) == (CROWDED, True)


async def test_moris_queue_is_one_and_its_tiers_are_each_engines(tmp_path: Path) -> None:
    with site_of("mori", tmp_path, "--tier", "dram:200000:50") as site:
        options = ("up", "--node", "node-1", "--nats", site.nats_url, "--preset", "mori")
        options += ("--time-scale", f"{SCALE:g}", "--state-dir", str(tmp_path / "own"))
        node = penstock("own", tmp_path, *options)
        with running(node):
            await node.says('"event": "up"')
            async with crowd(site) as c:
                # Its node's daemon has moved it to the host; the fleet, which did not, has heard so.
                await c.stands("acts", "its context on the host", kv_tier="host", status="paused")
                assert not any(isinstance(each, cmd.Demote | cmd.Label) for each in c.bus.commands)
                c.begin("new", LARGE)
                await c.begin_held("acts", SMALL + 1000)
                for name in ("acts", "new"):
                    await c.stands(name, "its turn at the gate", status="waiting")
                await c.serve_on(OTHERS, Standing.SERVING)
                await c.running["new"]
                assert c.places("new")[0] in OTHERS
                await c.leave("runs", "runs on")
                await c.running["acts"]
                assert c.places("acts") == [CROWDED], "its copy is there"
    (daemon,) = site.of(Kind.DAEMON)
    told = [json.loads(line) for line in daemon.log.read_text().splitlines() if "left to the nodes" in line]
    assert "moves to host memory and labels (retention tiers)" in told[0]["what"]
