"""The whole loop for one test: the engine with the plugin, a real nats-server, and real daemons as it likes."""

import asyncio
import contextlib
import json
import time
import tomllib
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import nats
from engine_client import LOOK_S, REQUEST_TIMEOUT_S, EngineClient
from engine_server import EngineServer
from support.daemon_process import DaemonProcess, eventually

from controlplane.config import parse
from controlplane.core.model.commands import Command, Pause, ProgramCommand, Release
from controlplane.core.model.events import CommandApplied, CommandRejected, Event, HostSampled, PoolSampled
from controlplane.core.policies.engine_policies import EnginePolicies
from controlplane.transport.delivery import delivered
from controlplane.transport.endpoint import Endpoint, endpoint_path, write_endpoint
from controlplane.transport.subjects import (
    all_events_subject,
    command_subject,
    event_subject,
    publisher_name,
    status_subject,
    stream_name,
)
from controlplane.wire.codec import decode_commands, decode_events, encode_commands, encode_events

NODE = "engine-test"
FCFS = 'preset = "fcfs"\n'
WINDOW_OF_ONE = FCFS + "[admission]\nwindow = 1\n"
TIMEOUT_S = 240.0  # far more than is needed: the machine may be busy
_LAST_WORDS_S = 10.0
_FIRST_COMMAND_ID = 1_000_000  # far from a daemon's own


class Bus:
    """A nats-server that engines are told of while this is open, and its daemons.

    :param server: the ``nats_server`` fixture's.
    """

    def __init__(self, server: Any, folder: Path) -> None:
        self.server = server
        self._folder = folder
        self._daemons: list[DaemonProcess] = []
        self._told: set[Path] = set()

    def announce(self, *engines: EngineServer) -> None:
        """Tell these engines' plugins where the server is; without any, those that were told before."""
        self._told |= {engine.folder for engine in engines}
        for folder in self._told:
            write_endpoint(NODE, Endpoint(url=self.server.url, pid=self.server.pid), folder)

    def daemon(self, config: str = FCFS, *more: str) -> DaemonProcess:
        """A daemon with this configuration, started; ``more``: of its command line."""
        config_path = self._folder / f"penstock-{len(self._daemons)}.toml"
        config_path.write_text(config)
        arguments = ("--nats", self.server.url, "--config", str(config_path), *more)
        daemon = DaemonProcess(self._folder / "daemon", *arguments, node=NODE)
        self._daemons.append(daemon)
        daemon.start()
        return daemon

    def close(self) -> None:
        for folder in self._told:
            endpoint_path(NODE, folder).unlink(missing_ok=True)
        for daemon in self._daemons:
            daemon.clean_up()


async def policies_told(engine: EngineServer, config: str) -> None:
    """The engine runs this configuration's policies; it tells them when they change only."""
    policies = parse(tomllib.loads(config)).policies
    text = EnginePolicies(priority=policies.priority, memory=policies.memory).dumps()

    async def told() -> bool:
        *_, last = ["", *(line for line in engine.log.splitlines() if "penstock: engine policies: " in line)]
        return last.endswith(f": {text}")

    await eventually(told, what=f"engine with {text}", timeout_s=TIMEOUT_S, every_s=LOOK_S)


class Scene(EngineClient):
    """An engine's client that hears its events, and speaks to it as the daemon does."""

    def __init__(self, engine: EngineServer, http: aiohttp.ClientSession, client: Any) -> None:
        super().__init__(engine, http)
        self.block_tokens = engine.block_tokens  # of the engine's pool
        self._has_gate = engine.has_gate
        self.events: list[Event] = []
        self.commands: list[Command] = []
        self._client = client
        self._news = asyncio.Event()
        self._said = 0
        self._began_ns = time.monotonic_ns()
        self._published = 0
        self._publisher = publisher_name(NODE, "tool", uuid.uuid4().hex[:12])

    async def listen(self) -> None:
        """Read the node's JetStream stream from its beginning."""
        await eventually(self._has_stream, what="stream of events", timeout_s=TIMEOUT_S)
        subject = all_events_subject(NODE)
        await self._client.jetstream().subscribe(subject, cb=self._hear, ordered_consumer=True)
        await self._client.subscribe(command_subject(NODE), cb=self._hear_commands)

    async def _has_stream(self) -> bool:
        try:
            await self._client.jetstream().stream_info(stream_name(NODE))
        except nats.errors.Error:
            return False
        return True

    async def _hear(self, message: Any) -> None:
        batch = decode_events(message.data)
        assert batch.rejected == []
        # The stream holds what earlier engines answered, and the commands of each scene count from the same number.
        answers = CommandApplied | CommandRejected
        self.events += [
            each for each in batch.events if not isinstance(each, answers) or each.at_ns >= self._began_ns
        ]
        self._news.set()

    async def _hear_commands(self, message: Any) -> None:
        self.commands += decode_commands(message.data)
        self._news.set()

    def heard(self, kind: type[Event], **fields: object) -> list[Any]:
        """The events of that kind with these fields, so far."""
        return [
            event
            for event in self.events
            if type(event) is kind and all(getattr(event, name) == value for name, value in fields.items())
        ]

    async def until(
        self, kind: type[Event], count: int = 1, where: Callable[[Any], bool] | None = None, **fields: object
    ) -> Any:
        """The ``count``-th event of that kind with these fields for which ``where`` holds."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while True:
                    self._news.clear()
                    found = [event for event in self.heard(kind, **fields) if where is None or where(event)]
                    if len(found) >= count:
                        return found[count - 1]
                    await self._news.wait()
        except TimeoutError:
            told = [event for event in self.events if not isinstance(event, PoolSampled | HostSampled)]
            known = "\n".join(str(one) for one in [*told[-30:], *self.commands[-10:]])
            raise AssertionError(
                f"no {kind.__name__} {fields} among {len(self.events)}; the last:\n{known}"
            ) from None

    async def until_said(self, kind: type[ProgramCommand], program_id: str, after: int = 0) -> Any:
        """The daemon's first command of that kind about the program, behind its first ``after`` commands."""

        async def look() -> Command | None:
            said = (one for one in self.commands[after:] if type(one) is kind and one.program_id == program_id)  # type: ignore[attr-defined]
            return next(said, None)

        return await eventually(look, what=f"{kind.__name__} of {program_id}", timeout_s=TIMEOUT_S)

    async def tier(self, program_id: str, tier: str) -> None:
        """Return once the daemon takes the program's context to be there."""

        async def look() -> bool:
            try:
                reply = await self._client.request(status_subject(NODE), b"programs", timeout=1)
            except (nats.errors.Error, TimeoutError):
                return False
            program = json.loads(reply.data)["programs"].get(program_id, {})
            return bool(program.get("kv_tier") == tier)

        await eventually(look, what=f"{program_id} in tier {tier}", timeout_s=TIMEOUT_S)

    async def say(self, *commands: Command, after: int = 0) -> list[int]:
        """Send commands, and return their ids. ``after``: a daemon's id; who heard it obeys a lower one no more."""
        numbered = []
        for command in commands:
            self._said += 1
            numbered.append(replace(command, command_id=after + _FIRST_COMMAND_ID + self._said))
        await self._client.publish(command_subject(NODE), encode_commands(numbered))
        await delivered(self._client)
        return [command.command_id for command in numbered]

    async def obeyed(self, *commands: Command) -> CommandApplied:
        """Send commands; the last one's answer, once all are obeyed."""
        answers = [await self.answer(command_id) for command_id in await self.say(*commands)]
        assert all(isinstance(answer, CommandApplied) for answer in answers), answers
        return answers[-1]

    async def answer(self, command_id: int) -> Any:
        """The first word that a command was applied, or was rejected."""

        async def look() -> Event | None:
            both = self.heard(CommandApplied, command_id=command_id) + self.heard(
                CommandRejected, command_id=command_id
            )
            return next(iter(both), None)

        return await eventually(look, what=f"answer to command {command_id}", timeout_s=TIMEOUT_S, every_s=LOOK_S)

    async def publish(self, event: Event) -> None:
        """Send an event as a tool runtime does."""
        self._published += 1
        data = encode_events(self._publisher, self._published, [(time.monotonic_ns(), event)])
        await self._client.publish(event_subject(NODE, "tool"), data)
        await delivered(self._client)

    async def forget(self) -> None:
        """Take back what this scene's programs were given, so that the next scene finds nothing of it.

        The bus ends next, and who has not heard it by then never does. The gate answers one, the engine the other.
        """
        if self.programs and self._client.is_connected:
            names = sorted(self.programs)
            last = max((command.command_id for command in self.commands), default=0)
            paused = await self.say(*(Pause(program_id=name) for name in names), after=last)
            released = await self.say(*(Release(program_id=name) for name in names), after=last)
            awaited = [*paused[-1:] * self._has_gate, released[-1]]
            with contextlib.suppress(AssertionError):  # a test may leave nobody who answers
                await eventually(lambda: self._answered(*awaited), what="answers", timeout_s=_LAST_WORDS_S)

    async def _answered(self, *command_ids: int) -> bool:
        answers = [*self.heard(CommandApplied), *self.heard(CommandRejected)]
        return {answer.command_id for answer in answers} >= set(command_ids)


def _session() -> aiohttp.ClientSession:
    """A connection for each request: the server closes idle ones, and a request that meets that fails."""
    connector = aiohttp.TCPConnector(force_close=True)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S))


@contextlib.asynccontextmanager
async def playing(engine: EngineServer, bus: Bus, config: str = "") -> AsyncIterator[Scene]:
    """Tell the plugin of the bus; the scene, once each of its parts is on it.

    A daemon with ``config``, or one that was started before, governs the gate then.
    """

    async def quiet(error: Exception) -> None:
        """Losing the server is what some tests are about."""

    if config:
        bus.daemon(config)
    client = await nats.connect(bus.server.url, reconnect_time_wait=0.1, max_reconnect_attempts=-1, error_cb=quiet)
    try:
        async with _session() as http:
            scene = Scene(engine, http, client)
            await scene.listen()
            before = await scene.boot_id() if engine.has_gate else ""
            bus.announce(engine)
            if engine.has_gate:
                await scene.governed_anew(before)
            # A scheduler that is heard hears commands, too. Others may be on this bus; ranks add to the name.
            own = (f"{NODE}/engine-{engine.port}/", f"{NODE}/engine-{engine.port}-")
            await scene.until(PoolSampled, where=lambda event: event.publisher.startswith(own))
            try:
                yield scene
            finally:
                await scene.forget()
    finally:
        await client.close()
    failed = [line for line in engine.log.splitlines() if "penstock: the hook" in line]
    assert failed == [], "an exception in a hook is caught, and is a fault all the same"


@contextlib.asynccontextmanager
async def talking(engine: EngineServer) -> AsyncIterator[EngineClient]:
    """A client of an engine, and no bus."""
    async with _session() as http:
        yield EngineClient(engine, http)
