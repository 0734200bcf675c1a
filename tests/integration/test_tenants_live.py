"""Budgets of tenants and runs over a kill: a real daemon and bus, and a real gate before the engine double."""

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import TIMEOUT_S, BusClient, DaemonProcess, eventually, running
from support.governed_double import GateClient, governed_double

KEYS = {"ours": "sk-ours", "poor": "sk-poor"}


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


async def turn(client: GateClient, tenant: str, program: str) -> tuple[int, Any]:
    """Status and body of one turn with a tenant's key."""
    headers = {"x-penstock-program-id": program, "authorization": f"Bearer {KEYS[tenant]}"}
    body = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 4}
    asking = client.http.post(f"{client.url}/v1/chat/completions", json=body, headers=headers)
    async with asyncio.timeout(TIMEOUT_S), asking as response:
        return response.status, await response.json()


async def stopped(client: GateClient, bus: BusClient, *programs: str) -> None:
    """Wait until the daemon has ended these, and the gate, to whom it says so at the same time, lets none pass."""

    def are_ended(status: dict[str, Any]) -> bool:
        return all(status["programs"].get(name, {}).get("status") == "ended" for name in programs)

    async def none_pass() -> bool:
        return bool((await client.health())["granted_programs"] == 0)

    await bus.status_where(are_ended, "run that is stopped")
    await eventually(none_pass, what="word of it at the gate")


async def test_a_killed_daemon_knows_what_was_spent(daemon: DaemonProcess, nats_server: Any) -> None:
    async with governed_double(nats_server.url) as (client, _, bus):
        for _ in range(2):
            assert (await turn(client, "ours", "root"))[0] == 200
        assert (await turn(client, "poor", "first"))[0] == 200
        assert (await turn(client, "poor", "second"))[0] == 429
        daemon.kill()
        daemon.start()
        assert (await turn(client, "ours", "root"))[0] == 200, "the third of three"
        await stopped(client, bus, "root")
        status, body = await turn(client, "ours", "root")
        assert (status, body["error"]["code"]) == (429, "budget_spent")
        status, body = await turn(client, "poor", "third")
        assert (status, body["error"]["message"]) == (429, "tenant poor has spent its 1 turns in 600 s")
        daemon.kill()
        daemon.start()
        status, body = await turn(client, "ours", "root")
        assert (status, body["error"]["code"]) == (429, "budget_spent"), "what was stopped stays so"
    assert "Traceback" not in daemon.log
