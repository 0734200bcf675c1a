"""What clients ask for and what they end: a real gate, bus and daemon, and the engine double."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import DaemonProcess, eventually, running
from support.governed_double import GateClient, governed_double

from controlplane.core.model.commands import Discard, Retain

pytestmark = pytest.mark.asyncio

CONFIG = 'preset = "fcfs"\n[control.hints]\nretain_most_s = 60\n'
RETAIN = {"action_id": "a", "action_type": "kv.retain", "action_version": "1.0", "payload": {"ttl_seconds": 3600}}


@pytest.fixture
def daemon(tmp_path: Path, nats_server: Any) -> Iterator[DaemonProcess]:
    with running(tmp_path, "--nats", nats_server.url, config=CONFIG) as process:
        yield process


async def turn(client: GateClient, name: str, **more: Any) -> dict[str, str]:
    """One turn; the headers of its reply."""
    messages = [{"role": "user", "content": " ".join(["word"] * 500)}]
    body = {"messages": messages, "max_tokens": 4, "program_id": name, **more}
    async with client.http.post(f"{client.url}/v1/chat/completions", json=body) as response:
        assert response.status == 200
        await response.read()
        return {name.lower(): value for name, value in response.headers.items()}


async def pool_where(daemon: DaemonProcess, what: str, wanted: Callable[[dict[str, int]], bool]) -> None:
    """Once the double's pool is so, by its last sample."""

    async def look() -> bool:
        (engine,) = json.loads(daemon.penstock("engines", "--json").stdout)["engines"]
        return wanted(engine)

    await eventually(look, what=what)


async def test_a_hint_is_answered_and_explained_and_what_ends_is_freed(
    daemon: DaemonProcess, nats_server: Any
) -> None:
    async with governed_double(nats_server.url) as (client, _, bus):

        async def granted() -> Any:
            """Once the gate has heard that an engine keeps contexts."""
            told = await turn(client, "kept", kv_hints={"message_id": "m", "actions": [RETAIN]})
            (answer,) = json.loads(told["x-penstock-kv-hints"])["actions"]
            return answer if answer["outcome"] != "rejected" else None

        answer = await eventually(granted, what="a receipt", timeout_s=60)
        assert (answer["outcome"], answer["ttl_seconds"]) == ("clipped", 60)
        pin = await bus.hears(lambda command: isinstance(command, Retain), "a pin")
        assert pin.ttl_ns <= 60e9
        await turn(client, "kept", kv_hints={"message_id": "m", "actions": [RETAIN]})
        await is_explained(daemon, "kept", "its client asks for 3,600s by kv_hints kv.retain", "tokens found")
        await pool_where(daemon, "a pin in the pool", lambda pool: pool["kv_retained_blocks"] > 0)
        async with client.http.post(f"{client.url}/programs/release", json={"program_id": "kept"}) as response:
            assert await response.json() == {"program_id": "kept", "ended": True}
        await bus.hears(lambda told: isinstance(told, Discard) and told.program_id == "kept", "it is freed")
        await pool_where(daemon, "a free pool", lambda pool: pool["kv_free_blocks"] == pool["kv_total_blocks"])
        status = await bus.status()
        assert status["programs"]["kept"]["status"] == "ended"


async def is_explained(daemon: DaemonProcess, name: str, *texts: str) -> None:
    async def is_told() -> bool:
        story = daemon.penstock("explain", name).stdout
        return all(text in story for text in texts)

    await eventually(is_told, what=f"{texts} in the story of {name}")
