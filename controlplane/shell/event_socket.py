"""A Unix stream socket for agents that hold no credentials of the bus: their tool events go through the daemon.

Whoever may open it may report runs and tools, and nothing else: not an engine's turns, not another role's state.
A batch is answered once the bus has it, so that nothing is lost on the way, and while the bus is away nothing is
taken; but for a hook's input, whose sender cannot wait (``hooks``). Frames are those of ``wire/frames.py``.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from controlplane.core.commands import Command, StateRequest
from controlplane.core.errors import ControlPlaneError, RemoteEventError
from controlplane.shell.bus import Bus
from controlplane.shell.hooks import Hooks
from controlplane.shell.logs import logger
from controlplane.shell.tasks import Tasks
from controlplane.wire.claude_code import events_of
from controlplane.wire.codec import decode_events, encode_commands
from controlplane.wire.endpoint import MOST_SOCKET_PATH_BYTES
from controlplane.wire.frames import Frame, pack, read
from controlplane.wire.senders import FOR_TOOLS, believed
from controlplane.wire.subjects import TOOL_ROLE, event_subject

_MODE = 0o660
_MOST_UNREAD_BYTES = 1 << 20  # commands that wait for one client


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
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._log = logger("socket")

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
            server = await asyncio.start_unix_server(self._on_client, path=str(path), start_serving=False)
            path.chmod(_MODE)  # before anybody is served: until then it has the mode of the process's mask
            await server.start_serving()
            self._server = server
            self._tasks.add(asyncio.create_task(self.tasks.keep("hooks", self._hooks.run)))
        except OSError as error:
            self._log.warning("no socket", path=str(path), reason=str(error))

    async def close(self) -> None:
        """Hang up on everybody."""
        if self._server is None:
            return
        self._server.close()
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
            for writer in self._writers:
                self._write(writer, frame)

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self._write(writer, pack(Frame.COMMANDS, encode_commands([self._greeting()])))
        try:
            while (frame := await read(reader)) is not None:
                if (answer := await self._take(*frame)) is None:
                    break  # the bus is away: the client keeps the batch, and comes again
                self._write(writer, answer)
                await writer.drain()
        except (RemoteEventError, ConnectionError) as error:
            self._log.warning("client dropped", error=str(error) or type(error).__name__)
        except Exception as error:  # whatever its bytes brought about, it is this client's alone
            self.tasks.failures.note("tool socket", error, "dropping the client")
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    def _write(self, writer: asyncio.StreamWriter, frame: bytes) -> None:
        """To a client that may have gone, which its own task sees later, or may read nothing."""
        if writer.is_closing():  # uvloop raises where it is closed
            return
        writer.write(frame)
        if (waiting := writer.transport.get_write_buffer_size()) > _MOST_UNREAD_BYTES:
            self._log.warning("client dropped", error=f"it leaves {waiting} bytes unread")
            writer.transport.abort()

    def _greeting(self) -> StateRequest:
        """We may have forgotten what was told before, and this client may not have heard when all were asked."""
        lost_ns = time.monotonic_ns() - self._lost_from_ns if self._lost_from_ns else 0
        return StateRequest(lost_ns=lost_ns, reason="connected to the daemon's socket")

    async def _take(self, kind: int, data: bytes) -> bytes | None:
        if kind in (Frame.HOOK, Frame.HOOK_ASKS):
            return await self._take_hook(kind, data)
        if kind != Frame.EVENTS:
            raise RemoteEventError(
                f"frame of kind {kind}: clients send {Frame.EVENTS:d}, {Frame.HOOK:d} or {Frame.HOOK_ASKS:d}"
            )
        if problem := self._problem(data):
            return self._refuse(problem)
        return pack(Frame.TAKEN) if await self._bus.relay_events(TOOL_ROLE, data) else None

    async def _take_hook(self, kind: int, data: bytes) -> bytes:
        try:
            if kind == Frame.HOOK_ASKS:
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
        """Why the batch may not pass; empty if it may."""
        try:
            batch = decode_events(data)
        except ControlPlaneError as error:
            return str(error)
        return next(iter(believed(batch, self._subject)[1]), "")
