"""A picker under floods of its port, while an Envoy that was there before is answered and another one comes."""

import asyncio
import os
from collections.abc import Callable

from support.floods import ATTACKS, HTTP2, Door, tcp
from support.pickers import CHAT, Asked, asking, chosen

from .test_picker import picker_process

PLACE = "node-a/engine-1"


async def sends_on(port: int) -> None:
    """A new connection of Envoy's is taken, if need be once strangers have timed out, and its turn goes on."""
    async with asking(port) as ask:
        await is_answered(ask)


async def is_answered(ask: Callable[..., Asked]) -> None:
    asked = ask()
    await asked.headers({":method": "POST", ":path": CHAT, "x-penstock-program-id": "p"}, end=True)
    assert chosen(await asked.reply())[1] == "10.0.0.1:1"
    await asked.finish()


async def test_a_flood_ends_nothing_and_envoy_is_answered() -> None:
    with picker_process("0", f"{PLACE}=10.0.0.1:1") as (process, port):
        assert process.stdin is not None
        process.stdin.write("p\n")
        process.stdin.flush()
        async with asking(port) as ask:
            await is_answered(ask)
            for attack in ATTACKS.values():
                flood = asyncio.create_task(asyncio.to_thread(attack, Door(tcp(port), HTTP2[:9], HTTP2)))
                while not flood.done():
                    await is_answered(ask)
                    await asyncio.sleep(0.05)
                sockets = await flood
                try:
                    await is_answered(ask)
                    await asyncio.wait_for(sends_on(port), 60)
                finally:
                    for sock in sockets:
                        sock.close()
        assert process.poll() is None
        assert len(os.listdir(f"/proc/{process.pid}/fd")) < 2000  # noqa: PTH208
