"""A Unix stream socket for agents that hold no credentials of the bus: their tool events go through the daemon.

Whoever may open it may report runs and tools, and nothing else: not an engine's turns, not another role's state.
A batch is answered once the bus has it, so that nothing is lost on the way, and while the bus is away nothing is
taken; but for a hook's input, whose sender cannot wait (``hooks``). Frames are those of ``wire/frames.py``.
"""

import asyncio
import contextlib
import math
import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from controlplane.core.model.commands import Command, StateRequest
from controlplane.core.model.errors import ControlPlaneError, RemoteEventError
from controlplane.daemon.bus.connection import Bus
from controlplane.daemon.bus.hooks import Hooks
from controlplane.daemon.process.logs import logger
from controlplane.daemon.process.tasks import Tasks
from controlplane.tool_calls.claude_code import events_of
from controlplane.transport.authorization import FOR_TOOLS, authorize
from controlplane.transport.bounds import Bounds, Reason
from controlplane.transport.endpoint import MOST_SOCKET_PATH_BYTES
from controlplane.transport.listener import Connection, Listener
from controlplane.transport.subjects import TOOL_ROLE, event_subject
from controlplane.wire.codec import decode_events, encode_commands
from controlplane.wire.frames import Frame, pack, read

_MODE = 0o660
_BACKLOG = 1024
_SHARE = 0.5  # of the files that the daemon may open
BOUNDS = Bounds(
    connections=1 << 15,  # each agent has one
    by_peer=3 << 13,
    reserved=64,
    request_s=30.0,
    idle_s=math.inf,  # an agent whose tool runs for hours tells nothing
    unread_s=60.0,  # an agent's process may stop for a while
)


class EventSocket:
    """Listens at ``path`` while it is open."""

    def __init__(self, path: Path, bus: Bus) -> None:
        self.tasks = Tasks()  # the daemon's, once it has one
        self.path = path
        self.refused = 0
        self._lost_from_ns = 0  # since when words may be lost, of all that everybody was asked; 0: nobody was
        self._bus = bus
        self._hooks = Hooks(bus)
        self._subject = event_subject(bus.node, TOOL_ROLE)
        self._writers: dict[asyncio.StreamWriter, Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = logger("socket")
        # No farewell, since a client would take one for the answer to its batch, which is lost then.
        self.listener = Listener("socket", BOUNDS.within(_SHARE), self._protocol, self._log.warning)

    async def open(self) -> None:
        """Listen. Where that cannot be the reason is logged, and agents have the bus alone."""
        path = self.path
        if len(bytes(path)) > MOST_SOCKET_PATH_BYTES:
            self._log.warning("no socket", path=str(path), reason=f"longer than {MOST_SOCKET_PATH_BYTES} bytes")
            return
        try:
            if not path.parent.exists():  # by the mask it would be closed to the agents who shall come in
                path.parent.mkdir(parents=True)
                path.parent.chmod(0o755)
            path.unlink(missing_ok=True)
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(str(path))
            path.chmod(_MODE)  # before anybody is served: until then it has the mode of the process's mask
            listening.listen(_BACKLOG)
            self.listener.listen(listening)
            self._tasks.add(asyncio.create_task(self.tasks.keep("hooks", self._hooks.run)))
        except OSError as error:
            self._log.warning("no socket", path=str(path), reason=str(error))

    async def close(self) -> None:
        if not self.listener.is_open:
            return
        self.listener.close()
        for task in list(self._tasks):
            task.cancel()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def pass_on(self, commands: Sequence[Command]) -> None:
        """Send what is for tools: requests for a publisher's state, slots of the host, environments."""
        asked = [command for command in commands if isinstance(command, FOR_TOOLS)]
        self._hooks.pass_on(asked)
        for command in asked:
            if isinstance(command, StateRequest) and not command.publisher:
                from_ns = time.monotonic_ns() - command.lost_ns
                self._lost_from_ns = min(from_ns, self._lost_from_ns or from_ns)
        if asked and self._writers:
            frame = pack(Frame.COMMANDS, encode_commands(asked))
            for writer in list(self._writers):
                self._write(writer, frame)

    def _protocol(self, connection: Connection) -> asyncio.Protocol:
        reader = asyncio.StreamReader()
        return asyncio.StreamReaderProtocol(reader, partial(self._on_client, connection))

    async def _on_client(
        self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers[writer] = connection
        self._write(writer, pack(Frame.COMMANDS, encode_commands([self._greeting()])))
        try:
            while (frame := await read(reader)) is not None:
                connection.begin()
                if (answer := await self._take(connection, *frame)) is None:
                    break  # the bus is away: the client keeps the batch, and comes again
                self._write(writer, answer)
                await writer.drain()
                connection.done()
                await asyncio.sleep(0)  # it may have sent thousands, and others have their turn
        except (RemoteEventError, ConnectionError) as error:
            self._log.warning("client dropped", error=str(error) or type(error).__name__)
        except Exception as error:  # whatever its bytes brought about, it is this client's alone
            self.tasks.failures.note("tool socket", error, "dropping the client")
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            self._writers.pop(writer, None)
            writer.close()

    def _write(self, writer: asyncio.StreamWriter, frame: bytes) -> None:
        """To a client that may have gone, which its own task sees later, or may read nothing."""
        if writer.is_closing():  # uvloop raises where it is closed
            return
        writer.write(frame)
        if writer.transport.get_write_buffer_size() > self.listener.bounds.unread_bytes:
            self._writers[writer].end(Reason.UNREAD)

    def _greeting(self) -> StateRequest:
        """We may have forgotten what was told before, and this client may not have heard when all were asked."""
        lost_ns = time.monotonic_ns() - self._lost_from_ns if self._lost_from_ns else 0
        return StateRequest(lost_ns=lost_ns, reason="connected to the daemon's socket")

    async def _take(self, connection: Connection, kind: int, data: bytes) -> bytes | None:
        if kind in (Frame.HOOK, Frame.HOOK_ASKS):
            return await self._take_hook(connection, kind, data)
        if kind != Frame.EVENTS:
            raise RemoteEventError(
                f"frame of kind {kind}: clients send {Frame.EVENTS:d}, {Frame.HOOK:d} or {Frame.HOOK_ASKS:d}"
            )
        if problem := self._problem(data):
            return self._refuse(problem)
        return pack(Frame.TAKEN) if await self._bus.relay_events(TOOL_ROLE, data) else None

    async def _take_hook(self, connection: Connection, kind: int, data: bytes) -> bytes:
        try:
            if kind == Frame.HOOK_ASKS:
                task = asyncio.current_task()
                assert task is not None
                connection.on_lost = task.cancel  # else work would stay for as many as come and go
                await self._hooks.send_with_slot(events_of(data))
            else:
                self._hooks.send(events_of(data))
        except RemoteEventError as error:
            return self._refuse(str(error))
        return pack(Frame.TAKEN)

    def _refuse(self, problem: str) -> bytes:
        self.refused += 1
        self._log.warning("batch refused", reason=problem)
        return pack(Frame.REFUSED, problem.encode(errors="replace"))

    def _problem(self, data: bytes) -> str:
        try:
            batch = decode_events(data)
        except ControlPlaneError as error:
            return str(error)
        return next(iter(authorize(batch, self._subject)[1]), "")
