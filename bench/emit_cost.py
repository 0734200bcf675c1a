"""What one ``Emitter.emit`` costs its caller: with the bus up, down and stuck.

    .venv/bin/python bench/emit_cost.py

Two paces. "burst": events back to back, as within one engine step. "paced": one event every few ms, as from
step to step: then the emitter's thread sleeps in between and most events have to wake it.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import ab  # noqa: F401  makes the tests' helpers importable
from support.nats import NatsServer

from controlplane.core.model.events import Event, FirstToken
from controlplane.emit.emitter import Emitter


def event(n: int) -> Event:
    return FirstToken(program_id=f"program-{n % 100}", turn_id=f"turn-{n}", launch_delay_ns=n, prompt_tokens=40_000)


def burst(emitter: Emitter, count: int) -> list[float]:
    """Microseconds an event, one figure for each burst of 1,000."""
    events = [event(n) for n in range(1000)]
    figures = []
    for _ in range(count // 1000):
        began_ns = time.perf_counter_ns()
        for one in events:
            emitter.emit(one)
        figures.append((time.perf_counter_ns() - began_ns) / 1e6)
        time.sleep(0.02)
    return figures


def paced(emitter: Emitter, count: int) -> list[float]:
    """Microseconds of each event, one every 8 ms."""
    figures = []
    for n in range(count):
        one = event(n)
        began_ns = time.perf_counter_ns()
        emitter.emit(one)
        figures.append((time.perf_counter_ns() - began_ns) / 1e3)
        time.sleep(0.008)
    return figures


def measure(state: str, emitter: Emitter, events: int) -> list[dict[str, object]]:
    """Both paces in one state of the bus."""
    paces: tuple[tuple[str, Callable[[Emitter, int], list[float]], int], ...] = (
        ("burst", burst, events),
        ("paced", paced, max(100, events // 200)),
    )
    rows: list[dict[str, object]] = []
    for pace, run, count in paces:
        figures = sorted(run(emitter, count))
        rows.append(
            {
                "bus": state,
                "pace": pace,
                "mean_us": round(statistics.fmean(figures), 2),
                "p50_us": round(figures[len(figures) // 2], 2),
                "p99_us": round(figures[int(len(figures) * 0.99)], 2),
            }
        )
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--events", type=int, default=100_000, help="events for each burst row (default 100000)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        emitter = Emitter(url=server.url, node="bench", role="engine")
        emitter.start()
        while not emitter.stats.connected:
            time.sleep(0.01)
        rows += measure("up", emitter, options.events)
        server.suspend()
        rows += measure("stuck", emitter, options.events)
        server.kill()
        rows += measure("down", emitter, options.events)
        emitter.close(0.2)
    about = {
        "python": platform.python_version(),
        "nats-py": version("nats-py"),
        "protobuf": version("protobuf"),
        "cpus": os.cpu_count(),
    }
    if options.json:
        print(json.dumps({"about": about, "rows": rows}, indent=2))
        return
    print("  ".join(f"{name} {value}" for name, value in about.items()))
    print(f"{'bus':8}{'pace':8}{'mean us':>10}{'p50 us':>10}{'p99 us':>10}   (burst: over means of 1,000)")
    for row in rows:
        print(f"{row['bus']:8}{row['pace']:8}{row['mean_us']:>10}{row['p50_us']:>10}{row['p99_us']:>10}")


if __name__ == "__main__":
    main()
