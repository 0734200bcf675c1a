"""The latest stretch on disk is a log that replays to the commands that were given."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.disks import PromptDisk

from controlplane.config import Config, show
from controlplane.core import events as ev
from controlplane.core.controller import Controller
from controlplane.core.presets import PRESETS
from controlplane.core.types import seconds
from controlplane.shell import snapshot as snapshots
from controlplane.shell.log_replay import replay_log
from controlplane.shell.pump import Pump
from controlplane.shell.shadow import Shadow
from controlplane.shell.stretch import Stretch, join
from controlplane.wire.codec import encode_events
from controlplane.wire.log import EventRecord, Header, StateRecord, read_log

CONFIG = Config(preset="mars", policies=PRESETS["mars"])


class Node:
    """A pump whose shadow keeps a stretch of ten seconds; a program asks each second."""

    def __init__(self, folder: Path) -> None:
        self.pump = Pump(Controller(CONFIG.policies))
        self.stretch = Stretch(folder / "shadow", seconds(10), self._head, PromptDisk())
        self.shadow = Shadow(lambda: self.pump.controller, thread=lambda: 0, process=lambda: 0)
        self.shadow.want(Config(preset="fcfs", policies=PRESETS["fcfs"]), stretch=self.stretch)
        self.pump.besides.append(self.shadow)
        self.now_s = 0

    def _head(self, now_ns: int) -> tuple[Header, str]:
        state = b"".join(
            snapshots.pieces(
                self.pump.controller.state,
                preset="mars",
                stream_sequence=0,
                stream_created="",
                now_ns=now_ns,
                time_scale=1.0,
            )
        )
        return Header(node="test", preset="mars", config=show(CONFIG)), state.decode()

    def run(self, until_s: int) -> None:
        while self.now_s < until_s:
            self.now_s += 1
            name = f"p{self.now_s}"
            queued = ev.TurnQueued(program_id=name, turn_id=f"{name}.1", prompt_tokens=1000)
            self.pump.feed(encode_events("test/gate/1", self.now_s, [(0, queued)]), seconds(self.now_s))
            self.pump.decide(seconds(self.now_s))
            self.pump.tell()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.shadow.want(None)


def test_it_replays_to_the_same_commands(node: Node, tmp_path: Path) -> None:
    node.run(60)
    log = tmp_path / "joined.jsonl"
    join(node.stretch.pieces(), log)
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
    assert node.stretch.began_ns == 0
    assert not (tmp_path / "shadow").exists()
    node.shadow.stand_by("")
    node.run(8)
    assert node.stretch.began_ns == seconds(6)


def test_a_folder_that_cannot_be_written_costs_the_estimate_alone(node: Node, tmp_path: Path) -> None:
    (tmp_path / "shadow").write_text("a file in its way")
    node.run(3)
    status = node.shadow.status(seconds(3))
    assert status is not None
    assert status.standing == "decides"
    assert "shadow" in node.stretch.failed
