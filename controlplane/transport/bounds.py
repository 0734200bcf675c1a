"""What one listener may take of the process, and the process of the machine."""

import contextlib
import resource
from dataclasses import dataclass, replace
from enum import StrEnum

_MOST_FILES = 1 << 20  # beyond, programs that walk all descriptors take seconds


class Reason(StrEnum):
    """Why a connection was ended, or not taken."""

    FULL = "every place is taken"
    DISPLACED = "a newcomer took the place"
    SLOW = "the request was not whole in time"
    IDLE = "no other request came in time"
    UNREAD = "the answer is not read"
    LARGE = "requests under way hold too much memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of one listener; a time of ``inf`` is none.

    ``by_peer`` counts those of one address (an IPv6 network of 64 bits), or of one user of a Unix socket.
    ``reserved`` places lie beyond ``connections``, for whoever connects to a Unix socket as our own user or root.
    """

    connections: int
    by_peer: int
    reserved: int = 0
    request_s: float = 10.0  # from the first byte, or from the connection on, until the whole head
    body_s: float = 30.0
    idle_s: float = 75.0  # between two requests
    unread_s: float = 10.0  # in which the peer takes nothing of what waits for it
    unread_bytes: int = 1 << 20  # in this process
    arrived_bytes: int = 64 << 20  # of all requests that are not answered yet
    send_buffer: int = 0  # bytes that the kernel takes for a peer that reads nothing; 0: as it likes

    def within(self, share: float) -> "Bounds":
        """The same, but no more places than this share of the files that the process may open."""
        most = max(8, int(share * most_open_files()))
        connections = min(self.connections, most)
        by_peer = max(1, self.by_peer * connections // self.connections)
        return replace(self, connections=connections, by_peer=by_peer, reserved=min(self.reserved, most // 4))


def grpc_options(connections: int, streams: int) -> tuple[tuple[str, int], ...]:
    """What bounds a gRPC server, which accepts by itself: it closes connections beyond, whoever they are of.

    ``streams`` are those of one connection at once. Who does not speak HTTP/2 in time, asks nothing for minutes, or
    is no more, is hung up on.
    """
    return (
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.max_concurrent_streams", streams),
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.http2.settings_timeout", 10_000),
        ("grpc.max_connection_idle_ms", 300_000),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    )


def raise_open_files() -> tuple[int, int]:
    """Let the process open as many files as it may, a million at most; the limit before and now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft, resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def most_open_files() -> int:
    """How many files this process may have open; a million where there is no limit."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_FILES if soft == resource.RLIM_INFINITY else soft
