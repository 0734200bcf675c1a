"""What is asked of a scheduler side whose server has no place for a gate."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import test_engine_events
import test_engine_policies
import test_engine_retention
from engine_scene import TIMEOUT_S, Bus, Scene
from engine_server import EngineServer
from support.daemon_process import eventually

AS_WITH_A_GATE = pytest.mark.parametrize(
    "as_with_a_gate",
    [
        test_engine_retention.test_who_is_retained_hits_where_others_miss,
        test_engine_policies.test_a_small_turn_overtakes_a_large_one_that_finds_no_room,
        test_engine_events.test_turns_of_one_token_and_one_whose_client_leaves,
    ],
    ids=lambda test: test.__name__,
)


async def doctor_of(daemon: Any, bus: Bus, engine: EngineServer) -> dict[str, dict[str, str]]:
    """The doctor's findings of an engine without a gate, once the daemon has noted that."""

    def doctor() -> dict[str, dict[str, str]]:
        said = daemon.penstock("doctor", "--nats", bus.server.url, "--engine", engine.url, "--json")
        return {finding["what"]: finding for finding in json.loads(said.stdout)}

    async def noted() -> bool:
        return "no gate" in await asyncio.to_thread(doctor)

    await eventually(noted, what="the daemon's own finding", timeout_s=TIMEOUT_S)
    return await asyncio.to_thread(doctor)


async def knows_both(scene: Scene, log: Path) -> None:
    """Return once the gate outside hears the daemon, and knows that the scheduler obeys."""

    async def look() -> bool:
        with suppress(aiohttp.ClientError, AssertionError):
            health = await scene.penstock()
            return bool(health["mode"] == "governed" and "obeys" in health["outside"]["scheduler"])
        return False

    try:
        await eventually(look, what="a gate that knows daemon and scheduler", timeout_s=TIMEOUT_S)
    except AssertionError:
        raise AssertionError(log.read_text()[-2000:]) from None
