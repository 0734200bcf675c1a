"""Whose child a request is: a real daemon, bus and reporter, and a real gate before the engine double."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import TIMEOUT_S, BusClient, DaemonProcess, eventually
from support.governed_double import GateClient, governed_double

from controlplane.emit.tool_reporter import ToolReporter

pytestmark = pytest.mark.asyncio

STRANGERS = 10
CONFIG = """
preset = "fcfs"
lease_s = 600
[admission]
window = 1
[control]
interval_s = 0.2
stall_s = 3600
"""


@pytest.fixture
def daemon(tmp_path: Path, nats_server: Any) -> Iterator[DaemonProcess]:
    config = tmp_path / "penstock.toml"
    config.write_text(CONFIG)
    process = DaemonProcess(tmp_path / "state", "--nats", nats_server.url, "--config", str(config))
    process.start()
    yield process
    process.clean_up()


class Client(GateClient):
    """Asks the gate before the double."""

    async def turn(self, program: str, parent: str = "", proof: str = "") -> str:
        """The turn's id, once it was answered."""
        headers = {"x-penstock-program-id": program}
        headers |= {"x-penstock-parent-id": parent} if parent else {}
        headers |= {"x-penstock-parent-turn": proof} if proof else {}
        body = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 4}
        async with self.http.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as response:
            await response.read()
            assert response.status == 200
            return response.headers["x-penstock-turn-id"]


async def story(client: Client, reporter: ToolReporter, bus: BusClient) -> None:
    async def held(count: int) -> bool:
        return bool((await client.health())["held_turns"] == count)

    turn = await client.turn("parent")
    reporter.program_started("parent")
    reporter.tool_started("parent", "call", "task")
    strangers = [asyncio.ensure_future(client.turn(f"s{number}", "parent")) for number in range(STRANGERS)]
    await eventually(lambda: held(STRANGERS), what="queue of strangers")
    late = asyncio.ensure_future(client.turn("late", "parent"))
    await eventually(lambda: held(STRANGERS + 1), what="child that nobody announced yet")
    await asyncio.sleep(0.5)
    assert not any(task.done() for task in (late, *strangers))
    reporter.program_started("late", parent_id="parent")
    await asyncio.wait_for(late, TIMEOUT_S)
    reporter.program_started("early", parent_id="parent")
    await asyncio.wait_for(client.turn("early", "parent"), TIMEOUT_S)
    await asyncio.wait_for(client.turn("proven", "parent", turn), TIMEOUT_S)

    def family(status: dict[str, Any]) -> bool:
        return {"late", "early", "proven"} <= status["programs"].keys()

    programs = (await bus.status_where(family, "whole family"))["programs"]
    assert {programs[name]["parent_id"] for name in ("late", "early", "proven")} == {"parent"}
    assert {programs[f"s{number}"]["parent_id"] for number in range(STRANGERS)} == {""}
    assert not any(task.done() for task in strangers)
    reporter.program_ended("parent", "finished")
    await asyncio.wait(strangers, timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    assert sum(task.done() for task in strangers) == 1, "the one slot"
    for task in strangers:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_children_ride_their_parents_slot_and_strangers_do_not(
    daemon: DaemonProcess, nats_server: Any
) -> None:
    async with governed_double(nats_server.url) as (gate, reporter, bus):
        client = Client(gate.url, gate.http)
        await story(client, reporter, bus)
    assert "Traceback" not in daemon.log
