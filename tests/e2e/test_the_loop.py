"""The whole loop: nats-server, daemon, engine double and load generator, and what happens when parts die."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemon_process import NODE, most_start_s
from support.whole_loop import Loop, serving

from controlplane.lab.load.replay import ReplayProgress
from controlplane.lab.workload.synthetic import synthesize
from controlplane.wire.endpoint import read_endpoint


class KillsAt:
    """A display that does something once so many turns have ended."""

    def __init__(self, turns: int = 1 << 30, action: object = None) -> None:
        self.turns, self.action = turns, action
        self.done = False
        self.notes: list[str] = []

    def update(self, progress: ReplayProgress) -> None:
        if not self.done and progress.turns_ended >= self.turns:
            self.done = True
            assert callable(self.action)
            self.action()

    def note(self, text: str) -> None:
        self.notes.append(text)

    def close(self) -> None: ...


@pytest.fixture
def governed(tmp_path: Path) -> Iterator[Loop]:
    yield from serving(Loop(tmp_path, "penstock"))


@pytest.fixture
def unhurried(tmp_path: Path) -> Iterator[Loop]:
    """What the machine delays counts ten times, not thirty: a decision that comes late finds nothing to keep."""
    yield from serving(Loop(tmp_path, "penstock", time_scale=10.0))


def test_programs_are_held_granted_and_counted(unhurried: Loop) -> None:
    result = unhurried.run(25)
    summary = result.summary
    assert (summary.programs_ended, summary.programs_failed) == (25, 0)
    assert summary.turns_ended == sum(len(p.turns) for p in synthesize("swe-bench", programs=25, seed=1).programs)
    assert summary.longest_hold_s > 1, "nobody was held: the load did not saturate"
    assert max(result.series.queue) > 0
    assert max(result.series.limit) > min(limit for limit in result.series.limit if limit)
    assert summary.cache_hit_ratio > 0.5


def test_kill_minus_nine_of_the_daemon_under_load_fails_no_request(governed: Loop) -> None:
    killed = threading.Event()
    back_after_s: list[float] = []

    def kill_and_restart() -> None:
        governed.daemon.kill()
        killed.set()

    def bring_back() -> None:
        killed.wait(60)
        began = time.monotonic()
        governed.daemon.start()
        while governed.daemon.log.count('"event": "up"') < 2 and time.monotonic() < began + 30:
            time.sleep(0.02)
        back_after_s.append(time.monotonic() - began)

    helper = threading.Thread(target=bring_back)
    helper.start()
    result = governed.run(25, KillsAt(60, kill_and_restart))
    helper.join()
    assert killed.is_set()
    assert (result.summary.programs_ended, result.summary.programs_failed) == (25, 0)
    assert [turn.error for turn in result.turns if turn.error] == []
    assert back_after_s[0] < most_start_s()
    governed.wait_for_daemon()


def test_kill_minus_nine_of_the_bus_under_load_fails_no_request(governed: Loop) -> None:
    def kill_the_bus() -> None:
        endpoint = read_endpoint(NODE, governed.folder)
        assert endpoint is not None
        os.kill(endpoint.pid, signal.SIGKILL)

    display = KillsAt(60, kill_the_bus)
    result = governed.run(25, display)
    assert display.done
    assert (result.summary.programs_ended, result.summary.programs_failed) == (25, 0)
    governed.wait_for_daemon()
