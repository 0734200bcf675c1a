"""Automatic advice in a real daemon: it listens, says so, and is stopped by a command and by the file."""

import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.daemon_process import BusClient, DaemonProcess, eventually, listening, serving
from support.ports import free_port

from controlplane.core import events as ev

pytestmark = pytest.mark.asyncio

FILE = """
preset = "fcfs"
[http]
listen = "{address}"
[admission]
window = 4
[advise]
auto = {auto}
bounds = ["admission.window=2..12"]
stretch_s = 600
"""


class Node:
    """A daemon whose file says that advice is automatic."""

    def __init__(self, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.file = folder / "penstock.toml"
        self.write("true")
        self.daemon = DaemonProcess(folder / "state", "--config", str(self.file))

    def write(self, auto: str) -> None:
        self.file.write_text(FILE.format(address=self.address, auto=auto))

    async def begin(self) -> BusClient:
        self.daemon.start()
        await listening(self.daemon)
        bus = await serving(self.daemon)
        await bus.publish(
            "test/engine/one", 1, [ev.PoolSampled(total_blocks=1000, free_blocks=1000, block_tokens=16)]
        )
        return bus

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=30) as page:
            return str(page.read().decode())

    def command(self, *words: str) -> str:
        where = ("--node", "test", "--state-dir", str(self.daemon.folder))
        done = subprocess.run(
            [sys.executable, "-m", "controlplane", *words, *where],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    yield made
    made.daemon.clean_up()


async def gone(folder: Path) -> bool:
    return not folder.exists()


def advice(status: dict[str, Any]) -> dict[str, Any]:
    return dict(status["status"]["advise"] or {})


async def test_it_listens_and_is_stopped_by_a_command_and_by_the_file(node: Node) -> None:
    bus = await node.begin()
    await bus.status_where(lambda s: advice(s).get("heard_ns", 0) > 0, "a stretch that is heard")
    assert "listens" in node.command("status")
    assert "automatic advice for mean_jct_s: listens" in node.command("advise")
    assert 'penstock_advise_phase{phase="listens"} 1.0' in node.metrics()
    assert (node.daemon.folder / "test" / "advise").exists()

    assert "automatic advice is off" in node.command("advise", "--stop")
    await bus.status_where(lambda s: not advice(s), "an end of it")
    await eventually(lambda: gone(node.daemon.folder / "test" / "advise"), what="an end of what was heard")
    assert "auto = false  # --auto" in node.command("config", "show", "--running")
    node.command("advise", "--resume")
    await bus.status_where(lambda s: bool(advice(s)), "it again")
    node.write("false")
    await bus.status_where(lambda s: not advice(s), "an end of it")
    await bus.close()
