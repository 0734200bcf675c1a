"""``penstock explain`` says why a turn was held: what an operator does, and a daemon that was away, on a live node.

Each reason's rule is in ``tests/unit/core/test_hold_reasons.py``.
"""

import asyncio
import json
import signal
from pathlib import Path

import pytest
from support.daemon_process import NODE, BusClient, DaemonProcess, bus_of, listening, queued, running

from controlplane.core.model import events as ev
from controlplane.core.scheduling.hold_reasons import Reason

# Nobody here runs a turn for long: unused slots would be taken back, and the idle engine given who waits.
CONFIG = (
    'preset = "fcfs"\n[admission]\nwindow = 1\n[control]\nstall_s = 3600\noverdue_s = 3600\n'
    "[control.silence]\nunused_slot_s = 600\n"
)
GATE, TOOL = f"{NODE}/gate/one", f"{NODE}/tool/one"


async def became(bus: BusClient, name: str, status: str) -> None:
    await bus.status_where(lambda s: s["programs"].get(name, {}).get("status") == status, f"{name} {status}")


def check_told(daemon: DaemonProcess, name: str, reason: Reason, text: str, let_in: str) -> None:
    """The decision that let it in names what held it before, and what ended that."""
    asked = daemon.penstock("explain", name, "--json").stdout.splitlines()
    decisions = [each["decision"] for each in map(json.loads, asked)]
    admitted = next(each for each in decisions if each["kind"] == "admit")
    assert text in {each["reason"]: each["text"] for each in admitted["held"]}[reason.value]
    assert let_in in admitted["cause"]
    assert text in daemon.penstock("explain", name).stdout


@pytest.mark.asyncio
async def test_a_hold_is_explained_by_what_caused_it(tmp_path: Path) -> None:
    with running(tmp_path, config=CONFIG) as daemon:
        await listening(daemon)
        async with bus_of(daemon) as bus:
            await bus.publish(GATE, 1, queued("first", "slots", "ordered", "away"))
            await became(bus, "first", "active")
            await became(bus, "away", "waiting")
            daemon.penstock("hold", "ordered")
            await asyncio.sleep(2)  # the hold that is to be explained
            await bus.publish(TOOL, 1, [ev.ProgramEnded(program_id="first")])
            await became(bus, "slots", "active")
            check_told(daemon, "slots", Reason.SLOTS, "all slots are taken", "first ended")

            daemon.send_signal(signal.SIGSTOP)
            await asyncio.sleep(8)
            daemon.send_signal(signal.SIGCONT)
            await bus.publish(TOOL, 2, [ev.ProgramEnded(program_id="slots")])
            await became(bus, "away", "active")
            check_told(daemon, "away", Reason.AWAY, "the daemon or its bus was away", "slots ended")

            await bus.publish(TOOL, 3, [ev.ProgramEnded(program_id="away")])
            await asyncio.sleep(2)
            await became(bus, "ordered", "waiting")
            daemon.penstock("release", "ordered")
            await became(bus, "ordered", "active")
            check_told(daemon, "ordered", Reason.OPERATOR, "an operator holds it", "an operator ordered")
