"""A picker as a process of its own, for tests that kill it: ``picker_process.py PATIENCE_S PLACE=ADDRESS...``.

It prints its port, and then each turn that it holds, as ``held PROGRAM MILLISECONDS_SO_FAR``. A program's name on
standard input lets it in; ``hang`` has its event loop hang.
"""

import asyncio
import sys
import time

from controlplane import eventloop
from controlplane.core.model.commands import Admit
from controlplane.core.model.events import Event, TurnQueued
from controlplane.core.model.types import seconds
from controlplane.daemon.process import logs
from controlplane.emit.emitter import Emitter
from controlplane.fleet.ext_proc import PickerServer
from controlplane.fleet.pluginless import PluginlessEngines
from controlplane.fleet.roster import Engine, Roster
from controlplane.gate import Gate
from controlplane.wire.heartbeat import Heartbeat


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def main() -> None:
    logs.configure("error")

    def send(event: Event, urgent: bool) -> None:
        if isinstance(event, TurnQueued):
            say(f"held {event.program_id} {round(float(str(gate.health()['longest_hold_s'])) * 1000)}")

    gate = Gate(send=send, now_ns=time.monotonic_ns)
    gate.on_heartbeat(Heartbeat(node="fleet", boot_id="boot-1", lease_ttl_ns=seconds(3600), limit=4, window=4.0))
    engines = (
        Engine(place=place, address=address) for place, _, address in (a.partition("=") for a in sys.argv[2:])
    )
    roster = Roster(engines)
    turns = PluginlessEngines(roster, lambda node, role: Emitter(url="", node=node, role=role))  # it does not lead
    server = PickerServer(gate=gate, roster=roster, turns=turns, name="picker", patience_s=float(sys.argv[1]))
    port = await server.start("127.0.0.1:0")
    server.set_serving(True)
    say(str(port))
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop.add_reader(sys.stdin.fileno(), lambda: lines.put_nowait(sys.stdin.readline()))
    while line := (await lines.get()).strip():
        if line == "hang":
            time.sleep(60)  # noqa: ASYNC251 - that is what it is for
        gate.on_command(Admit(program_id=line))


eventloop.run(main)
