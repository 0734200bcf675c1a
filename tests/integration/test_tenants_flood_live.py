"""Two tenants that both flood a real gate: a real daemon and bus share the engine double between them by weight."""

import asyncio
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import BusClient, DaemonProcess
from support.governed_double import GateClient, governed_double

pytestmark = pytest.mark.asyncio

KEYS = {"large": "sk-large", "small": "sk-small"}
WEIGHTS = {"large": 3, "small": 1}
WAITING = 12  # turns that each tenant has at the gate all the time; two of all run
TURNS = 120  # of both together; each deviates by no more than what has a slot at one time
WORDS = itertools.count()


def table(name: str) -> str:
    digest = hashlib.sha256(KEYS[name].encode()).hexdigest()
    return f'[tenants.{name}]\nkeys = ["sha256:{digest}"]\nweight = {WEIGHTS[name]}\n'


CONFIG = f"""
preset = "fcfs"
lease_s = 600
[admission]
window = 2
[control]
interval_s = 0.2
stall_s = 3600
{table("large")}{table("small")}"""


@pytest.fixture
def daemon(tmp_path: Path, nats_server: Any) -> Iterator[DaemonProcess]:
    config = tmp_path / "penstock.toml"
    config.write_text(CONFIG)
    process = DaemonProcess(tmp_path / "state", "--nats", nats_server.url, "--config", str(config))
    process.start()
    yield process
    process.clean_up()


async def flood(client: GateClient, tenant: str) -> None:
    """One turn after the other, each a program of its own, with words that no other turn has: nothing is shared."""
    headers = {"authorization": f"Bearer {KEYS[tenant]}"}
    while True:
        words = " ".join(f"w{next(WORDS)}" for _ in range(300))
        body = {"messages": [{"role": "user", "content": words}], "max_tokens": 8}
        async with client.http.post(f"{client.url}/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            await response.read()


def rows(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["tenant"]: row for row in status["status"]["tenants"]}


async def both_wait(bus: BusClient) -> None:
    """From here on nobody is behind because it had not asked yet."""

    def looks(status: dict[str, Any]) -> bool:
        found = rows(status)
        return all(found[name]["waiting"] >= WAITING - 2 for name in KEYS)

    await bus.status_where(looks, "tenants that both wait")


async def test_two_that_flood_get_memory_and_turns_by_their_weights(
    daemon: DaemonProcess, nats_server: Any
) -> None:
    async with governed_double(nats_server.url) as (client, _, bus):
        floods = [asyncio.ensure_future(flood(client, name)) for name in KEYS for _ in range(WAITING)]
        try:
            await both_wait(bus)
            before = rows(await bus.status())

            def since(status: dict[str, Any], figure: str) -> dict[str, float]:
                return {name: rows(status)[name][figure] - before[name][figure] for name in KEYS}

            for turns in range(10, TURNS + 1, 10):  # step by step: each is soon, on a busy machine, too
                seen = await bus.status_where(
                    lambda status, least=turns: sum(since(status, "turns").values()) >= least, f"{turns} turns"
                )
        finally:
            for task in floods:
                task.cancel()
            ended = await asyncio.gather(*floods, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended
        memory = since(seen, "kv_token_s")
        assert memory["large"] / sum(memory.values()) == pytest.approx(0.75, abs=0.75 * 0.05)
        turns = since(seen, "turns")
        assert turns["large"] / sum(turns.values()) == pytest.approx(0.75, abs=0.05)
    assert "Traceback" not in daemon.log
