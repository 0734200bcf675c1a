"""The whole loop with MARS's policies: agents whose tools are on the stream, an engine under KV pressure."""

import asyncio

from engine_client import Reply
from engine_scene import Bus, Scene, playing
from engine_server import EngineServer
from engine_versions import on_every_version
from tiny_model import words

from controlplane.core.model.events import HostSampled, ProgramEnded, ToolEnded, ToolStarted, TurnEnded, TurnQueued

MARS = 'preset = "mars"\n[control]\ninterval_s = 0.2\n'
PROGRAMS, TURNS = 8, 4


async def agent(scene: Scene, number: int) -> list[Reply]:
    """Turns with a tool call after each but the last, then the end."""
    program_id = f"mars-{number}"
    messages = [{"role": "user", "content": words(800 + number, 400)}]
    replies = []
    for turn in range(TURNS):
        reply = await scene.chat(program_id, messages, output_tokens=40, stream=number % 2 == 0)
        replies.append(reply)
        messages.append({"role": "assistant", "content": reply.text})
        if turn + 1 < TURNS:
            call_id = f"{program_id}-{turn}"
            await scene.publish(ToolStarted(program_id=program_id, call_id=call_id, tool="bash"))
            await asyncio.sleep(0.05)  # the tool at work
            ended = ToolEnded(program_id=program_id, call_id=call_id, tool="bash", duration_ns=50_000_000)
            await scene.publish(ended)
            messages.append({"role": "user", "content": words(820 + 10 * turn + number, 150)})
    await scene.publish(ProgramEnded(program_id=program_id))
    return replies


@on_every_version
async def test_agents_under_mars_all_end_and_no_hook_fails(plugin_engine: EngineServer, bus: Bus) -> None:
    async with playing(plugin_engine, bus, MARS) as scene:
        await scene.until(HostSampled)
        outcomes = await asyncio.gather(*(agent(scene, number) for number in range(PROGRAMS)))
        assert [reply.status for replies in outcomes for reply in replies] == [200] * (PROGRAMS * TURNS)
        for number in range(PROGRAMS):
            await scene.until(TurnEnded, TURNS, program_id=f"mars-{number}", ok=True)
        assert len({event.program_id for event in scene.heard(TurnQueued)}) >= PROGRAMS, "the daemon was asked"
        health = await scene.penstock()
        assert health["limit"] > 0, "a window is in force"
        assert (health["held_turns"], health["running_turns"]) == (0, 0)
        assert health["plugin"]["hook_failures"] == {}
