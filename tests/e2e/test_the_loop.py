"""The whole loop: nats-server, daemon, engine double and load generator, and what happens when parts die."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.whole_loop import Loop, serving

from controlplane.lab.load.replay import ReplayProgress
from controlplane.lab.workload.synthetic import synthesize


class KillsAt:
    """A display that does something once so many turns have ended, for each of these numbers."""

    def __init__(self, actions: dict[int, Callable[[], None]]) -> None:
        self.left = dict(sorted(actions.items()))

    def update(self, progress: ReplayProgress) -> None:
        for turns in [turns for turns in self.left if progress.turns_ended >= turns]:
            self.left.pop(turns)()

    def note(self, text: str) -> None: ...

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


def test_kill_minus_nine_of_daemon_and_bus_under_load_fails_no_request(governed: Loop) -> None:
    """Whoever supervises the daemon brings it back, and the daemon its server."""

    def kill_the_bus() -> None:
        os.kill(governed.daemon.server_pid, signal.SIGKILL)

    def kill_the_daemon() -> None:
        governed.daemon.kill()
        threading.Timer(0.5, governed.daemon.start).start()

    display = KillsAt({60: kill_the_bus, 180: kill_the_daemon})
    result = governed.run(25, display)
    assert not display.left
    assert (result.summary.programs_ended, result.summary.programs_failed) == (25, 0)
    assert [turn.error for turn in result.turns if turn.error] == []
    governed.wait_for_daemon()
