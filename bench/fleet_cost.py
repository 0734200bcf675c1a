"""What a turn through Envoy and a whole fleet costs, beside Envoy alone and the engine.

    .venv/bin/python bench/fleet_cost.py [--turns N] [--seconds S] [--json]

direct: the client asks an engine double.
envoy: through an Envoy with a listener, a router and nothing else.
fleet: through an Envoy as `penstock fleet envoy-config` has it and `penstock fleet up` with its policies, a cluster
    of three nats-servers that syncs always, and a standby. The body names the program.

First the time to the first token, one turn at a time, the three ways in turn, each turn of a program that runs
already, and the fleet's way with programs that are new. Then turns a second with 16 connections, the CPU time of
each part for a turn, what a turn adds to the fleet's stream and to those of the nodes, and what they grow without
turns. All of it shares the cores of this machine with the client and the double.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import ab  # noqa: F401  this checkout, whichever one is installed
import aiohttp
import nats
import psutil

from controlplane import eventloop
from controlplane.daemon.process.ports import free_ports
from controlplane.fleet.envoy import binary
from controlplane.lab.fleet.processes import Kind, Process
from controlplane.lab.fleet.site import Site, SiteOptions, running_site
from controlplane.transport.nats_options import nats_options
from controlplane.transport.subjects import stream_name

_IDLE_S = 5
CHAT = "/v1/chat/completions"
WAYS = ("direct", "envoy", "fleet")
NEW = "fleet, new"  # each turn of a program that nobody knew
SIZES = (2_000, 100_000)
CONNECTIONS = 16
PROGRAMS = 4
OPEN = '[admission]\npolicy = "fixed"\nwindow = 4096\n'


async def first_token_s(
    http: aiohttp.ClientSession, url: str, size: int, named: dict[str, str] | None = None, **more: Any
) -> float:
    """One turn that streams; seconds to its first token. ``named``: headers, ``more``: of its body."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * size}], "max_tokens": 1, "stream": True}
    data = json.dumps(body | more).encode()
    headers = {"content-type": "application/json", **(named or {})}
    began = time.perf_counter()
    async with http.post(url + CHAT, data=data, headers=headers) as answer:
        await answer.content.readany()
        first = time.perf_counter() - began
        await answer.read()
        assert answer.status == 200, await answer.text()
    return first


class Client:
    """Turns by each way."""

    def __init__(self, session: aiohttp.ClientSession, urls: dict[str, str]) -> None:
        self._session, self._urls = session, urls

    async def turn(self, way: str, program: str, size: int) -> float:
        return await first_token_s(self._session, self._urls[way], size, program_id=program)


async def one_at_a_time(client: Client, turns: int) -> list[dict[str, Any]]:
    taken: dict[tuple[str, int], list[float]] = {(way, size): [] for size in SIZES for way in (*WAYS, NEW)}
    for number in range(turns + PROGRAMS):
        for (way, size), times in taken.items():
            program = f"new-{size}-{number}" if way == NEW else f"{way}-{number % PROGRAMS}"
            first_s = await client.turn(way, program, size)
            if number >= PROGRAMS:  # each program was let in by then
                times.append(1000 * first_s)
    return [
        {"way": way, "bytes": size, "n": len(times), "ttft_p50_ms": at(times, 50), "ttft_p99_ms": at(times, 99)}
        for (way, size), times in taken.items()
    ]


def at(times: Sequence[float], percent: int) -> float:
    """Find the percentile."""
    return round(statistics.quantiles(times, n=100, method="inclusive")[percent - 1], 2)


async def under_load(client: Client, way: str, seconds: float, site: Site) -> dict[str, Any]:
    done, began = 0, time.perf_counter()
    parts = {kind: site.of(kind) for kind in (Kind.ENVOY, Kind.DAEMON, Kind.NATS)}
    before = {kind: _cpu_s(processes) for kind, processes in parts.items()}
    base = await _streams(site)

    async def work(number: int) -> None:
        nonlocal done
        while time.perf_counter() - began < seconds:
            await client.turn(way, f"{way}-{number}", SIZES[0])
            done += 1

    await asyncio.gather(*(work(number) for number in range(CONNECTIONS)))
    row: dict[str, Any] = {"way": way, "turns_s": round(done / (time.perf_counter() - began))}
    if way == "fleet":
        for kind, processes in parts.items():
            row[f"{kind}_cpu_us"] = round(1e6 * (_cpu_s(processes) - before[kind]) / done)
        await asyncio.sleep(1)  # what is in batches yet
        now = await _streams(site)
        row["stream_bytes_a_turn"] = {name: round((now[name] - base[name]) / done) for name in now}
        await asyncio.sleep(_IDLE_S)
        later = await _streams(site)
        row["stream_bytes_a_second_idle"] = {name: round((later[name] - now[name]) / _IDLE_S) for name in now}
    return row


async def _streams(site: Site) -> dict[str, int]:
    """Bytes in the fleet's stream, and in all nodes' together."""
    client = await nats.connect(**nats_options(site.nats_url))
    try:
        found = {"fleet": 0, "nodes": 0}
        for name in ("fleet", *(engine.name for engine in site.engines)):
            info = await client.jetstream(timeout=10).stream_info(stream_name(name))
            found["fleet" if name == "fleet" else "nodes"] += info.state.bytes
        return found
    finally:
        await client.close()


def _cpu_s(processes: Iterable[Process]) -> float:
    times = [psutil.Process(process.pid).cpu_times() for process in processes]
    return float(sum(each.user + each.system for each in times))


async def measure_cost(site: Site, bare: str, turns: int, seconds: float) -> dict[str, Any]:
    urls = {"direct": f"http://{site.engines[0].address}", "envoy": bare, "fleet": site.urls[0]}
    urls[NEW] = urls["fleet"]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        client = Client(session, urls)
        ttft = await one_at_a_time(client, turns)
        load = [await under_load(client, way, seconds, site) for way in WAYS]
        return {"ttft": ttft, "load": load}


def bare_envoy(port: int, engine: int) -> dict[str, Any]:
    """Configure an Envoy that does nothing but carry."""

    def at(port: int) -> dict[str, Any]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    types = "type.googleapis.com/envoy.extensions.filters"
    route = {"match": {"prefix": "/"}, "route": {"cluster": "engine", "timeout": "0s"}}
    manager = {
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bare",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [{"name": "router", "typed_config": {"@type": f"{types}.http.router.v3.Router"}}],
    }
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    hosts = [{"lb_endpoints": [{"endpoint": {"address": at(engine)}}]}]
    cluster = {
        "name": "engine",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "engine", "endpoints": hosts},
    }
    listener = {"name": "bare", "address": at(port), "filter_chains": [chain]}
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, running_site(SiteOptions(time_scale=1, more=OPEN)) as site:
        (port,) = free_ports(1)
        config = Path(folder) / "bare.json"
        config.write_text(json.dumps(bare_envoy(port, site.engines[0].port)))
        quiet = ("--disable-hot-restart", "--concurrency", "1", "--log-level", "error")
        bare = Process(
            "bare",
            Kind.ENVOY,
            (str(binary()), "-c", str(config), *quiet),
            port=port,
            log=Path(folder) / "log",
            environment={},
        )
        bare.start()
        try:
            bare.wait()
            found = eventloop.run(measure_cost, site, f"http://{bare.address}", arguments.turns, arguments.seconds)
        finally:
            bare.kill()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=200, help="turns of each size and way, one at a time")
    parser.add_argument("--seconds", type=float, default=4.0, help="under load, for each way")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = run(arguments)
    if arguments.json:
        print(json.dumps(found))
        return
    for row in found["ttft"]:
        print(
            f"{row['way']:10} {row['bytes']:7} bytes: first token p50 {row['ttft_p50_ms']:6.2f} ms, "
            f"p99 {row['ttft_p99_ms']:6.2f} ms, n {row['n']}"
        )
    for row in found["load"]:
        cpu = ", ".join(f"{key.removesuffix('_cpu_us')} {value} us" for key, value in row.items() if "cpu" in key)
        print(
            f"{row['way']:7} {CONNECTIONS} connections: {row['turns_s']} turns/s"
            + (f"; CPU for a turn: {cpu}" if cpu else "")
        )
        if "stream_bytes_a_turn" in row:
            print(f"bytes that a turn adds to streams: {row['stream_bytes_a_turn']}")
            print(f"bytes a second without turns: {row['stream_bytes_a_second_idle']} (three nodes)")


if __name__ == "__main__":
    main()
