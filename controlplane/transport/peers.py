"""What Linux knows of whoever is at the other end of a socket."""

import fcntl
import ipaddress
import select
import socket
import struct
import termios
from collections.abc import Hashable

_BYTES_ACKED = struct.Struct("=120xQ")  # of Linux's tcp_info


def peer_of(sock: socket.socket) -> Hashable:
    """Whose connection it is: a user's number, or an address."""
    if sock.family == socket.AF_UNIX:
        return int(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])
    address = ipaddress.ip_address(sock.getpeername()[0].partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_loopback:  # which has millions of addresses
        return "this machine"
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


def has_left(sock: socket.socket) -> bool:
    """Whether the peer reads and writes no more, where one that only writes no more may wait for an answer."""
    poll = select.poll()
    poll.register(sock, 0)
    return bool(poll.poll(0))


def unsent(sock: socket.socket) -> int:
    """Bytes in the kernel that the peer has not taken."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0" * 4))[0])
    except OSError:
        return 0


def acknowledged(sock: socket.socket) -> int:
    """Bytes that the peer's kernel has taken; 0 where that is not known."""
    if sock.family == socket.AF_UNIX:
        return 0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
    except OSError:
        return 0
    return int(_BYTES_ACKED.unpack(info)[0]) if len(info) == _BYTES_ACKED.size else 0
