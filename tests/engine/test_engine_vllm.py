"""What is vLLM's own: scheduling that overlaps with steps, and contexts that are held from their turns' ends."""

from engine_load import first_turn, next_turn
from engine_scene import FCFS, Bus, playing
from engine_server import EngineServer
from engine_versions import on

from controlplane.core.model.commands import Release, Retain
from controlplane.core.model.events import PoolSampled
from controlplane.core.model.types import seconds

pytestmark = on("vllm")


async def test_turn_after_turn_is_held_pinned_and_let_go(plugin_engine: EngineServer, bus: Bus) -> None:
    """The daemon retains, so that each context is held from its turn's end; in the end nothing is left pinned."""
    assert plugin_engine.log.count("in AsyncScheduler") == 1, "as on a GPU"
    async with playing(plugin_engine, bus, FCFS) as scene:
        await first_turn(scene, "first", seed=960)
        await scene.obeyed(Retain(program_id="first", ttl_ns=seconds(1)))
        for number in range(4):
            name = f"next-{number}"
            messages = await first_turn(scene, name, seed=961 + number)
            await scene.obeyed(Retain(program_id=name, ttl_ns=seconds(30)))
            assert (await next_turn(scene, name, messages)).cached_tokens > 0
            released = await scene.obeyed(Release(program_id=name))

        def all_let_go(event: PoolSampled) -> bool:
            held = event.total_blocks - event.free_blocks - event.evictable_blocks
            return event.sequence > released.sequence and held == event.retained_blocks == 0

        await scene.until(PoolSampled, where=all_let_go)
