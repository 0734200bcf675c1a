"""A shadow in a real daemon: compared, promoted and taken back by command, and gone when the file says so."""

import signal
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import BusClient, DaemonProcess, eventually, listening, queued, serving
from support.ports import free_port

from controlplane.core.model import events as ev
from controlplane.operate.client import connect

GATE, ENGINE = "test/gate/one", "test/engine/one"
# Nobody here runs a turn: slots that are not used would be taken back, and the idle engine given who waits.
STILL = "[control]\nstall_s = 3600\n[control.silence]\nunused_slot_s = 600\n"
FILE = 'preset = "fcfs"\n[http]\nlisten = "{}"\n[admission]\nwindow = 2\n'
SHADOW = '[shadow]\npreset = "fcfs"\nsettings = ["admission.window=1"]\n'


class Node:
    """A daemon with a shadow whose window is narrower, and three programs that ask."""

    def __init__(self, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.file = folder / "penstock.toml"
        self.write(FILE + STILL + SHADOW)
        self.daemon = DaemonProcess(folder / "state", "--config", str(self.file))

    def write(self, text: str) -> None:
        self.file.write_text(text.format(self.address))

    async def begin(self) -> BusClient:
        self.daemon.start()
        await listening(self.daemon)
        bus = await serving(self.daemon)
        await bus.publish(ENGINE, 1, [ev.PoolSampled(total_blocks=1000, free_blocks=1000, block_tokens=16)])
        await bus.publish(GATE, 1, queued(*"abc"))
        return bus

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=60) as page:
            return str(page.read().decode())


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    yield made
    made.daemon.clean_up()


def shadow(status: dict[str, Any]) -> dict[str, Any]:
    return dict(status["status"]["shadow"] or {})


def windows(status: dict[str, Any]) -> tuple[int, int]:
    return status["status"]["window"]["limit"], shadow(status)["window"]["limit"]


async def test_it_is_compared_promoted_and_taken_back(node: Node) -> None:
    bus = await node.begin()
    found = await bus.status_where(lambda s: shadow(s)["counts"]["later"] == 1, "somebody whom it would hold")
    assert windows(found) == (2, 1)
    assert shadow(found)["standing"] == "decides"
    assert shadow(found)["counts"]["same"] >= 1
    (other,) = shadow(found)["latest"]
    assert (other["kind"], other["program_id"]) == ("later", "b")
    assert other["shadow"] == "holds it: window 1"
    said = node.daemon.penstock("status").stdout
    assert "fcfs with admission.window=1: decides; window 1" in said
    assert "1 let in later" in said
    metrics = node.metrics()
    assert 'penstock_shadow_deciding{preset="fcfs"} 1.0' in metrics
    assert 'penstock_shadow_decisions_total{kind="later"} 1.0' in metrics
    assert "penstock_shadow_window_limit 1.0" in metrics

    refused = node.daemon.penstock("promote")
    assert refused.returncode == 1
    assert "give --yes" in refused.stderr
    promoted = node.daemon.penstock("promote", "--yes")
    assert promoted.returncode == 0, promoted.stderr
    for words in ("1 let in later", "estimate of the change: none yet", "fcfs with admission.window=2"):
        assert words in promoted.stdout
    assert str(node.file) in promoted.stdout
    await bus.status_where(lambda s: windows(s) == (1, 2), "the other way round")
    node.daemon.send_signal(signal.SIGHUP)
    await eventually(lambda: node.daemon.log.count('"reloaded"') == 2, what="a reload")
    assert windows(await bus.status()) == (1, 2), "it keeps what was promoted"
    assert node.daemon.penstock("promote", "--yes").returncode == 0
    await bus.status_where(lambda s: windows(s) == (2, 1), "it taken back")
    await bus.close()


async def test_the_file_has_it_and_takes_it_away_and_a_restart_reads_the_file(node: Node) -> None:
    bus = await node.begin()
    await bus.status_where(lambda s: windows(s) == (2, 1), "a shadow")
    node.write(FILE + STILL)
    await bus.status_where(lambda s: not shadow(s), "no shadow")
    with connect(None, "test", node.daemon.folder) as client:
        assert client.call("GetStatus").shadow.preset == ""
    assert "there is no shadow: write its preset" in node.daemon.penstock("promote", "--yes").stderr
    assert "penstock_shadow" not in node.metrics()
    node.write(FILE + STILL + SHADOW)
    await bus.status_where(lambda s: bool(shadow(s)), "a shadow again")
    assert node.daemon.penstock("promote", "--yes").returncode == 0
    await bus.status_where(lambda s: windows(s) == (1, 2), "the other way round")
    await bus.close()
    assert node.daemon.stop() == 0
    node.daemon.start()
    bus = await BusClient.connect(await node.daemon.url())
    await bus.status_where(lambda s: s["status"]["window"]["limit"] == 2, "what the file says")
    await bus.close()
