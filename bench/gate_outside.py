"""What a turn through `penstock gate` costs beside the server before which it stands (budget: at p50 1.5 ms more).

    .venv/bin/python bench/gate_outside.py [--turns N] [--seconds S] [--held N] [--kept-alive N] [--json]

direct: the client asks the engine double, which has no plugin and no bus.
gate: through `penstock gate` with its Envoy, picker, daemon and nats-server.

First the time to the first token, one turn at a time, both ways in turn, so that whatever else the machine does
meets both. Then turns a second with 16 connections. Then so many turns that are held at once, and so many idle
connections that are kept alive: the processes' memory then, and the time to a first token. All of it shares the
machine's cores with the client and the double.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ab  # noqa: F401  makes the tests' helpers importable
import aiohttp
import psutil
from fleet_cost import CONNECTIONS, SIZES, at, first_token_s
from support.daemon_process import run_python
from support.outside_gates import gate_outside
from support.ports import free_port

from controlplane import eventloop
from controlplane.gate.requests import HEALTH_PATH
from controlplane.transport.bounds import raise_open_files

BUDGET_MS = 1.5
WARM_UP = 20
PROGRAMS = 4
WINDOW = 64
POOL_TOKENS = 4_000_000
READY_WITHIN_S = 60.0
WAYS = ("direct", "gate")


@contextmanager
def running(folder: Path) -> Iterator[tuple[dict[str, str], psutil.Process]]:
    """The double and the gate before it: their URLs, and the gate's process, whose children are all of it."""
    port, config, log = free_port(), folder / "penstock.toml", folder / "log"
    config.write_text(f'[admission]\npolicy = "fixed"\nwindow = {WINDOW}\n')
    options = ("--no-bus", "--port", str(port), "--time-scale", "20", "--pool-tokens", str(POOL_TOKENS))
    double, direct = run_python(log, "-m", "controlplane", "engine-double", *options), f"http://127.0.0.1:{port}"
    try:
        with gate_outside(direct, folder, log, "--config", str(config)) as (url, gate):
            yield dict(zip(WAYS, (direct, url), strict=True)), psutil.Process(gate.pid)
    finally:
        double.terminate()
        double.wait(30)


async def governed(http: aiohttp.ClientSession, urls: dict[str, str]) -> None:
    """Wait until the gate hears a daemon, and both ways lead to the engine."""
    until_s = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < until_s:
        with suppress(aiohttp.ClientError, AssertionError):
            async with http.get(f"{urls['gate']}{HEALTH_PATH}") as answer:
                mode = (await answer.json())["mode"]
            for way in WAYS:
                await turn(http, urls[way], f"{way}-0", SIZES[0])
            if mode == "governed":
                return
        await asyncio.sleep(0.1)
    raise SystemExit(f"the gate is not governed within {READY_WITHIN_S:g} s")


async def turn(http: aiohttp.ClientSession, url: str, program: str, size: int, last_of: int = 0) -> float:
    """Seconds to its first token. ``last_of``: so many tokens, and its program ends."""
    named = {"x-session-id": program}
    return await first_token_s(http, url, size, named, max_tokens=last_of or 1, is_last_step=bool(last_of))


async def one_at_a_time(http: aiohttp.ClientSession, urls: dict[str, str], turns: int) -> list[dict[str, Any]]:
    taken: dict[tuple[str, int], list[float]] = {(way, size): [] for size in SIZES for way in WAYS}
    for number in range(turns + WARM_UP):
        for (way, size), times in taken.items():
            first_s = await turn(http, urls[way], f"{way}-{number % PROGRAMS}", size)
            if number >= WARM_UP:
                times.append(1000 * first_s)
    rows = []
    for size in SIZES:
        direct, gate = (taken[way, size] for way in WAYS)
        added = [through - without for through, without in zip(gate, direct, strict=True)]
        row = {"bytes": size, "direct_p50_ms": at(direct, 50), "gate_p50_ms": at(gate, 50)}
        more = {"direct_p99_ms": at(direct, 99), "gate_p99_ms": at(gate, 99)}
        rows.append(row | more | {"added_p50_ms": round(statistics.median(added), 2), "n": len(added)})
    return rows


async def under_load(http: aiohttp.ClientSession, url: str, seconds: float, gate: psutil.Process) -> dict[str, Any]:
    done, began, before = 0, time.perf_counter(), of_parts(gate, cpu_us)

    async def work(number: int) -> None:
        nonlocal done
        while time.perf_counter() - began < seconds:
            await turn(http, url, f"load-{number}", SIZES[0])
            done += 1

    await asyncio.gather(*(work(number) for number in range(CONNECTIONS)))
    rate, after = round(done / (time.perf_counter() - began)), of_parts(gate, cpu_us)
    return {"turns_s": rate, "cpu_us_a_turn": {name: (after[name] - before[name]) // done for name in after}}


def memory_mb(process: psutil.Process) -> int:
    return round(process.memory_info().rss / 1e6)


def cpu_us(process: psutil.Process) -> int:
    times = process.cpu_times()
    return round(1e6 * (times.user + times.system))


def of_parts(gate: psutil.Process, figure: Callable[[psutil.Process], int]) -> dict[str, int]:
    names = {
        "outside_picker": "picker",
        "controlplane up": "daemon",
        "envoy ": "envoy",
        "nats-server": "nats-server",
    }
    found = {"supervisor": figure(gate)}
    for child in gate.children(recursive=True):
        line = " ".join(child.cmdline()) + " "
        name = next((name for words, name in names.items() if words in line), None)
        if name is not None:
            found[name] = figure(child)
    return found


async def with_many_held(http: aiohttp.ClientSession, url: str, gate: psutil.Process, count: int) -> dict[str, Any]:
    """The window is filled with long turns; so many others wait, then all of them run."""
    running_turns = [asyncio.create_task(turn(http, url, f"long-{n}", SIZES[0], 1500)) for n in range(WINDOW)]
    held = [asyncio.create_task(turn(http, url, f"held-{number}", SIZES[0], 1)) for number in range(count)]
    most, began = 0, time.monotonic()
    while most < count and not all(each.done() for each in held) and time.monotonic() - began < READY_WITHIN_S:
        async with http.get(f"{url}{HEALTH_PATH}") as answer:
            most = max(most, (await answer.json())["held_turns"])
        await asyncio.sleep(0.05)
    memory = of_parts(gate, memory_mb)
    await asyncio.gather(*running_turns, *held)
    return {"held_at_once": most, "all_answered": len(held), "memory_mb": memory}


async def with_many_kept_alive(
    http: aiohttp.ClientSession, url: str, gate: psutil.Process, count: int
) -> dict[str, Any]:
    host, port = url.removeprefix("http://").split(":")
    idle = []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            idle.append(writer)
        firsts = [1000 * await turn(http, url, f"beside-{number % PROGRAMS}", SIZES[0]) for number in range(100)]
        return {"connections": len(idle), "ttft_p50_ms": at(firsts, 50), "memory_mb": of_parts(gate, memory_mb)}
    finally:
        for writer in idle:
            writer.close()


async def measure(urls: dict[str, str], gate: psutil.Process, asked: argparse.Namespace) -> dict[str, Any]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await governed(http, urls)
        found: dict[str, Any] = {
            "ttft": await one_at_a_time(http, urls, asked.turns),
            "idle_mb": of_parts(gate, memory_mb),
        }
        found["load"] = {way: await under_load(http, urls[way], asked.seconds, gate) for way in WAYS}
        if asked.held:
            found["held"] = await with_many_held(http, urls["gate"], gate, asked.held)
        if asked.kept_alive:
            found["kept_alive"] = await with_many_kept_alive(http, urls["gate"], gate, asked.kept_alive)
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=200, help="turns of each size and way, one at a time")
    parser.add_argument("--seconds", type=float, default=4.0, help="under load, for each way")
    parser.add_argument("--held", type=int, default=1000, help="turns that wait at once; 0: none")
    parser.add_argument("--kept-alive", type=int, default=9000, help="idle connections; 0: none")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    raise_open_files()
    with tempfile.TemporaryDirectory(prefix="pk-") as folder, running(Path(folder)) as (urls, gate):
        found = eventloop.run(measure, urls, gate, asked)
    if asked.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            for row in value if isinstance(value, list) else [value]:
                print(f"{name}: {row}")
    added = found["ttft"][0]["added_p50_ms"]
    print(f"the gate adds {added} ms to the first token at p50 (budget {BUDGET_MS})", file=sys.stderr)
    return int(added > BUDGET_MS)


if __name__ == "__main__":
    sys.exit(main())
