"""What a turn through Envoy and the fleet's picker costs, beside Envoy alone and the engine; what held turns take.

    .venv/bin/python bench/fleet_picker.py [--turns N] [--seconds S] [--held N] [--json]

direct: the client asks the engine, a small HTTP server that answers at once with a stream of one token.
envoy: through an Envoy with a listener, a router and nothing else.
header: through Envoy as `penstock fleet envoy-config` has it (front, asking, watching) and a picker, with the
    program's id in our header, so that the body never comes to the picker.
body: the same with the id in the body.

The picker's gate is governed and lets each program in at its first turn: no policy is in these figures. First the
time to the first byte, one turn at a time, the four ways in turn; then turns a second with 32 connections, and the
CPU time that Envoy and the picker took for each. All of it shares this machine's cores with the client. Then so
many turns with bodies of 100 kB are held at once, by header and by body: what that adds to the memory of each.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whichever one is installed
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import aiohttp
import psutil
from aiohttp import web
from fleet_ways.envoys import bare_envoy
from fleet_ways.timings import first_tokens
from support.envoy import EnvoyProcess
from support.pickers import heartbeat, until
from support.ports import free_port, is_listening

from controlplane import eventloop
from controlplane.core.commands import Admit
from controlplane.core.events import Event, TurnQueued
from controlplane.fleet.envoy import DataPlane, binary, write_endpoints
from controlplane.fleet.ext_proc import PickerServer
from controlplane.fleet.roster import Engine, Roster
from controlplane.gate import Gate
from controlplane.shell import logs

CHAT = "/v1/chat/completions"
HELD = "held-"  # programs of that name wait for SIGUSR1
WAYS = ("direct", "envoy", "header", "body")
SIZES = (2_000, 200_000)
CONNECTIONS = 32
PROGRAMS = 64


async def serve_engine(port: int) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await stream.prepare(request)
        await stream.write(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n')
        await stream.write_eof()
        return stream

    async def health(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post(CHAT, answer)
    app.router.add_get("/health", health)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


async def serve_picker(port: int, *addresses: str) -> None:
    logs.configure("error")
    loop = asyncio.get_running_loop()
    waiting: list[str] = []

    def send(event: Event, urgent: bool) -> None:
        if isinstance(event, TurnQueued):
            if event.program_id.startswith(HELD):
                waiting.append(event.program_id)
            else:
                loop.call_soon(gate.on_command, Admit(program_id=event.program_id))

    def let_go() -> None:
        while waiting:
            gate.on_command(Admit(program_id=waiting.pop()))

    gate = Gate(send=send, now_ns=time.monotonic_ns)
    gate.on_heartbeat(heartbeat())
    gate.places.chosen = True
    loop.add_signal_handler(signal.SIGUSR1, let_go)
    roster = Roster(Engine(place=f"node-{number}/engine-1", address=at) for number, at in enumerate(addresses))
    server = PickerServer(gate=gate, roster=roster, name="bench")
    await server.start(f"127.0.0.1:{port}")
    server.set_serving(True)
    await asyncio.Event().wait()


@dataclass
class Bench:
    """All parts, running; a URL for each way."""

    urls: dict[str, str]
    envoy: psutil.Process
    picker: psutil.Process
    client: aiohttp.ClientSession

    async def turn(self, way: str, program: str, size: int) -> float:
        """One turn; seconds to the first byte of its answer."""
        body = {"messages": [{"role": "user", "content": "x" * size}]}
        headers = {"content-type": "application/json"}
        if way == "header":
            headers["x-penstock-program-id"] = program
        else:
            body["program_id"] = program  # type: ignore[assignment]
        data = json.dumps(body).encode()
        began = time.perf_counter()
        async with self.client.post(self.urls[way] + CHAT, data=data, headers=headers) as answer:
            await answer.content.readany()
            first = time.perf_counter() - began
            await answer.read()
            assert answer.status == 200, await answer.text()
        return first


@contextlib.contextmanager
def process(*arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    started = subprocess.Popen(arguments)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


@contextlib.asynccontextmanager
async def everything(folder: Path) -> AsyncIterator[Bench]:
    engine, picker, bare, front, admin = (free_port() for _ in range(5))
    (folder / "bare.json").write_text(json.dumps(bare_envoy(bare, engine)))
    endpoints = folder / "eds.json"
    write_endpoints(endpoints, [Engine(place="node-0/engine-1", address=f"127.0.0.1:{engine}")])
    plane = DataPlane(
        pickers=(f"127.0.0.1:{picker}",),
        endpoints=endpoints,
        listen=f"127.0.0.1:{front}",
        admin=f"127.0.0.1:{admin}",
    )
    whole = EnvoyProcess(folder, plane)
    ours = (sys.executable, __file__, "--serve")
    quiet = ("--disable-hot-restart", "--concurrency", "1", "--log-level", "error")
    with (
        process(*ours, "engine", str(engine)),
        process(*ours, "picker", str(picker), f"127.0.0.1:{engine}") as asked,
        process(str(binary()), "-c", str(folder / "bare.json"), *quiet),
    ):
        await until(lambda: all(map(is_listening, (engine, picker, bare))), "all listen")
        whole.start()
        try:
            await until(lambda: whole.healthy("pickers") and whole.healthy("engines"), "Envoy sees them")
            urls = {
                "direct": f"http://127.0.0.1:{engine}",
                "envoy": f"http://127.0.0.1:{bare}",
                "header": whole.url,
                "body": whole.url,
            }
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as client:
                yield Bench(urls, psutil.Process(whole.pid), psutil.Process(asked.pid), client)
        finally:
            whole.stop()


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def one_at_a_time(bench: Bench, turns: int) -> list[dict[str, Any]]:
    taken: dict[tuple[str, int], list[float]] = {(way, size): [] for size in SIZES for way in WAYS}
    for number in range(turns + 10):
        for (way, size), times in taken.items():
            first_s = await bench.turn(way, f"program-{number % PROGRAMS}", size)
            if number >= 10:  # connections and programs are known by then
                times.append(first_s * 1000)
    return first_tokens(taken)


async def under_load(bench: Bench, way: str, seconds: float) -> dict[str, Any]:
    done, began = 0, time.perf_counter()
    before = [cpu_s(each) for each in (bench.envoy, bench.picker)]

    async def client(number: int) -> None:
        nonlocal done
        while time.perf_counter() - began < seconds:
            await bench.turn(way, f"program-{number}", SIZES[0])
            done += 1

    await asyncio.gather(*(client(number) for number in range(CONNECTIONS)))
    wall_s = time.perf_counter() - began
    row: dict[str, Any] = {"way": way, "turns_s": round(done / wall_s)}
    if way in ("header", "body"):
        envoy_s, picker_s = (
            cpu_s(each) - was for each, was in zip((bench.envoy, bench.picker), before, strict=True)
        )
        row |= {
            "envoy_us": round(envoy_s / done * 1e6),
            "picker_us": round(picker_s / done * 1e6),
            "decisions_per_cpu_s": round(done / picker_s),
        }
    return row


async def held_at_once(bench: Bench, way: str, count: int) -> dict[str, Any]:
    before = [each.memory_info().rss for each in (bench.envoy, bench.picker)]
    turns = [asyncio.ensure_future(bench.turn(way, f"{HELD}{way}-{number}", 100_000)) for number in range(count)]
    seen, still = -1.0, 0
    while still < 3:  # until all of them have come, by the memory's standing still
        await asyncio.sleep(1)
        now = bench.envoy.memory_info().rss + cpu_s(bench.picker)
        still, seen = (still + 1 if abs(now - seen) < 1 << 20 else 0), now
    added = [each.memory_info().rss - was for each, was in zip((bench.envoy, bench.picker), before, strict=True)]
    began = time.perf_counter()
    bench.picker.send_signal(signal.SIGUSR1)
    await asyncio.gather(*turns)
    return {
        "way": way,
        "held": count,
        "envoy_mib": round(added[0] / 2**20),
        "picker_mib": round(added[1] / 2**20),
        "all_let_go_s": round(time.perf_counter() - began, 2),
    }


async def measure(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with everything(Path(folder)) as bench:
            parts = {
                "one at a time": await one_at_a_time(bench, arguments.turns),
                "32 connections": [await under_load(bench, way, arguments.seconds) for way in WAYS],
            }
    for way in ("header", "body") if arguments.held else ():
        with tempfile.TemporaryDirectory() as folder:
            async with everything(Path(folder)) as bench:  # a new one, which has no memory to use again
                row = await held_at_once(bench, way, arguments.held)
                parts.setdefault("held, with 100 kB each", []).append(row)
    if arguments.json:
        print(json.dumps(parts))
        return
    for title, rows in parts.items():
        print(title)
        for row in rows:
            print("   ", "  ".join(f"{name} {value}" for name, value in row.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=300, help="turns of each size and way, one at a time")
    parser.add_argument("--seconds", type=float, default=4.0, help="under load, for each way")
    parser.add_argument("--held", type=int, default=1000, help="turns held at once; 0: none")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        what, port, *rest = arguments.serve
        serve = serve_engine if what == "engine" else serve_picker
        eventloop.run(serve, int(port), *rest)  # type: ignore[arg-type]
    else:
        eventloop.run(measure, arguments)


if __name__ == "__main__":
    main()
