"""Floods of a listener, by strangers of this machine who come in numbers and mean nothing that it knows."""

import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CONNECTIONS = 1000
WITHIN_S = 60.0
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GREETING = b"\0\0\0\1\1x"  # an agent's, who says nothing that it could


@dataclass
class Door:
    """Where strangers connect. ``half`` begins a request; ``ask`` makes an honest one: whether it was answered."""

    connect: Callable[[], socket.socket]
    half: bytes
    whole: bytes
    pid: int = 0
    ask: Callable[[], bool] = bool


def tcp(port: int) -> Callable[[], socket.socket]:
    return lambda: socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)


def unix(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(str(path))  # it blocks while the kernel's queue is full
    except OSError:
        sock.close()
        raise
    return sock


def open_many(door: Door, data: bytes) -> list[socket.socket]:
    found, until_s = [], time.monotonic() + WITHIN_S
    while len(found) < CONNECTIONS and time.monotonic() < until_s:
        with suppress(OSError):
            sock = door.connect()
            found.append(sock)
            sock.sendall(data)
    return found


def come_and_go(door: Door, data: bytes) -> list[socket.socket]:
    until_s = time.monotonic() + 3
    while time.monotonic() < until_s:
        with suppress(OSError), door.connect() as sock:
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.sendall(data)
    return []


ATTACKS: dict[str, Callable[[Door], list[socket.socket]]] = {
    "idle": lambda door: open_many(door, b""),
    "garbage": lambda door: open_many(door, os.urandom(1 << 10)),
    "half a request": lambda door: open_many(door, door.half),
    "requests by the dozen, whose answers are not read": lambda door: open_many(door, door.whole * 24),
    "comes and goes": lambda door: come_and_go(door, door.whole),
    "comes and goes at half a request": lambda door: come_and_go(door, door.half),
}
