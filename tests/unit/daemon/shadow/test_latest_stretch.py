"""The latest stretch on disk replays to the commands that were given, also of a shadow that rests meanwhile."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.disks import PromptDisk

from controlplane.config import Config, show
from controlplane.core.model import events as ev
from controlplane.core.model.types import seconds
from controlplane.core.policies.presets import PRESETS
from controlplane.core.scheduling.controller import Controller
from controlplane.daemon.bus import snapshot as snapshots
from controlplane.daemon.observe.log_replay import replay_log
from controlplane.daemon.pipeline import DecisionPipeline
from controlplane.daemon.shadow.recording import RollingRecording, join
from controlplane.daemon.shadow.shadow import Shadow, ShadowStatus
from controlplane.wire.codec import encode_events
from controlplane.wire.log import EventRecord, Header, StateRecord, read_log

CONFIG = Config(preset="mars", policies=PRESETS["mars"])


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
    """A pipeline whose shadow keeps a stretch of so many seconds; a program asks each second."""

    def __init__(self, folder: Path, length_s: int = 10) -> None:
        self.cpu = CpuDouble()
        self.pipeline = DecisionPipeline(Controller(CONFIG.policies))
        self.recording = RollingRecording(folder / "shadow", seconds(length_s), self._head, PromptDisk())
        self.shadow = Shadow(lambda: self.pipeline.controller, thread=self.cpu.thread, process=self.cpu.process)
        self.shadow.configure(Config(preset="fcfs", policies=PRESETS["fcfs"]), recording=self.recording)
        self.pipeline.observer = self.shadow
        self.now_s = 0

    def _head(self, now_ns: int) -> tuple[Header, str]:
        state = b"".join(snapshots.pieces(self.pipeline.controller.state, preset="mars", now_ns=now_ns))
        return Header(node="test", preset="mars", config=show(CONFIG)), state.decode()

    def run(self, for_s: int) -> ShadowStatus:
        for _ in range(for_s):
            self.now_s += 1
            asked = ev.TurnQueued(program_id=f"p{self.now_s}", turn_id=f"{self.now_s}.1", prompt_tokens=1000)
            now_ns = seconds(self.now_s)
            self.pipeline.feed(encode_events("test/gate/1", self.now_s, [(0, asked)]), now_ns)
            self.pipeline.decide(now_ns)
            self.pipeline.record()
        status = self.shadow.status(seconds(self.now_s))
        assert status is not None
        return status


@pytest.fixture
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    made = Node(tmp_path, getattr(request, "param", 10))
    yield made
    made.shadow.configure(None)


long = pytest.mark.parametrize("node", [1000], indirect=True)


def test_it_replays_to_the_same_commands(node: Node, tmp_path: Path) -> None:
    node.run(60)
    log = tmp_path / "joined.jsonl"
    join(node.recording.pieces(), log)
    records = list(read_log(log))
    assert sum(isinstance(record, StateRecord) for record in records) == 1
    told = [record.now_ns for record in records if isinstance(record, EventRecord)]
    assert told == [seconds(each) for each in range(told[0] // seconds(1), 61)], "without a hole"
    assert 10 <= len(told) <= 13
    report = replay_log(log)
    assert report.differences == []
    assert report.commands > 0


def test_after_a_hole_it_is_another_stretch(node: Node, tmp_path: Path) -> None:
    node.run(5)
    node.shadow.stand_by("another one leads")
    assert node.recording.began_ns == 0
    assert not (tmp_path / "shadow").exists()
    node.shadow.stand_by("")
    node.run(3)
    assert node.recording.began_ns == seconds(6)


def test_a_folder_that_cannot_be_written_costs_the_estimate_alone(node: Node, tmp_path: Path) -> None:
    (tmp_path / "shadow").write_text("a file in its way")
    assert node.run(3).standing == "decides"
    assert "shadow" in node.recording.failed


@long
def test_it_rests_while_what_happens_is_written_down_and_then_goes_on(node: Node) -> None:
    assert node.run(3).standing == "decides"
    node.cpu.step_ns = seconds(0.3)
    status = node.run(5)
    assert (status.standing, status.rests) == ("rests", 1)
    assert "its share of the daemon's CPU time, 20%, is spent" in status.reason
    assert node.recording.began_ns == seconds(1)
    node.cpu.step_ns = 0
    assert node.run(5).standing == "rests"
    node.cpu.rest_ns = seconds(2)
    status = node.run(5)
    assert (status.standing, status.rests) == ("decides", 1)
    assert status.active > 0, "it begins from the programs that there are"
    assert node.recording.began_ns == seconds(1), "it has no hole"


@long
def test_one_that_can_afford_nothing_writes_nothing_either(node: Node) -> None:
    node.run(3)
    node.cpu.step_ns = seconds(3)
    assert node.run(5).standing == "rests"
    assert node.recording.began_ns == 0
