"""Two vLLM servers with the ranks of one mixture of experts: whoever balances over them, each has its own.

The one balances over two ranks, as on each of several hosts; the other is a third rank.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from engine_client import EngineClient
from engine_load import PROMPT_TOKENS, decoding, first_turn, next_turn
from engine_scene import NODE, TIMEOUT_S, Bus, playing
from engine_server import EngineServer, Launch
from engine_versions import on
from support.daemon_process import eventually
from support.ports import free_port
from vllm_server import Experts

from controlplane.core.model.commands import Retain
from controlplane.core.model.events import CommandApplied, PoolSampled, TurnEnded
from controlplane.core.model.places import place_of
from controlplane.core.model.types import seconds

pytestmark = on("vllm")

FORMS = (
    ("--data-parallel-hybrid-lb", "--data-parallel-start-rank", "0", "--data-parallel-size-local", "2"),
    ("--data-parallel-rank", "2"),
)


@pytest.fixture(scope="module")
def servers(launch: Launch) -> Iterator[list[EngineServer]]:
    """None is ready before all are there."""
    together = ("--data-parallel-size", "3", "--data-parallel-address", "127.0.0.1")
    together += ("--data-parallel-rpc-port", str(free_port()))
    starts = [launch("of-several", *together, *form, server_class=Experts) for form in FORMS]
    try:
        with ThreadPoolExecutor(len(starts)) as pool:
            yield list(pool.map(next, starts))
    finally:
        for start in starts:
            start.close()


def places(server: EngineServer, *ranks: int) -> list[str]:
    return [f"{NODE}/engine-{server.port}-dp{rank}" for rank in ranks] or [f"{NODE}/engine-{server.port}"]


async def test_each_has_a_gate_and_its_ranks_obey_while_another_is_busy(
    servers: list[EngineServer], bus: Bus
) -> None:
    two, one = servers
    bus.announce(one)
    homes = {"busy": places(two, 0, 1), "here": places(two, 0, 1), "there": places(one)}
    async with playing(two, bus, 'preset = "penstock"\n') as scene:
        clients = {"here": scene, "there": EngineClient(one, scene._http)}

        async def governed() -> bool:
            healths = [await client.penstock() for client in clients.values()]
            assert [health["plugin"]["passive_because"] for health in healths] == ["", ""]
            return all(health["mode"] == "governed" for health in healths)

        await eventually(governed, what="two gates that are governed", timeout_s=TIMEOUT_S)
        for at in (*places(two, 0, 1), *places(one)):
            await scene.until(PoolSampled, where=lambda event, at=at: place_of(event.publisher) == at)
        running = await decoding(scene, "busy", 9400, 60, 1500)
        for seed, (program_id, client) in enumerate(clients.items(), 9401):
            messages = await first_turn(client, program_id, seed)
            (command_id,) = await scene.say(Retain(program_id=program_id, ttl_ns=seconds(60)))
            applied = await scene.until(CommandApplied, command_id=command_id)
            reply = await next_turn(client, program_id, messages)
            assert reply.cached_tokens >= one.whole_blocks(PROMPT_TOKENS)
            ended = await scene.until(TurnEnded, 2, program_id=program_id)
            assert place_of(ended.publisher) == place_of(applied.publisher) in homes[program_id]
        assert (await running).status == 200
        assert place_of((await scene.until(TurnEnded, program_id="busy")).publisher) in homes["busy"]
