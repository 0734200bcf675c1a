"""Processes of the simulation: what they have in common, and the daemon's."""

import asyncio
from typing import TYPE_CHECKING, Any

from controlplane.clocks import AwakeClock
from controlplane.config import Resolved, Source
from controlplane.core.model.errors import ConfigError, EngineUnavailable
from controlplane.core.model.events import HostSampled
from controlplane.daemon.bus.clock import Clock
from controlplane.daemon.bus.connection import Bus
from controlplane.daemon.daemon import Daemon
from controlplane.daemon.process.instance_lock import instance_lock
from controlplane.daemon.saving import Saver
from controlplane.emit.runtime import Runtime
from controlplane.transport.subjects import command_subject

from .model_client import Client
from .model_disk import DiskPath, WriterThread
from .threads import ThreadLoop

if TYPE_CHECKING:
    from .world import World

NODE = "node"
URL = "nats://model:4222"


class _Thread:
    """What an emitter is given for the thread that it began."""

    def is_alive(self) -> bool:
        return False

    def join(self, timeout: float | None = None) -> None:
        """The scheduler runs it."""


class Process:
    """Threads and connections that are frozen and killed together."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.threads: list[ThreadLoop] = []
        self.clients: list[Client] = []
        self.is_alive = True

    def thread(self, name: str) -> ThreadLoop:
        thread = ThreadLoop(self.world.scheduler, f"{self.name}/{name}")
        self.threads.append(thread)
        return thread

    def client(self, thread: ThreadLoop, name: str) -> Client:
        """A connection, which faults know by that name."""
        client = Client(self.world.nats, thread, self.world.network.uniform(0.0001, 0.002), name)
        client.slow_s = self.world.slow.get(name, 0.0)
        self.clients = [*(one for one in self.clients if not one.is_closed), client]
        return client

    def runtime(self, name: str) -> Runtime:
        """For an emitter whose connection has that name."""
        threads: list[ThreadLoop] = []

        def loop() -> ThreadLoop:
            threads.append(self.thread(f"{name} emitter"))
            return threads[-1]

        def begin(pump: Any, _: str) -> Any:
            threads[-1].create_task(pump.live())
            return _Thread()

        return Runtime(
            now_ns=lambda: self.world.scheduler.now_ns,
            uniform=self.world.network.uniform,
            loop=loop,
            thread=begin,
            client=lambda: self.client(threads[-1], name),
        )

    def freeze(self, until_ns: int) -> None:
        for thread in self.threads:
            thread.frozen_until_ns = until_ns

    @property
    def is_frozen(self) -> bool:
        return any(thread.frozen_until_ns > self.world.scheduler.now_ns for thread in self.threads)

    def kill(self) -> None:
        """At once, between two awaits of whatever it does."""
        if not self.is_alive:
            return
        self.is_alive = False
        for client in self.clients:
            client.drop()
        self.world.scheduler.kill(self.threads)


class _Probe:
    """A host with plenty of idle CPUs."""

    def sample(self, cpus: float = 0.0, *, elsewhere: bool = False) -> HostSampled:
        return HostSampled(cpus=64.0, cpu_use_ratio=0.1)


class DaemonProcess(Process):
    """``penstock up``, as ``controlplane.daemon.compose`` puts it together, without its pages and logs."""

    def __init__(self, world: "World", name: str, machine: str) -> None:
        super().__init__(world, name)
        self.machine = machine  # that of its state folder
        self.refused = ""  # why it did not start
        self.crashed = ""
        self.has_ended = False
        main = self.thread("main")
        scheduler = world.scheduler
        self._awake = AwakeClock(lambda: scheduler.now_ns)
        self._tick(main)
        self._writer = WriterThread(self, world.disk)
        self.bus = Bus(
            URL,
            NODE,
            world.revive_nats,
            connect=self._connect,
            awake_s=lambda: self._awake.now_ns() / 1e9,
        )
        self.daemon = Daemon(
            Source(),
            Resolved(config=world.config, origins={}),
            self.bus,
            path := DiskPath(world.disk, f"{machine}/snapshot.json"),  # type: ignore[arg-type]
            clock=Clock(wall_ns=world.wall_ns, awake_ns=self._awake.now_ns),
            elapsed_s=lambda: scheduler.now_ns / 1e9,
            probe=_Probe(),  # type: ignore[arg-type]
            saver=Saver(path, self._writer, self._writer.replace),  # type: ignore[arg-type]
        )
        self.daemon.boot_id = name
        self._note, self.daemon.tasks.failures.note = self.daemon.tasks.failures.note, self._failed  # type: ignore[method-assign]
        main.create_task(self._run())

    def kill(self) -> None:
        super().kill()
        self._writer.cut()

    def _tick(self, main: ThreadLoop) -> None:
        self._awake.tick()
        main.call_later(0.1, self._tick, main)

    @property
    def serves(self) -> bool:
        return self.is_alive and not self.has_ended and self.daemon.ready.is_set()

    def _failed(self, what: str, error: Exception, action: str) -> None:
        """What ends nothing is an error all the same, but for a disk's."""
        if what != "snapshot":
            self.world.auditor.broken(f"nothing raises in the daemon, but {what}: {error!r}")
        self._note(what, error, action)

    async def _connect(self, **options: Any) -> Client:
        client = self.client(self.threads[0], "daemon")
        client.told = self._told
        await client.connect(**options)
        return client

    def _told(self, subject: str, data: bytes) -> None:
        if subject == command_subject(NODE) and self.is_alive:
            self.world.auditor.said(data)

    async def _run(self) -> None:
        try:
            with instance_lock(NODE, self.world.folder / self.machine):
                await self.bus.connect()
                try:
                    await self.daemon.run()
                finally:
                    await self.bus.close()
        except (ConfigError, EngineUnavailable) as error:
            self.refused = str(error)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # whatever it is, it ended the process
            self.crashed = repr(error)
        self.has_ended = True
        if self.is_alive:
            self.world.ended(self)
