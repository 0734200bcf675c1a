"""A probe: it tells, and holds nothing. An engine of its own, whose hooks are measured."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_client import EngineClient
from engine_scene import NODE, talk
from engine_server import EngineServer, serving
from support.daemon_process import eventually
from tiny_model import words

PROGRAMS = 4


@pytest.fixture
def probe(engine_env: Path, tiny_model: Path, tmp_path: Path, nats_server: Any) -> Iterator[EngineServer]:
    server = EngineServer(
        tmp_path,
        environment=engine_env,
        model=tiny_model,
        plugins=("penstock",),
        variables={
            "PENSTOCK_PLUGIN": "probe",
            "PENSTOCK_PLUGIN_TIMING": "1",
            "PENSTOCK_NODE": NODE,
            "PENSTOCK_NATS_URL": nats_server.url,
        },
    )
    yield from serving(server)


def test_a_probe_holds_nothing_and_its_health_page_tells_what_it_did(probe: EngineServer) -> None:
    async def story(client: EngineClient) -> None:
        async def told_of_all() -> Any:
            health = await client.penstock()
            emitter = (health["scheduler"] or {}).get("emitter")
            return health if emitter and emitter["sent"] >= 3 * PROGRAMS else None

        replies = await asyncio.gather(*(client.chat(f"probed-{n}", words(1300 + n, 50)) for n in range(PROGRAMS)))
        assert [(reply.status, reply.held_ms) for reply in replies] == [(200, -1)] * PROGRAMS
        health = await eventually(told_of_all, what="count of all events")
        assert (health["mode"], health["plugin"]["node"], health["plugin"]["passive_because"]) == (
            "probe",
            NODE,
            "",
        )
        emitter = health["scheduler"]["emitter"]
        assert (emitter["connected"], emitter["dropped"], emitter["rejected"]) == (True, 0, 0)
        assert health["scheduler"]["hook_failures"] == health["plugin"]["hook_failures"] == {}
        times = health["scheduler"]["hook_times"]
        assert times["_add_request_to_queue"]["calls"] >= PROGRAMS, "and the engine asks itself how it is"
        assert times["process_batch_result"]["calls"] >= 8, "one for each step"

    talk(story, probe)
