"""A batch of rollouts with new weights in its middle: NATS, fleet daemon and Envoy before two engine doubles."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.daemon_process import eventually
from support.heard import Heard

from controlplane.core.model.events import CacheFlushed, FirstToken, TurnEnded
from controlplane.lab.fleet.site import Site, SiteOptions, running_site

GROUPS = {f"g{number}": size for number, size in enumerate((4, 4, 8))}
MEMBERS = [(group, f"{group}-{member}") for group, size in GROUPS.items() for member in range(size)]
TURNS = 3


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    options = SiteOptions(engines=2, daemons=1, envoys=1, pool_tokens=400_000)
    with running_site(options, tmp_path / "site") as found:
        yield found


class Rollout:
    """One trajectory: its agent answers each reply."""

    def __init__(self, http: aiohttp.ClientSession, url: str, group: str, name: str) -> None:
        self._http, self._url, self.group, self.name = http, url, group, name
        task = " ".join([f"{group} word"] * 40)
        self._messages = [{"role": "system", "content": task}, {"role": "user", "content": name}]

    async def turn(self) -> None:
        body: dict[str, Any] = {"messages": self._messages, "max_tokens": 64, "program_id": self.name}
        body |= {"group_id": self.group, "group_size": GROUPS[self.group]}
        async with self._http.post(f"{self._url}/v1/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            reply = (await response.json())["choices"][0]["message"]
        answer = {"role": "user", "content": f"{self.name} goes on"}
        self._messages = [*self._messages, {"role": "assistant", "content": reply["content"]}, answer]

    async def end(self) -> None:
        async with self._http.post(f"{self._url}/programs/release", json={"program_id": self.name}) as response:
            assert (await response.json())["ended"]


async def test_each_group_is_prefilled_once_on_one_engine_and_new_weights_end_every_context(site: Site) -> None:
    (url,) = site.urls
    with ExitStack() as open_until_the_end:
        nodes = [
            open_until_the_end.enter_context(closing(Heard(site.nats_url.split(",")[0], each.name)))
            for each in site.engines
        ]
        async with aiohttp.ClientSession() as http:
            rollouts = [Rollout(http, url, *member) for member in MEMBERS]
            for number in range(TURNS):
                await asyncio.wait_for(asyncio.gather(*(each.turn() for each in rollouts)), 120)
                if number == 1:
                    for engine in site.engines:
                        async with http.post(f"http://{engine.address}/flush_cache") as response:
                            assert response.status == 200
            await eventually(lambda: len(ends(nodes)) == len(MEMBERS) * TURNS, what="all ends", timeout_s=60)
            _one_prefill_on_one_engine(nodes)
            _contexts_ended(nodes)
            for each in rollouts:
                await each.end()
            await eventually(lambda: _nothing_is_held(site), what="nothing held at the end", timeout_s=60)


def ends(nodes: list[Heard]) -> list[TurnEnded]:
    return [event for node in nodes for event in node.of(TurnEnded)]


def _firsts(node: Heard, name: str) -> list[FirstToken]:
    return node.of(FirstToken, program_id=name)


def _one_prefill_on_one_engine(nodes: list[Heard]) -> None:
    for group in GROUPS:
        names = [name for of, name in MEMBERS if of == group]
        begun = {name: [n for n, node in enumerate(nodes) if _firsts(node, name)] for name in names}
        assert len({where[0] for where in begun.values()}) == 1, begun
        firsts = [_firsts(nodes[where[0]], name)[0] for name, where in begun.items()]
        assert sorted(each.cached_tokens > 0 for each in firsts) == [False, *[True] * (len(names) - 1)]
        assert min(each.cached_tokens for each in firsts if each.cached_tokens) > firsts[0].prompt_tokens / 2


def _contexts_ended(nodes: list[Heard]) -> None:
    assert all(node.of(CacheFlushed) for node in nodes)
    for _, name in MEMBERS:
        tokens = [each.cached_tokens for node in nodes for each in _firsts(node, name)]
        first, second, third = tokens
        assert second > first, "it found its own context"
        assert third <= max(first, second - 1), "of its own context nothing was left: at most the group's prompt"


def _nothing_is_held(site: Site) -> bool:
    """No slot, no held turn and no pin, by the daemon's own word."""
    words = [sys.executable, "-m", "controlplane", "status", "--json", "--node", "fleet"]
    done = subprocess.run([*words, "--state-dir", str(site.folder / "fleet-1")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pressure = json.loads(done.stdout)["pressure"]
    names = ("programs_active", "queue_length", "kv_retained_blocks")
    return not any(pressure.get(name) for name in names)  # what is 0 may be left out
