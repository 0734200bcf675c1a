"""Bound what strangers can take of a listening socket: places, time, and room for answers that they do not read.

When all places are taken, a newcomer displaces the connection that has waited longest without a request, of the
peer that has the most. So nobody is locked out by connections that ask nothing, and a flood displaces its own. A
connection whose request is there and is being answered is never displaced.
"""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Protocol, cast
from weakref import WeakSet

from controlplane import clocks
from controlplane.transport.bounds import Bounds, Reason
from controlplane.transport.peers import acknowledged, has_left, peer_of, unsent

_AT_ONCE = 32  # connections accepted before others have their turn
_PAUSE_S = 0.005  # after so many
_NO_FILES_S = 0.5  # between two attempts while the process can open no more files
_LOOK_S = 0.5
_LOOKS_AT_ONCE = 1000
_SPELL_S = 30.0  # without a refusal, until the next one is logged again
_OPERATOR = "operator"  # the peer of our own user, and root, in the places reserved for them
_FULL_TABLES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerRow:
    """A listener as an operator sees it. ``refused`` counts connections that it did not take, or ended."""

    name: str
    open: int
    most: int
    refused: int


class Warn(Protocol):
    """Log one warning with its fields, as structlog does."""

    def __call__(self, event: str, /, **fields: Any) -> Any: ...


class Connection:
    """One accepted connection. ``on_lost`` is called once when it ends."""

    def __init__(self, listener: "Listener", sock: socket.socket, peer: Hashable) -> None:
        self.peer, self.transport = peer, None  # type: tuple[Hashable, asyncio.Transport | None]
        self.on_lost: Callable[[], object] = lambda: None
        self.has_begun = False  # a request is there, and is answered
        self._lacks_body = False
        self.is_over = False  # its place is free again
        self.deadline_s = clocks.awake_s() + listener.bounds.request_s
        self.late = Reason.SLOW  # what it is if that passes
        self.arrived = 0  # bytes of requests that are not answered yet
        self._listener, self._socket = listener, sock
        self._unread, self._taken, self._taken_at_s = 0, 0, 0.0

    def begin(self, *, has_body: bool = False) -> None:
        """The head of a request is there; ``has_body``: more of it comes, and until ``received`` it waits."""
        self.has_begun, self._lacks_body = not has_body, has_body
        self.deadline_s, self.late = inf, Reason.SLOW
        if has_body:
            self.deadline_s = clocks.awake_s() + self._listener.bounds.body_s
        self._listener.sort(self)

    def received(self) -> None:
        """All of the request is there."""
        if self._lacks_body:  # else it was answered without
            self.begin()

    def done(self) -> None:
        """The request is answered, and another one may come."""
        self.has_begun = self._lacks_body = False
        self._listener.count(self, -self.arrived)
        self.deadline_s, self.late = clocks.awake_s() + self._listener.bounds.idle_s, Reason.IDLE
        self._listener.sort(self)

    def arrive(self, size: int) -> None:
        self._listener.count(self, size)
        if not self.has_begun and self.late is Reason.IDLE:
            self.deadline_s, self.late = clocks.awake_s() + self._listener.bounds.request_s, Reason.SLOW

    def hang_up(self) -> None:
        """End at once, whatever is under way."""
        self._listener.forget(self)
        if self.transport is not None:  # else it ends as soon as it is set up
            self.transport.abort()

    def end(self, reason: Reason) -> None:
        """Hang up, and say why where nothing else was said."""
        self._listener.forget(self, reason)
        transport = self.transport
        if transport is None:  # it ends as soon as it is set up
            return
        with contextlib.suppress(OSError, RuntimeError):  # uvloop raises where the peer has just left
            if reason in (Reason.SLOW, Reason.DISPLACED, Reason.LARGE) and not transport.get_write_buffer_size():
                transport.write(self._listener.farewell(reason))
            if transport.get_write_buffer_size():
                transport.abort()
            else:
                transport.close()

    def look(self, now_s: float) -> Reason | None:
        """Why the connection is to be ended now, if it is."""
        transport = self.transport
        if now_s >= self.deadline_s:
            return self.late
        if transport is None or self._socket.fileno() < 0:
            return None
        if self.has_begun and has_left(self._socket):  # what it asked for may take minutes
            self.hang_up()
            return None
        waiting = transport.get_write_buffer_size()
        if waiting > self._listener.bounds.unread_bytes:
            return Reason.UNREAD
        unread = waiting + unsent(self._socket)
        taken = acknowledged(self._socket)
        if not unread or unread < self._unread or taken > self._taken or not self._unread:
            self._taken_at_s = now_s
        self._unread, self._taken = unread, taken
        return Reason.UNREAD if unread and now_s - self._taken_at_s >= self._listener.bounds.unread_s else None


class _Forward(asyncio.Protocol):
    """The protocol of whoever serves, while its listener watches."""

    def __init__(self, listener: "Listener", connection: Connection, inner: asyncio.Protocol) -> None:
        self._listener, self._connection, self._inner = listener, connection, inner
        self.eof_received, self.pause_writing = inner.eof_received, inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._listener.made(self._connection, transport)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._connection.arrive(len(data))
        self._inner.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.forget(self._connection)
        try:
            self._connection.on_lost()
        finally:
            self._inner.connection_lost(exc)


class Listener:
    """Accepts at sockets within ``bounds`` while open. Use it in one event loop.

    ``make`` gives the protocol of a connection, ``farewell`` the bytes that say why it ends; ``warn`` logs the
    first refusal of a spell. ``counts`` has every refusal, by reason.
    """

    def __init__(
        self,
        name: str,
        bounds: Bounds,
        make: Callable[[Connection], asyncio.Protocol],
        warn: Warn,
        *,
        farewell: Callable[[Reason], bytes] = lambda _: b"",
    ) -> None:
        self.name, self.bounds, self.farewell = name, bounds, farewell
        self.counts = dict.fromkeys(Reason, 0)
        self._make, self._warn = make, warn
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._by_peer: dict[Hashable, tuple[dict[Connection, None], dict[Connection, None]]] = {}
        self._places = 0  # taken by strangers
        self._of: dict[asyncio.BaseTransport, Connection] = {}
        self._beginning: set[asyncio.Task[None]] = set()
        self._looking: asyncio.TimerHandle | None = None
        self._looks: list[Connection] = []  # still to be looked at in this round
        self._refused_at_s = -inf
        self._arrived = 0  # bytes of requests that are not answered yet
        _listeners.add(self)

    def listen(self, sock: socket.socket) -> None:
        """Accept at a socket that listens, and close it in the end."""
        sock.setblocking(False)
        self._sockets.append(sock)
        self._loop.add_reader(sock, self._accept, sock)
        if self._looking is None:
            self._look()

    def stop_accepting(self) -> None:
        """Close the sockets; who is connected stays."""
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self._sockets.clear()

    def close(self) -> None:
        """Accept no more, and hang up on everybody."""
        self.stop_accepting()
        if self._looking is not None:
            self._looking.cancel()
        for connection in self._all():
            connection.hang_up()

    @property
    def is_open(self) -> bool:
        """Whether it accepts."""
        return bool(self._sockets)

    @property
    def open(self) -> int:
        """How many connections there are."""
        return self._places + len(self._waiting(_OPERATOR)) + len(self._busy(_OPERATOR))

    def connection_of(self, transport: asyncio.BaseTransport | None) -> Connection | None:
        """The connection that a transport is of; None where it has ended."""
        return self._of.get(transport) if transport is not None else None

    # Places

    def _waiting(self, peer: Hashable) -> dict[Connection, None]:
        """The connections of a peer without a request, who waits longest first."""
        return self._by_peer[peer][0] if peer in self._by_peer else {}

    def _busy(self, peer: Hashable) -> dict[Connection, None]:
        return self._by_peer[peer][1] if peer in self._by_peer else {}

    def _all(self) -> list[Connection]:
        return [each for pair in self._by_peer.values() for group in pair for each in group]

    def sort(self, connection: Connection) -> None:
        """Put it among those that wait, as the last, or among those that have a request."""
        pair = self._by_peer.get(connection.peer, ({}, {}))
        for group in pair:
            if connection in group:
                del group[connection]
                pair[connection.has_begun][connection] = None
                return

    def count(self, connection: Connection, size: int) -> None:
        """So many bytes more are under way, of all at most ``arrived_bytes``: the largest request goes then."""
        if connection.is_over:
            return
        connection.arrived += size
        self._arrived += size
        while self._arrived > self.bounds.arrived_bytes:
            max(self._all(), key=lambda each: each.arrived).end(Reason.LARGE)

    def forget(self, connection: Connection, reason: Reason | None = None) -> None:
        """It has ended, or is about to for this reason."""
        if connection.is_over:
            return
        connection.is_over = True
        self._arrived -= connection.arrived
        self._leave(connection)
        if connection.transport is not None:
            self._of.pop(connection.transport, None)
        if reason is not None and reason is not Reason.IDLE:
            self._refused(reason, connection.peer)

    def _leave(self, connection: Connection) -> None:
        pair = self._by_peer.get(connection.peer, ({}, {}))
        group = next((group for group in pair if connection in group), None)
        if group is None:
            return
        del group[connection]
        self._places -= connection.peer != _OPERATOR
        if not pair[0] and not pair[1]:
            del self._by_peer[connection.peer]

    def _place(self, peer: Hashable) -> Hashable | None:
        """Under which peer a newcomer is counted, once there is a place for it; None: there is none."""
        bounds = self.bounds
        if len(self._waiting(peer)) + len(self._busy(peer)) >= bounds.by_peer:
            if self._displace(self._waiting(peer)):
                return peer
        elif self._places < bounds.connections or self._displace(self._most_waiting()):
            return peer
        if not bounds.reserved or peer not in (0, os.geteuid()):
            return None
        waiting = self._waiting(_OPERATOR)
        full = len(waiting) + len(self._busy(_OPERATOR)) >= bounds.reserved
        return None if full and not self._displace(waiting) else _OPERATOR

    def _most_waiting(self) -> dict[Connection, None]:
        strangers = (pair for peer, pair in self._by_peer.items() if pair[0] and peer != _OPERATOR)
        return max(strangers, key=lambda pair: len(pair[0]) + len(pair[1]), default=({}, {}))[0]

    def _displace(self, waiting: dict[Connection, None]) -> bool:
        if not waiting:
            return False
        next(iter(waiting)).end(Reason.DISPLACED)
        return True

    # Accepting

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _ = sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _FULL_TABLES:
                    continue  # one that left before it was accepted
                self._refused(Reason.FULL, error.strerror or "")
                self._pause(sock, _NO_FILES_S)
                return
            self._take(accepted)
        self._pause(sock, _PAUSE_S)

    def _pause(self, sock: socket.socket, for_s: float) -> None:
        self._loop.remove_reader(sock)
        self._loop.call_later(for_s, self._resume, sock)

    def _resume(self, sock: socket.socket) -> None:
        if sock in self._sockets:
            self._loop.add_reader(sock, self._accept, sock)

    def _take(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        try:
            peer = peer_of(sock)
            if self.bounds.send_buffer:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.bounds.send_buffer)
        except OSError:  # it has left
            sock.close()
            return
        place = self._place(peer)
        if place is None:
            self._refused(Reason.FULL, peer)
            with contextlib.suppress(OSError):
                sock.send(self.farewell(Reason.FULL))
                sock.recv(1 << 16)  # what is left unread has the kernel take the answer back
            sock.close()
            return
        connection = Connection(self, sock, place)
        self._by_peer.setdefault(place, ({}, {}))[0][connection] = None
        self._places += place != _OPERATOR
        task = self._loop.create_task(self._begin(connection, sock))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, connection: Connection, sock: socket.socket) -> None:
        if connection.is_over:
            sock.close()
            return
        try:
            make = partial(_Forward, self, connection, self._make(connection))
            await self._loop.connect_accepted_socket(make, sock)
        except OSError:  # it has left
            self.forget(connection)
            sock.close()

    def made(self, connection: Connection, transport: asyncio.BaseTransport) -> None:
        connection.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        if connection.is_over:  # it was displaced meanwhile
            connection.transport.abort()
        else:
            self._of[transport] = connection

    # Looking

    def _look(self) -> None:
        """Look at everybody, at some thousands in several steps, and end who has broken a bound."""
        self._looks = self._looks or self._all()
        for connection in self._looks[-_LOOKS_AT_ONCE:]:
            if not connection.is_over and (reason := connection.look(clocks.awake_s())) is not None:
                connection.end(reason)
        del self._looks[-_LOOKS_AT_ONCE:]
        self._looking = self._loop.call_later(_PAUSE_S if self._looks else _LOOK_S, self._look)

    def _refused(self, reason: Reason, peer: Hashable) -> None:
        self.counts[reason] += 1
        now_s = clocks.awake_s()
        if now_s - self._refused_at_s >= _SPELL_S:
            self._warn("connections refused", listener=self.name, why=str(reason), peer=str(peer), open=self.open)
        self._refused_at_s = now_s


_listeners: WeakSet[Listener] = WeakSet()


def listener_rows() -> tuple[ListenerRow, ...]:
    """The listeners of this process, by name; no gRPC server, which counts nothing."""
    rows = (
        ListenerRow(
            name=each.name,
            open=each.open,
            most=each.bounds.connections + each.bounds.reserved,
            refused=sum(each.counts.values()),
        )
        for each in list(_listeners)
        if each.is_open
    )
    return tuple(sorted(rows, key=lambda row: row.name))
