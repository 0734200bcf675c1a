"""A real daemon in a process of its own, and a client that speaks to it over the real bus."""

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import nats
from nats.aio.client import Client

from controlplane.core.model.commands import Admit, Command
from controlplane.core.model.events import Event, TurnQueued
from controlplane.transport.delivery import delivered
from controlplane.transport.endpoint import read_endpoint
from controlplane.transport.nats_options import nats_options
from controlplane.transport.subjects import command_subject, event_subject, status_subject
from controlplane.wire.codec import decode_commands, encode_events
from support.commands import penstock

NODE = "test"
TIMEOUT_S = 240.0  # far more than is needed: the machine may be busy


def most_start_s() -> float:
    """How long a daemon may take to be back: 2 s, or fifteen bare starts of its program where those are slow.

    A start is timed at another moment than the daemon's, and others may have the CPUs at one of the two.
    """
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-m", "controlplane", "up", "--help"], check=True, capture_output=True)
    return max(2.0, 15 * (time.monotonic() - began_s))


def run_python(
    log: Path, *arguments: str, files: int = 0, variables: Mapping[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Python with these arguments, and more in its environment. It may open so many files; 0: as many as we."""
    limited = ("bash", "-c", f'ulimit -n {files}; exec "$@"', "bash") if files else ()
    with log.open("ab") as out:
        environment = {**os.environ, **(variables or {})}
        return subprocess.Popen([*limited, sys.executable, *arguments], stdout=out, stderr=out, env=environment)


class DaemonProcess:
    """``penstock up`` with a state directory of its own. ``files``: as of ``run_python``."""

    def __init__(self, folder: Path, *arguments: str, node: str = NODE, files: int = 0) -> None:
        self.folder, self.node, self.arguments, self._files = folder, node, arguments, files
        self.log_path = folder / "daemon.log"
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        up = ("-m", "controlplane", "up", "--node", self.node, "--state-dir", str(self.folder))
        self.process = run_python(self.log_path, *up, *self.arguments, files=self._files)

    @property
    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(TIMEOUT_S)

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(TIMEOUT_S)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(TIMEOUT_S)

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    @property
    def server_pid(self) -> int:
        """Of the embedded nats-server."""
        endpoint = read_endpoint(self.node, self.folder)
        assert endpoint is not None
        return endpoint.pid

    def penstock(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """A command of ours that asks this daemon; it runs in this process."""
        return penstock(*arguments, "--node", self.node, "--state-dir", str(self.folder))

    def clean_up(self) -> None:
        """End the daemon and the server that it left behind."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.send_signal(signal.SIGCONT)  # a test that failed may have left it frozen
            try:
                self.process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        endpoint = read_endpoint(self.node, self.folder)
        if endpoint is not None:
            with suppress(ProcessLookupError):
                os.kill(endpoint.pid, signal.SIGKILL)

    async def url(self) -> str:
        """The embedded server's address, once it is known."""
        endpoint = await eventually(lambda: read_endpoint(self.node, self.folder), what="an endpoint file")
        return str(endpoint.url)


@contextmanager
def running(folder: Path, *arguments: str, config: str = "", node: str = NODE) -> Iterator[DaemonProcess]:
    """A daemon that was started in the folder, with a configuration file of this text if there is any."""
    folder.mkdir(parents=True, exist_ok=True)
    if config:
        (folder / "penstock.toml").write_text(config)
        arguments = ("--config", str(folder / "penstock.toml"), *arguments)
    daemon = DaemonProcess(folder / "state", *arguments, node=node)
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.clean_up()


async def eventually(
    look: Callable[[], Any], *, what: str, timeout_s: float = TIMEOUT_S, every_s: float = 0.01
) -> Any:
    """The first true result of ``look``, which may be awaitable."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = look()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        await asyncio.sleep(every_s)
    raise AssertionError(f"no {what} within {timeout_s:g}s")


def until(look: Callable[[], Any], what: str) -> Any:
    """As ``eventually``, where no event loop has to go on meanwhile."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not (found := look()):
        assert time.monotonic() < deadline_s, f"no {what} within {TIMEOUT_S:g}s"
        time.sleep(0.01)
    return found


class BusClient:
    """A publisher by hand, which also hears commands. At a test's end those are closed that it left open."""

    left_open: ClassVar[set["BusClient"]] = set()

    def __init__(self, client: Client, node: str) -> None:
        self.client, self.node = client, node
        self.commands: list[Command] = []
        self._loop = asyncio.get_running_loop()
        self.left_open.add(self)

    @classmethod
    async def connect(cls, url: str, node: str = NODE) -> "BusClient":
        client = await nats.connect(
            **nats_options(url), reconnect_time_wait=0.05, max_reconnect_attempts=-1, error_cb=_quiet
        )
        self = cls(client, node)

        async def hear(message: Any) -> None:
            self.commands += decode_commands(message.data)

        await client.subscribe(command_subject(node), cb=hear)
        return self

    async def publish(self, publisher: str, first_sequence: int, events: Sequence[Event]) -> None:
        await self.publish_bytes(
            publisher.split("/")[1], encode_events(publisher, first_sequence, [(0, e) for e in events])
        )

    async def publish_bytes(self, role: str, data: bytes) -> None:
        await self.client.publish(event_subject(self.node, role), data)
        await delivered(self.client)

    async def status(self) -> dict[str, Any]:
        """Status, queue and programs, as soon as the daemon answers."""

        patience_s = 0.2  # the question may be lost; a busy one is given longer each time

        async def ask() -> Any:
            nonlocal patience_s
            try:
                reply = await self.client.request(status_subject(self.node), b"programs", timeout=patience_s)
            except nats.errors.NoRespondersError:
                return None
            except (nats.errors.Error, TimeoutError):
                patience_s = min(2 * patience_s, 5.0)
                return None
            return json.loads(reply.data)

        return dict(await eventually(ask, what="status"))

    async def status_where(self, wanted: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """The first status for which ``wanted`` holds."""

        latest: dict[str, Any] = {}

        async def look() -> Any:
            latest.update(await self.status())
            return latest if wanted(latest) else None

        try:
            return dict(await eventually(look, what=what))
        except AssertionError as error:
            raise AssertionError(f"{error}; programs: {latest.get('programs')}") from None

    async def hears(self, wanted: Callable[[Command], bool], what: str) -> Command:
        """The first command for which ``wanted`` holds."""
        found = await eventually(lambda: [c for c in self.commands if wanted(c)], what=what)
        return found[0]  # type: ignore[no-any-return]

    async def grant(self, program_id: str) -> Command:
        """The first grant for that program."""
        return await self.hears(
            lambda c: isinstance(c, Admit) and c.program_id == program_id, f"grant for {program_id}"
        )

    async def granted(self, number: int) -> None:
        """Ask as a gate does, again and again, until the program of that number is let in."""
        batch = encode_events(f"{self.node}/gate/asks{number}", 1, [(0, event) for event in queued(f"p{number}")])

        async def ask() -> bool:
            await self.client.publish(event_subject(self.node, "gate"), batch)
            return any(isinstance(each, Admit) and each.program_id == f"p{number}" for each in self.commands)

        await eventually(ask, what=f"grant for p{number}", every_s=0.1)

    async def close(self) -> None:
        self.left_open.discard(self)
        await self.client.close()

    @classmethod
    async def close_all(cls) -> None:
        """Close what a test that failed left open: else the next test is blamed for it."""
        loop = asyncio.get_running_loop()
        closing = [asyncio.ensure_future(client.close()) for client in cls.left_open if client._loop is loop]
        cls.left_open.clear()
        if closing:
            await asyncio.wait(closing, timeout=5)  # a server may be frozen, and who connects again is cancelled


def queued(*names: str) -> list[Event]:
    """Programs that ask for a first turn."""
    return [TurnQueued(program_id=name, turn_id=f"{name}.1", prompt_tokens=160) for name in names]


async def serving(daemon: DaemonProcess) -> BusClient:
    """A client of a daemon that answers: from then on the stream keeps what is published."""
    bus = await BusClient.connect(await daemon.url())
    await bus.status()
    return bus


@asynccontextmanager
async def bus_of(daemon: DaemonProcess) -> AsyncIterator[BusClient]:
    """As ``serving``, for a while."""
    bus = await serving(daemon)
    yield bus
    await bus.close()


async def says(daemon: DaemonProcess, text: str) -> None:
    """Return once the daemon's log has the text."""
    await eventually(lambda: text in daemon.log, what=f"{text!r} in the log")


async def listening(daemon: DaemonProcess) -> None:
    """Return once the daemon's control API serves."""
    await says(daemon, '"listening"')


async def _quiet(error: Exception) -> None:
    """Losing the server is what some tests are about."""
