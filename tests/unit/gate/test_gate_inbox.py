"""Commands and heartbeats from another thread."""

import asyncio
import threading

from gate_virtual_time import Beat

from controlplane.core.model.commands import Admit, Command
from controlplane.gate.inbox import Inbox
from controlplane.wire.heartbeat import Heartbeat

Item = Command | Heartbeat


async def test_what_another_thread_posts_is_handed_over_in_order_in_the_loops_thread() -> None:
    got: list[tuple[Item, int, int]] = []
    full = asyncio.Event()

    def take(item: Item, received_ns: int) -> None:
        got.append((item, received_ns, threading.get_ident()))
        if len(got) == 100:
            full.set()

    inbox = Inbox(take, now_ns=lambda: 7)
    commands = [Admit(program_id=f"p{number}") for number in range(100)]
    inbox.post(commands[0])
    assert got == [], "kept until a loop is there"
    inbox.attach(asyncio.get_running_loop())
    poster = threading.Thread(target=lambda: [inbox.post(command) for command in commands[1:]])
    poster.start()
    await asyncio.wait_for(full.wait(), 60)
    poster.join()
    assert [item for item, _, _ in got] == commands
    assert {received_ns for _, received_ns, _ in got} == {7}
    assert {thread for _, _, thread in got} == {threading.get_ident()}


def test_a_closed_loop_or_a_full_box_never_hurts_the_poster() -> None:
    loop = asyncio.new_event_loop()
    inbox = Inbox(lambda item, received_ns: None, now_ns=lambda: 0, capacity=2)
    inbox.attach(loop)
    loop.close()
    for _ in range(5):
        inbox.post(Beat())
    inbox.drain()
