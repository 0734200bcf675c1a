"""Frames of the daemon's Unix socket: a length, a kind, a payload (docs/reference/subjects-and-files.md)."""

import asyncio
import struct
from enum import IntEnum

from controlplane.core.model.errors import RemoteEventError

MAX_FRAME_BYTES = 1 << 20
SOCKET_SCHEME = "unix:"
_HEADER = struct.Struct(">IB")


class Frame(IntEnum):
    """What a frame is. Each one to the daemon is answered by one TAKEN or REFUSED, in order."""

    EVENTS = 1  # to the daemon: an EventBatch
    TAKEN = 2  # it is on the bus
    REFUSED = 3  # it is not, and never will be: why, as UTF-8
    COMMANDS = 4  # from the daemon: a CommandBatch
    HOOK = 5  # to the daemon: the input of a hook of Claude Code, as JSON
    HOOK_ASKS = 6  # likewise; it is answered once the host has room for the tool


def pack(kind: Frame, data: bytes = b"") -> bytes:
    """One frame."""
    return _HEADER.pack(len(data), kind) + data


async def read(reader: asyncio.StreamReader) -> tuple[int, bytes] | None:
    """The next frame's kind and payload, None at the end. Raises ``RemoteEventError`` for one that is too long."""
    try:
        size, kind = _HEADER.unpack(await reader.readexactly(_HEADER.size))
        if size > MAX_FRAME_BYTES:
            raise RemoteEventError(f"a frame of {size} bytes: expected at most {MAX_FRAME_BYTES}")
        return kind, await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
