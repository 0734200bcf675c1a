"""What it costs a daemon to be watched, with 10,000 programs on 1,000 engines (budget: at most 20 ms on its loop).

    python bench/watch_cost.py [--programs N] [--engines N] [--json]

Each line is the CPU time of the daemon's own thread for one look, a median: its status, published once a control
interval; a page or ``penstock top``; and a scrape by Prometheus, which is noted in the daemon's thread
(``scrape_look_ms``) and written in another (``scrape_text_ms``). ``scraped_late``: how late an event loop
that wakes each millisecond does so at worst during a scrape, for half and nine of ten of them; ``scraped_held``:
the same in CPU time of this process, which other processes add nothing to (budget: at most 10 ms for half of them);
``idle_late`` and ``idle_held``: while nothing is done. The yardstick is a control tick of the same controller.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable

import msgspec

from controlplane.config import Config, Resolved, Source, TelemetryConfig
from controlplane.core import events as ev
from controlplane.core.controller import Controller
from controlplane.core.presets import DEFAULT, preset
from controlplane.core.types import seconds
from controlplane.shell.engines import EngineRow, Moves, each_engine, engine_listing, engine_rows
from controlplane.shell.pump import Pump
from controlplane.shell.reload import Reloader
from controlplane.shell.status import Status, describe
from controlplane.shell.telemetry import Telemetry
from controlplane.shell.views import listing

BUDGET_MS = 20.0
HELD_BUDGET_MS = 10.0
ROUNDS = 9
SCRAPES, BETWEEN_SCRAPES_S = 40, 0.02
NOW_NS = seconds(2)


def spread(programs: int, engines: int) -> Controller:
    """The default preset's controller; a tenth of the programs waits, the others run all over the engines."""
    controller = Controller(preset(DEFAULT))
    for index in range(engines):
        name = f"gpu{index // 8}/engine-{30000 + index % 8}/boot"
        pool = ev.PoolSampled(publisher=name, total_blocks=50_000, free_blocks=9_000, block_tokens=16)
        controller.receive(pool, seconds(1))
    for index in range(programs):
        ids = {"program_id": f"program-{index}", "turn_id": f"turn-{index}"}
        if index % 10 == 0:
            controller.receive(
                ev.TurnQueued(publisher="fleet/gate/b", prompt_tokens=4000, **ids), seconds(1) + index
            )
            continue
        engine = index % engines
        publisher = f"gpu{engine // 8}/engine-{30000 + engine % 8}/boot"
        controller.receive(ev.TurnSubmitted(publisher=publisher, projected_blocks=300, **ids), seconds(1) + index)
        if index % 3:
            controller.receive(ev.TurnEnded(publisher=publisher, prompt_tokens=4000, **ids), seconds(1) + index)
    return controller


def median_ms(work: Callable[[], object]) -> float:
    """Median CPU time of one call."""
    times = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        work()
        times.append((time.thread_time() - began) * 1e3)
    return statistics.median(times)


async def late_ms(
    here: Callable[[], Awaitable[None]], there: Callable[[], object]
) -> tuple[list[float], list[float]]:
    """How late a loop that wakes each millisecond does so at worst while work is done ``here`` and in a thread.

    By the wall's clock and in this process's CPU time, each once for each time that it is done, ascending.
    """
    late: list[float] = []
    held: list[float] = []
    worst_late, worst_held = list[float](), list[float]()
    done = False

    async def wake() -> None:
        while not done:
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            await asyncio.sleep(0.001)
            late.append((time.perf_counter() - began_s) * 1e3 - 1)
            held.append((time.process_time() - began_cpu_s) * 1e3)

    waking = asyncio.create_task(wake())
    for _ in range(SCRAPES):
        await asyncio.sleep(BETWEEN_SCRAPES_S)
        late.clear()
        held.clear()
        await here()
        await asyncio.to_thread(there)
        await asyncio.sleep(0.005)
        worst_late.append(max(late))
        worst_held.append(max(held))
    done = True
    await waking
    return sorted(worst_late), sorted(worst_held)


async def looks_ms(telemetry: Telemetry) -> float:
    """Median CPU time of one look for a scrape."""
    times = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        await telemetry.look()
        times.append((time.thread_time() - began) * 1e3)
    return statistics.median(times)


async def nothing() -> None:
    """Done here while the loop idles."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--engines", type=int, default=1_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    pump = Pump(spread(args.programs, args.engines))
    controller, moves = pump.controller, Moves()
    reloader = Reloader(Source(), Resolved(config=Config(), origins={}), lambda config: None)

    def status() -> Status:
        return describe(pump, reloader, boot_id="b", position=1, bus_connected=True, now_ns=NOW_NS)

    def engines() -> list[EngineRow]:
        return engine_rows(controller.ledger, (), NOW_NS)

    def page() -> bytes:
        told = {
            "status": status(),
            "listing": listing(controller.ledger, NOW_NS, most=60),
            "engines": engine_listing(engines(), moves, most=64),
        }
        return msgspec.json.encode(told)

    telemetry = Telemetry(
        TelemetryConfig(),
        "fleet",
        status=status,
        engines=lambda: each_engine(controller.ledger, (), NOW_NS),
        controller=lambda: controller,
    )
    for number in range(args.engines):  # each has a token counter
        ended = ev.TurnEnded(
            publisher=f"gpu{number // 8}/engine-{30000 + number % 8}/b", program_id="p", turn_id="t"
        )
        telemetry.recorders[0].event(ended, NOW_NS)
    controller.tick(NOW_NS)
    controller.ledger.programs.changed.clear()  # who is placed anew costs by itself
    tick_times_ms = []
    for number in range(ROUNDS):
        began = time.thread_time()
        controller.tick(NOW_NS + seconds(2 * (number + 1)))
        tick_times_ms.append((time.thread_time() - began) * 1e3)
    result: dict[str, float | int | bool] = {
        "programs": args.programs,
        "engines": args.engines,
        "tick_ms": statistics.median(tick_times_ms),
        "status_ms": median_ms(lambda: status().encode()),
        "status_bytes": len(status().encode()),
        "page_ms": median_ms(page),
        "page_bytes": len(page()),
        "engines_ms": median_ms(engines),
        "scrape_look_ms": asyncio.run(looks_ms(telemetry)),
        "scrape_text_ms": median_ms(telemetry.prometheus),
        "scrape_bytes": len(telemetry.prometheus()),
    }
    for name, here, there in (
        ("idle", nothing, lambda: time.sleep(0.01)),
        ("scraped", telemetry.look, telemetry.prometheus),
    ):
        for kind, worst_ms in zip(("late", "held"), asyncio.run(late_ms(here, there)), strict=True):
            result[f"{name}_{kind}_p50_ms"] = worst_ms[len(worst_ms) // 2]
            result[f"{name}_{kind}_p90_ms"] = worst_ms[-SCRAPES // 10]
    telemetry.close()
    watched = ("status_ms", "page_ms", "engines_ms", "scrape_look_ms")
    result["within_budget"] = (
        max(float(result[name]) for name in watched) <= BUDGET_MS
        and float(result["scraped_held_p50_ms"]) <= HELD_BUDGET_MS
    )
    if args.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:24} {value:.3f}" if isinstance(value, float) else f"{name:24} {value}")


if __name__ == "__main__":
    main()
