"""A shadow that has taken its share rests, and begins again from how things stand once it has earned that."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.disks import PromptDisk

from controlplane.config import Config
from controlplane.core import events as ev
from controlplane.core.controller import Controller
from controlplane.core.presets import PRESETS
from controlplane.core.types import seconds
from controlplane.shell.pump import Pump
from controlplane.shell.shadow import Shadow, ShadowStatus
from controlplane.shell.stretch import Stretch
from controlplane.wire.codec import encode_events
from controlplane.wire.log import Header


class CpuDouble:
    """Each look at the thread's time finds that it has worked for ``step_ns``; the rest worked for ``rest_ns``."""

    step_ns = rest_ns = 0

    def __init__(self) -> None:
        self.thread_ns = self.process_ns = 0

    def thread(self) -> int:
        self.thread_ns += self.step_ns
        self.process_ns += self.step_ns
        return self.thread_ns

    def process(self) -> int:
        self.process_ns += self.rest_ns
        return self.process_ns


class Node:
    """A pump with a shadow; a program asks each second."""

    def __init__(self, folder: Path) -> None:
        self.cpu = CpuDouble()
        self.pump = Pump(Controller(PRESETS["mars"]))
        self.shadow = Shadow(lambda: self.pump.controller, thread=self.cpu.thread, process=self.cpu.process)
        self.stretch = Stretch(
            folder / "shadow", seconds(1000), lambda now_ns: (Header(node="t", preset="p"), ""), PromptDisk()
        )
        self.shadow.want(Config(preset="fcfs", policies=PRESETS["fcfs"]), stretch=self.stretch)
        self.pump.besides.append(self.shadow)
        self.now_s = 0

    def run(self, for_s: int) -> ShadowStatus:
        for _ in range(for_s):
            self.now_s += 1
            asked = ev.TurnQueued(program_id=f"p{self.now_s}", turn_id=f"{self.now_s}.1", prompt_tokens=1000)
            now_ns = seconds(self.now_s)
            self.pump.feed(encode_events("test/gate/1", self.now_s, [(0, asked)]), now_ns)
            self.pump.decide(now_ns)
            self.pump.tell()
        status = self.shadow.status(seconds(self.now_s))
        assert status is not None
        return status


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.shadow.want(None)


def test_it_rests_while_what_happens_is_written_down_and_then_goes_on(node: Node) -> None:
    assert node.run(3).standing == "decides"
    node.cpu.step_ns = seconds(0.3)
    status = node.run(5)
    assert (status.standing, status.rests) == ("rests", 1)
    assert "its share of the daemon's CPU time, 20%, is spent" in status.reason
    assert node.stretch.began_ns == seconds(1)
    node.cpu.step_ns = 0
    assert node.run(5).standing == "rests"
    node.cpu.rest_ns = seconds(2)
    status = node.run(5)
    assert (status.standing, status.rests) == ("decides", 1)
    assert status.active > 0, "it begins from the programs that there are"
    assert node.stretch.began_ns == seconds(1), "it has no hole"


def test_one_that_can_afford_nothing_writes_nothing_either(node: Node) -> None:
    node.run(3)
    node.cpu.step_ns = seconds(3)
    assert node.run(5).standing == "rests"
    assert node.stretch.began_ns == 0
