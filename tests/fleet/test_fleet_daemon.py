"""Two fleet daemons, three NATS servers, two engine doubles, each a process; the test asks as Envoy would."""

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from support.daemon_process import BusClient, eventually
from support.fleets import EngineProcess, FleetProcess, nats_cluster, running
from support.pickers import Asked, asking, chosen, refused

from controlplane.core.model.commands import Command, Refuse
from controlplane.core.model.events import CommandApplied, ProgramEnded
from controlplane.core.model.places import FLEET_GATE
from controlplane.transport.subjects import event_subject
from controlplane.wire.codec import decode_events

FLEET = "fleet"
# One program at a time; a leader that is lost is replaced soon, as no server of NATS dies here.
CONFIG = """
preset = "fcfs"
[admission]
policy = "fixed"
window = 1
[fleet]
lease_ttl_s = 4
"""
KEY = "sk-ours"
TENANTS = f"""
preset = "penstock"
[fleet]
lease_ttl_s = 4
[tenants.ours]
keys = ["sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"]
program_turns = 3
"""
EXPERIMENT = """
preset = "penstock"
[fleet]
lease_ttl_s = 4
[experiment]
slice_s = 4
washout_s = 1
"""


@dataclass
class Fleet:
    url: str
    engines: dict[str, EngineProcess]  # by address
    daemons: tuple[FleetProcess, FleetProcess]
    bus: BusClient
    ended: int = 0
    obeyed: set[int] = field(default_factory=set)  # commands that a gate of the fleet took

    async def obeys(self, wanted: Callable[[Command], bool], what: str) -> None:
        """Return once a gate has taken such a command: what its daemon says of itself says nothing of that."""

        async def look() -> bool:
            return any(wanted(each) and each.command_id in self.obeyed for each in self.bus.commands)

        await eventually(look, what=what)

    async def ends(self, program: str) -> None:
        """Its agent says that the run is over."""
        self.ended += 1
        await self.bus.publish(f"{FLEET}/tool/test", self.ended, [ProgramEnded(program_id=program)])

    async def status(self, wanted: Any, what: str) -> dict[str, Any]:
        """The first status that is as wanted. The machine may be busy, and an election takes its time."""
        seen: list[dict[str, Any]] = []

        async def look() -> Any:
            seen[:] = [await self.bus.status()]
            return seen[0] if wanted(seen[0]) else None

        try:
            return dict(await eventually(look, what=what, timeout_s=90))
        except AssertionError:
            raise AssertionError(f"no {what}; at last: {json.dumps(seen)[:6000]}") from None

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "controlplane", "fleet", *arguments, "--nats", self.url],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout


@asynccontextmanager
async def fleet(folder: Path, text: str = CONFIG) -> AsyncIterator[Fleet]:
    url, cluster = nats_cluster(folder)
    engines = [EngineProcess(node, url, folder) for node in ("a", "b")]
    config = folder / "fleet.toml"
    config.write_text(text)
    options = ["--config", str(config), "--endpoints", str(folder / "eds.json")]
    for engine in engines:
        options += ["--engine", f"{engine.place}={engine.address}"]
    daemons = (FleetProcess(0, url, folder, *options), FleetProcess(1, url, folder, *options))
    with running(*cluster, *engines), running(daemons[0]):
        for engine in engines:
            await asyncio.to_thread(engine.wait, 0)
        await daemons[0].says('"event": "leads"')
        daemons[1].start()
        try:
            await daemons[1].says('"event": "serving"')  # as it stands by: Envoy asks it if the first is lost
            bus = await BusClient.connect(url, FLEET)
            try:
                found = Fleet(url, {engine.address: engine for engine in engines}, daemons, bus)

                async def hear(message: Any) -> None:
                    told = decode_events(message.data).events
                    found.obeyed.update(each.command_id for each in told if isinstance(each, CommandApplied))

                await bus.client.subscribe(event_subject(FLEET, FLEET_GATE), cb=hear)
                yield found
            finally:
                await bus.close()
        finally:
            daemons[1].kill()


async def ask(stream: Asked, program: str) -> None:
    await stream.headers({"x-penstock-program-id": program, "content-length": "100"})


async def answer(stream: Asked) -> tuple[str, dict[str, str]]:
    """Where the turn may go, with the headers that it takes there."""
    while True:
        reply = await stream.reply()
        assert reply is not None, "the picker hung up"
        if reply.WhichOneof("response") is not None:
            headers, addresses = chosen(reply)  # a second one is for when the first cannot be reached
            return addresses.split(",")[0], headers


async def run(address: str, headers: dict[str, str], program: str, *, tokens: int = 4) -> None:
    """The turn runs on the engine that was chosen, for as long as so many tokens take."""
    given = {key: value for key, value in headers.items() if key.startswith("x-penstock")}
    body = {"messages": [{"role": "user", "content": f"hello from {program}"}], "max_tokens": tokens}
    async with aiohttp.ClientSession() as http:
        url = f"http://{address}/v1/chat/completions"
        async with http.post(url, json=body, headers={"x-penstock-program-id": program, **given}) as response:
            assert response.status == 200, await response.text()


def hears(engines: int) -> Callable[[dict[str, Any]], bool]:
    """So many engines serve, and were heard."""

    def looks(status: dict[str, Any]) -> bool:
        counts = status["status"]["engines"]
        return bool(counts["serving"] == engines and not counts["silent"])

    return looks


async def test_a_standby_has_the_leaders_ledger_and_admits_on_in_the_same_order(tmp_path: Path) -> None:
    async with fleet(tmp_path) as f:
        first, second = f.daemons
        await first.says('"event": "serving"')
        await f.status(hears(2), "both engines' pools")

        async with asking(first.port) as stream:
            one, two, three = stream(), stream(), stream()
            await ask(one, "one")
            address, headers = await answer(one)
            assert address in f.engines
            long = asyncio.create_task(run(address, headers, "one", tokens=20_000))  # until its client leaves
            await f.status(lambda s: s["programs"]["one"]["open_turns"] == 1, "its turn in the engine")
            await ask(two, "two")
            await f.status(lambda s: s["queue"] == ["two"], "two in the queue")
            await ask(three, "three")
            before = await f.status(lambda s: s["queue"] == ["two", "three"], "three behind it")
            fence = before["status"]["fence"]
            first.kill()

        async with asking(second.port) as stream:  # as Envoy does, and in another order
            three, two = stream(), stream()
            await ask(three, "three")
            await ask(two, "two")
            after = await f.status(lambda s: s["status"]["fence"] > fence, "another leader")
            assert {name: after["programs"][name]["status"] for name in ("one", "two", "three")} == {
                "one": "active",
                "two": "waiting",
                "three": "waiting",
            }
            assert after["queue"] == ["two", "three"]
            assert after["programs"]["one"]["replica"] == before["programs"]["one"]["replica"]
            long.cancel()
            await f.ends("one")
            address, headers = await answer(two)
            await run(address, headers, "two")
            await f.ends("two")
            address, headers = await answer(three)
            await run(address, headers, "three")

        # An engine dies: its program goes on elsewhere.
        home = (await f.status(lambda s: s["programs"]["three"]["replica"], "where it runs"))["programs"]["three"]
        dead = next(engine for engine in f.engines.values() if engine.place == home["replica"])
        (alive,) = [engine for engine in f.engines.values() if engine is not dead]
        dead.kill()
        await f.status(lambda s: s["programs"]["three"]["replica"] == alive.place, "its new place")
        async with asking(second.port) as stream:
            again = stream()
            await ask(again, "three")
            address, headers = await answer(again)
            assert address == alive.address
            await run(address, headers, "three")

        # The first one comes back, asks for the lead, and has it.
        first.start()
        await first.says('"event": "leads"', times=2)
        await second.says('"event": "leads no more"')
        listed = json.loads(f.command("engines", "list", "--json"))
        assert {each["place"] for each in listed} == {dead.place, alive.place}
        f.command("engines", "remove", dead.place)

        async def removed() -> bool:
            return len(json.loads((tmp_path / "eds.json").read_text())["resources"][0]["endpoints"]) == 1

        await eventually(removed, what="Envoy's file without it")
        assert second.stop() == 0
        assert f.command("drain").strip() == "handed over"


async def test_a_run_is_stopped_at_its_budget_whoever_leads_and_wherever_it_ran(tmp_path: Path) -> None:
    async with fleet(tmp_path, TENANTS) as f:
        first, second = f.daemons
        await f.status(hears(2), "both engines' pools")
        key = {"authorization": f"Bearer {KEY}"}

        async def turn(daemon: FleetProcess) -> tuple[int, Any]:
            """What Envoy would be told: 200 and nothing, once the turn has run; else the status and its body."""
            async with asking(daemon.port) as stream:
                asked = stream()
                await asked.headers({"x-penstock-program-id": "root", "content-length": "100", **key})
                while (reply := await asked.reply()).WhichOneof("response") is None:
                    pass
                if reply.WhichOneof("response") == "immediate_response":
                    return refused(reply)[:2]
                headers, addresses = chosen(reply)
                for address in addresses.split(","):  # as Envoy does, where one cannot be reached
                    with suppress(aiohttp.ClientConnectorError):
                        await run(address, headers, "root")
                        return 200, None
                raise AssertionError(f"none of {addresses} can be reached")

        def had(turns: int) -> Callable[[dict[str, Any]], bool]:
            def looks(status: dict[str, Any]) -> bool:
                rows = {row["tenant"]: row for row in status["status"]["tenants"]}
                return "ours" in rows and bool(rows["ours"]["turns"] == turns)

            return looks

        for turns in (1, 2):
            assert await turn(first) == (200, None)
            await f.status(had(turns), f"{turns} turns of the tenant")
        home = (await f.status(had(2), "where it runs"))["programs"]["root"]["replica"]
        next(engine for engine in f.engines.values() if engine.place == home).kill()
        first.kill()
        await second.says('"event": "leads"')
        assert await turn(second) == (200, None), "the third of three, elsewhere"
        await f.status(lambda s: s["programs"].get("root", {}).get("status") == "ended", "the run stopped")
        await f.obeys(lambda command: isinstance(command, Refuse), "word of it at the gate")
        status, body = await turn(second)
        assert (status, body["error"]["code"]) == (429, "budget_spent")
        assert "its run has spent its budget of 3 turns" in body["error"]["message"]


async def test_an_experiment_goes_on_whoever_leads(tmp_path: Path) -> None:
    async with fleet(tmp_path, EXPERIMENT) as f:
        first, _ = f.daemons
        fence = -1

        async def takes_turns() -> None:
            for preset in ("fcfs", "penstock", "fcfs"):
                found = await f.status(
                    lambda s, preset=preset: s["status"]["fence"] > fence and s["status"]["preset"] == preset,
                    f"{preset} in force",
                )
                assert found["status"]["experiment"]["is_stock"] == (preset == "fcfs")

        await takes_turns()
        fence = (await f.bus.status())["status"]["fence"]
        first.kill()  # under fcfs, or just after
        await takes_turns()
