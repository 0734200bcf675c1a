"""A group of rollouts and new weights on one node: a real daemon, bus and gate before the engine double."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import DaemonProcess, running
from support.governed_double import GateClient, governed_double

from controlplane.core.model.commands import Release, Retain

PROMPT = {"role": "system", "content": " ".join(["word"] * 800)}


@pytest.fixture
def daemon(tmp_path: Path, nats_server: Any) -> Iterator[DaemonProcess]:
    with running(tmp_path, "--nats", nats_server.url) as process:
        yield process


class Trainer(GateClient):
    """Samples a group of three, and updates weights."""

    async def turn(self, name: str, turn: int = 1) -> int:
        """One turn; how much of its prompt was cached, in tokens."""
        told = [{"role": "user", "content": f"{name} " * 40 + f"{number}"} for number in range(turn)]
        body = {"messages": [PROMPT, *told], "max_tokens": 64, "program_id": name, "group_id": 7, "group_size": 3}
        async with self.http.post(f"{self.url}/v1/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            return int((await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"])

    async def flush(self) -> None:
        async with self.http.post(f"{self.url}/flush_cache") as response:
            assert response.status == 200


async def test_the_prompt_is_computed_once_and_kept_for_who_comes_late_until_new_weights_end_it(
    daemon: DaemonProcess, nats_server: Any
) -> None:
    async with governed_double(nats_server.url) as (gate, _, bus):
        trainer = Trainer(gate.url, gate.http)
        cached = await asyncio.wait_for(asyncio.gather(trainer.turn("a"), trainer.turn("b")), 60)
        assert sorted(each > 0 for each in cached) == [False, True]
        pin = await bus.hears(lambda told: isinstance(told, Retain), "a pin for who has not come")
        assert pin.reason.startswith("its group's prompt: ")
        assert await trainer.turn("c") > 0
        await bus.hears(lambda told: isinstance(told, Release) and told.program_id in ("a", "b"), "its end")
        assert await trainer.turn("a", 2) > max(cached), "of its own context, too"
        await trainer.flush()
        assert await trainer.turn("a", 3) == 0
