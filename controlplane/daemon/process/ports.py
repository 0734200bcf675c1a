"""Ports of this machine for servers that are started a moment later."""

import random
import socket
import sys
from collections.abc import Iterator

_HOST = "127.0.0.1"
# Below the range from which Linux gives ports to clients and to whoever asks for any.
_FIRST, _LAST = 20_000, 29_999
_NAME = "penstock-port"
_chance = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """So many that nobody uses now, and that nobody else is given here as long as this process lives.

    A port is chosen before its server binds it, which on a busy machine is seconds later. Until then no client may
    get it, hence the range, and no other process that chooses here, hence a name in the kernel that goes away with
    this process. Raises ``OSError`` where all are taken.
    """
    found: list[int] = []
    for port in _candidates():
        if len(found) == count:
            break
        if _is_unused(port) and _is_reserved(port):
            found.append(port)
    if len(found) < count:
        raise OSError(f"of the ports from {_FIRST} to {_LAST} fewer than {count} are free: end other processes")
    return found


def _candidates() -> Iterator[int]:
    size = _LAST - _FIRST + 1
    start = _chance.randrange(size)
    return (_FIRST + (start + step) % size for step in range(size))


def _is_unused(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True


def _is_reserved(port: int) -> bool:
    """Whether it is ours from now on: the socket of that name stays open until the process ends."""
    if sys.platform != "linux":  # elsewhere such a name would be a file, which outlives its process
        return True
    keeper = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        keeper.bind(f"\0{_NAME}-{port}")
    except OSError:
        keeper.close()
        return False
    keeper.detach()
    return True
