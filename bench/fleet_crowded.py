"""What pausing brings a fleet of three engine doubles of which one is crowded.

    .venv/bin/python bench/fleet_crowded.py [--programs N] [--seeds N] [--json]

One engine takes programs first, and the two others join when it is crowded (ThunderAgent §4.3.2, Figure 3). All
parts are real but the engines: NATS servers, a fleet daemon, an Envoy. Three ways to serve the same load:

session: `fcfs`, whose placement by session moves programs off a crowded engine; nobody waits or is paused.
no pauses: `thunderagent` with `[retention] policy = "never"`: programs wait for room, and keep their slots.
thunderagent: programs are paused where the demand exceeds the pool, and restored on any engine.

Times are the engines', which run 5 times as fast as the clock: much faster ones would measure the machine.
"""

import argparse
import asyncio
import json
import statistics
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ab  # noqa: F401  makes the tests' helpers importable
from support.whole_loop import Quiet

from controlplane.core.model.commands import Pause, Place
from controlplane.fleet.connection import connected
from controlplane.fleet.registry import registry
from controlplane.fleet.roster import Standing
from controlplane.lab.fleet.site import Site, SiteOptions, running_site
from controlplane.lab.load.options import ReplayOptions
from controlplane.lab.load.replay import replay
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.synthetic import synthesize
from controlplane.transport.subjects import command_subject
from controlplane.wire.codec import decode_commands

FLEET, FIRST = "fleet", "node-1/engine"
SCALE, WORD_TOKENS = 5.0, 64
PROFILE = "b200-llama31-70b"  # where computing a context again costs much
POOL_TOKENS = 60_000
JOIN_S = 200.0  # of engine time
RATE = 0.4  # programs a second
NEVER = '[retention]\npolicy = "never"\n'
WAYS = {"session": ("fcfs", ""), "no pauses": ("thunderagent", NEVER), "thunderagent": ("thunderagent", "")}


class Watch:
    """Counts what the fleet's daemon commands, and lets the other engines join in time. Runs in its own thread."""

    def __init__(self, url: str) -> None:
        self.counts: Counter[str] = Counter()
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._watch(),))

    @contextmanager
    def running(self) -> Iterator[None]:
        """For as long as the load runs. At first only one engine takes programs."""
        self._thread.start()
        self._ready.wait()
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()
            self._loop.close()

    async def _watch(self) -> None:
        client = await connected(self._url, "bench")
        try:
            await client.subscribe(command_subject(FLEET), cb=self._hear)
            await self._stand(Standing.DRAINING)
            self._ready.set()
            await asyncio.sleep(JOIN_S / SCALE)
            await self._stand(Standing.SERVING)
            await self._over.wait()
        finally:
            await client.close()

    async def _stand(self, standing: Standing) -> None:
        async with registry(self._url, FLEET) as known:
            others = [engine for engine in await known.engines() if engine.place != FIRST]
            await known.put(*(replace(engine, standing=standing) for engine in others))

    async def _hear(self, message: Any) -> None:
        for command in decode_commands(message.data):
            self.counts["pauses"] += isinstance(command, Pause) and command.reason.startswith("demand")
            self.counts["moves"] += isinstance(command, Place) and bool(command.leaves)


def measure(site: Site, programs: int, seed: int) -> dict[str, float]:
    """One run's figures."""
    watch = Watch(site.nats_url)
    options = ReplayOptions(
        trace=synthesize("swe-bench", programs=programs, seed=seed),
        url=site.urls[0],
        arrival=Poisson(RATE),
        seed=seed,
        tokens_per_word=WORD_TOKENS,
        time_scale=SCALE,
        nats=site.nats_url,
        node=FLEET,
    )
    with watch.running():
        found = replay(options, Quiet()).summary
    return {
        "jct_mean_s": found.jct_mean_s or 0.0,
        "jct_p95_s": found.jct_p95_s or 0.0,
        "hits": found.cache_hit_ratio or 0.0,
        "failed": found.programs_failed,
        "pauses": watch.counts["pauses"],
        "moves": watch.counts["moves"],
    }


def run(programs: int, seeds: int) -> list[dict[str, Any]]:
    """Each way with each seed, on a site of its own."""
    rows = []
    for way, (preset, more) in WAYS.items():
        options = SiteOptions(
            daemons=1,
            envoys=1,
            preset=preset,
            more=more,
            pool_tokens=POOL_TOKENS,
            tokens_per_word=WORD_TOKENS,
            time_scale=SCALE,
            double=("--profile", PROFILE),
        )
        found = []
        for seed in range(1, seeds + 1):
            with running_site(options) as site:
                found.append(measure(site, programs, seed))
        means = {key: statistics.fmean(each[key] for each in found) for key in found[0]}
        rows.append({"way": way, **means, "jct_mean_by_seed_s": [each["jct_mean_s"] for each in found]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = run(arguments.programs, arguments.seeds)
    if arguments.json:
        print(json.dumps(rows))
        return
    for row in rows:
        seeds = ", ".join(f"{each:.0f}" for each in row["jct_mean_by_seed_s"])
        print(
            f"{row['way']:13} JCT mean {row['jct_mean_s']:5.1f} s ({seeds}), p95 {row['jct_p95_s']:5.1f} s; "
            f"{row['hits']:.0%} cached; {row['pauses']:.1f} pauses, {row['moves']:.1f} moves; "
            f"{row['failed']:.0f} failed"
        )


if __name__ == "__main__":
    main()
