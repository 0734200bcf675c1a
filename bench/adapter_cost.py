"""What an adapter costs its agent: with the bus up, down and stuck, and through the daemon's socket.

    python bench/adapter_cost.py [--calls N] [--json]

A function that does nothing is wrapped as an adapter wraps a framework's, so that each call of it is told by two
events, its start and its end. The difference to the bare function, over two, is what an event costs: the wrapper,
the guard, the reporter and the emitter's queue. One call every few ms, as from tool to tool: the emitter's thread
sleeps in between, and each call has to wake it.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whichever one is installed
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from emit_cost import start_server
from support.daemon_process import NODE, DaemonProcess

from controlplane.emit.tool_reporter import ToolReporter
from engine_hooks.tools.patching import Adapter, Hook, Seam

PACE_S = 0.005
BUDGET_US = 20.0


class Framework:
    """What is wrapped."""

    def tool(self, call: str) -> None:
        """Nothing."""


def adapter(to: ToolReporter) -> Adapter:
    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        to.tool_started("run", args[1], "bash")
        return str(args[1])

    def after(kept: Any, args: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        to.tool_ended("run", kept, ok=error is None)

    return Adapter("the bench", lambda _: [Hook(Seam(Framework, "tool", ("call",)), before, after)])


def timed(calls: int) -> list[float]:
    """Microseconds of each call."""
    framework, took = Framework(), []
    for number in range(calls):
        name = f"call-{number}"
        began_ns = time.perf_counter_ns()
        framework.tool(name)
        took.append((time.perf_counter_ns() - began_ns) / 1000)
        time.sleep(PACE_S)
    return took


def measure(state: str, to: ToolReporter, calls: int) -> dict[str, object]:
    """One row: microseconds an event above the bare call."""
    wrapped = adapter(to)
    bare = statistics.fmean(timed(calls))
    wrapped.install(to)
    try:
        took = sorted(timed(calls))
    finally:
        wrapped.uninstall()
    each = [(one - bare) / 2 for one in took]
    mean = statistics.fmean(each)
    return {
        "bus": state,
        "bare_call_us": round(bare, 2),
        "event_mean_us": round(mean, 2),
        "event_p50_us": round(each[len(each) // 2], 2),
        "event_p99_us": round(each[int(0.99 * len(each))], 2),
        "within_budget": mean <= BUDGET_US,
        "dropped": to.stats.dropped,
    }


def connected(to: ToolReporter) -> None:
    to.program_started("run")
    deadline_s = time.monotonic() + 20
    while not to.stats.connected:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"not connected: {to.stats.last_error}")
        time.sleep(0.01)


def over_nats(calls: int) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        server, url = start_server(folder)
        to = ToolReporter(url=url, node=NODE)
        connected(to)
        rows = [measure("up", to, calls)]
        os.kill(server.pid, signal.SIGSTOP)
        rows.append(measure("stuck", to, calls))
        os.kill(server.pid, signal.SIGCONT)
        server.kill()
        server.wait()
        rows.append(measure("down", to, calls))
        to.close(0.2)
    return rows


def over_the_socket(calls: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path is short
        daemon = DaemonProcess(Path(folder))
        daemon.start()
        try:
            asyncio.run(daemon.url())
            to = ToolReporter(url=f"unix:{folder}/{NODE}.sock", node=NODE)
            connected(to)
            row = measure("daemon's socket", to, calls)
            to.close(0.5)
        finally:
            daemon.clean_up()
    return row


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000, help="tool calls for each row; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    rows = [*over_nats(options.calls), over_the_socket(options.calls)]
    if options.json:
        print(json.dumps({"budget_us": BUDGET_US, "rows": rows}, indent=2))
        return 0
    print(
        f"{'bus':18}{'bare call us':>14}{'event us':>10}{'p50':>8}{'p99':>8}{'dropped':>9}  budget {BUDGET_US:g} us"
    )
    for row in rows:
        figures = "".join(
            f"{row[name]!s:>{width}}"
            for name, width in (
                ("bare_call_us", 14),
                ("event_mean_us", 10),
                ("event_p50_us", 8),
                ("event_p99_us", 8),
                ("dropped", 9),
            )
        )
        print(f"{row['bus']!s:18}{figures}  {'met' if row['within_budget'] else 'MISSED'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
