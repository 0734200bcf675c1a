"""Ports of this machine for servers that tests start."""

import socket

from controlplane.daemon.process.ports import free_ports


def free_port() -> int:
    """One that no other test is given, also not in another row of tests, until this process ends."""
    return free_ports(1)[0]


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
