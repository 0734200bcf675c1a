"""Budgets and turns of tenants: a real daemon, bus and reporter, and a real gate before the engine double."""

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import TIMEOUT_S, BusClient, DaemonProcess, eventually, running
from support.governed_double import GateClient, governed_double

from controlplane.emit.tool_reporter import ToolReporter

pytestmark = pytest.mark.asyncio

KEYS = {"ours": "sk-ours", "theirs": "sk-theirs", "poor": "sk-poor"}


def digest(name: str) -> str:
    return "sha256:" + hashlib.sha256(KEYS[name].encode()).hexdigest()


CONFIG = f"""
preset = "fcfs"
lease_s = 600
[admission]
window = 4
[control]
interval_s = 0.2
stall_s = 3600
[tenants.ours]
keys = ["{digest("ours")}"]
weight = 3
program_turns = 3
[tenants.theirs]
keys = ["{digest("theirs")}"]
[tenants.poor]
keys = ["{digest("poor")}"]
turns = 1
window_s = 600
exhausted = "refuse"
"""


@pytest.fixture
def daemon(tmp_path: Path, nats_server: Any) -> Iterator[DaemonProcess]:
    with running(tmp_path, "--nats", nats_server.url, config=CONFIG) as process:
        yield process


class Client(GateClient):
    """Asks the gate before the double with a tenant's key."""

    async def turn(self, tenant: str, program: str, **headers: str) -> tuple[int, dict[str, str], Any]:
        """Status, headers and body of one turn."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named |= {"x-penstock-program-id": program, "authorization": f"Bearer {KEYS[tenant]}"}
        body = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 4}
        async with self.http.post(f"{self.url}/v1/chat/completions", json=body, headers=named) as response:
            answer = await response.json()
            return response.status, {name.lower(): value for name, value in response.headers.items()}, answer


async def stopped(client: Client, bus: BusClient, *programs: str) -> None:
    """Wait until the daemon has ended these, and the gate, to whom it says so at the same time, lets none pass."""

    def are_ended(status: dict[str, Any]) -> bool:
        return all(status["programs"].get(name, {}).get("status") == "ended" for name in programs)

    async def none_pass() -> bool:
        return bool((await client.health())["granted_programs"] == 0)

    await bus.status_where(are_ended, "run that is stopped")
    await eventually(none_pass, what="word of it at the gate")


async def a_run_beyond_its_budget(client: Client, reporter: ToolReporter, bus: BusClient) -> None:
    """Two turns of the root and one of its child are three: then both are refused, with the reason."""
    assert (await client.turn("ours", "root"))[0] == 200
    reporter.program_started("root")
    reporter.tool_started("root", "call", "task")
    status, told, _ = await client.turn("ours", "root")
    assert status == 200
    proof = {"x_penstock_parent_id": "root", "x_penstock_parent_turn": told["x-penstock-turn-id"]}
    assert (await client.turn("ours", "child", **proof))[0] == 200

    await stopped(client, bus, "root", "child")
    for program in ("root", "child"):
        status, told, body = await asyncio.wait_for(client.turn("ours", program, **proof), TIMEOUT_S)
        assert (status, body["error"]["code"]) == (429, "budget_spent")
        assert "its run has spent its budget of 3 turns" in body["error"]["message"]
        assert told["x-should-retry"] == "false"
    assert (await client.turn("ours", "another"))[0] == 200, "the budget was that run's alone"


async def a_tenant_beyond_its_budget(client: Client) -> None:
    assert (await client.turn("poor", "first"))[0] == 200
    status, told, body = await asyncio.wait_for(client.turn("poor", "second"), TIMEOUT_S)
    assert status == 429
    assert body["error"]["message"] == "tenant poor has spent its 1 turns in 600 s"
    assert 0 < int(told["retry-after"]) <= 600
    assert (await client.turn("theirs", "third"))[0] == 200, "others are not held for it"


async def seen(bus: BusClient) -> None:
    def has_rows(status: dict[str, Any]) -> bool:
        rows = {row["tenant"]: row for row in status["status"]["tenants"]}
        return rows["ours"]["turns"] == 4 and rows["poor"]["refused"] >= 1 and rows["default"]["turns"] == 0

    await bus.status_where(has_rows, "tenants in the status")


async def test_budgets_stop_runs_with_their_children_and_refuse_tenants(
    daemon: DaemonProcess, nats_server: Any
) -> None:
    async with governed_double(nats_server.url) as (gate, reporter, bus):
        client = Client(gate.url, gate.http)
        await a_run_beyond_its_budget(client, reporter, bus)
        await a_tenant_beyond_its_budget(client)
        await seen(bus)
    assert "Traceback" not in daemon.log


async def test_a_killed_daemon_knows_what_was_spent(daemon: DaemonProcess, nats_server: Any) -> None:
    async with governed_double(nats_server.url) as (gate, _, bus):
        client = Client(gate.url, gate.http)
        for _ in range(2):
            assert (await client.turn("ours", "root"))[0] == 200
        assert (await client.turn("poor", "first"))[0] == 200
        assert (await asyncio.wait_for(client.turn("poor", "second"), TIMEOUT_S))[0] == 429
        daemon.kill()
        daemon.start()
        assert (await asyncio.wait_for(client.turn("ours", "root"), TIMEOUT_S))[0] == 200, "the third of three"
        await stopped(client, bus, "root")
        status, _, body = await asyncio.wait_for(client.turn("ours", "root"), TIMEOUT_S)
        assert (status, body["error"]["code"]) == (429, "budget_spent")
        status, _, body = await asyncio.wait_for(client.turn("poor", "third"), TIMEOUT_S)
        assert (status, body["error"]["message"]) == (429, "tenant poor has spent its 1 turns in 600 s")
        daemon.kill()
        daemon.start()
        status, _, body = await asyncio.wait_for(client.turn("ours", "root"), TIMEOUT_S)
        assert (status, body["error"]["code"]) == (429, "budget_spent"), "what was stopped stays so"
    assert "Traceback" not in daemon.log
