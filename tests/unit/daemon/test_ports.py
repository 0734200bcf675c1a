"""Ports that are chosen now and bound a moment later, by several processes at once."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.daemon.process import ports
from controlplane.daemon.process.ports import free_ports

FEW = 29_900, 29_959


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """So few that who chooses without regard for others chooses alike; under a name of this test's own."""
    name = f"test{tmp_path}"[-60:]
    monkeypatch.setattr(ports, "_NAME", name)
    monkeypatch.setattr(ports, "_FIRST", FEW[0])
    monkeypatch.setattr(ports, "_LAST", FEW[1])
    return name


def test_no_client_is_given_them_by_chance() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not [port for port in free_ports(20) if first <= port <= last]


def test_none_is_chosen_twice(few: str) -> None:
    chosen = [*free_ports(5), *free_ports(5), *free_ports(1)]
    assert len(set(chosen)) == len(chosen)


def test_what_another_process_chose_is_left_to_it_until_it_ends(few: str) -> None:
    script = (
        "import sys\nfrom controlplane.daemon.process import ports\n"
        f"ports._NAME, ports._FIRST, ports._LAST = {few!r}, *{FEW}\n"
        "print(*ports.free_ports(20), flush=True)\nsys.stdin.read()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        theirs = {int(port) for port in other.stdout.readline().split()}
        assert len(theirs) == 20
        ours = set(free_ports(20))
        assert not ours & theirs
        other.communicate()
    assert theirs & set(free_ports(30)), "fewer are left without them"
    with pytest.raises(OSError, match="fewer than 30 are free"):
        free_ports(30)


def test_a_port_in_use_is_passed_over(few: str) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_ports(1)[0]))
        server.listen()
        taken = server.getsockname()[1]
        assert taken not in free_ports(3)
