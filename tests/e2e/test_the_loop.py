"""The whole loop: nats-server, daemon, engine double and load generator, and what happens when parts die."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.daemon_process import NODE, DaemonProcess

from controlplane.load.options import ReplayOptions
from controlplane.load.replay import ReplayProgress, replay
from controlplane.load.watch import StatusWatch
from controlplane.wire.endpoint import read_endpoint, resolve_url
from controlplane.workload.arrivals import Poisson
from controlplane.workload.run import RunResult
from controlplane.workload.synthetic import synthesize

TIME_SCALE = 30.0
POOL_TOKENS = 40_000


class Loop:
    """A daemon and an engine double, both processes of their own."""

    def __init__(self, folder: Path, preset: str) -> None:
        self.folder = folder
        arguments = ("--preset", preset, "--time-scale", f"{TIME_SCALE:g}", "--record", str(folder / "run.jsonl"))
        self.daemon = DaemonProcess(folder, *arguments)
        self.double: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        self.daemon.start()
        command = [sys.executable, "-m", "controlplane", "engine-double", "--port", "0", "--node", NODE]
        command += ["--state-dir", str(self.folder), "--time-scale", f"{TIME_SCALE:g}", "--tokens-per-word", "64"]
        command += ["--pool-tokens", str(POOL_TOKENS)]
        log = self.folder / "double.log"
        with log.open("w") as output:
            self.double = subprocess.Popen(command, stderr=output)
        self._until(lambda: "listens on" in log.read_text(), "the engine double did not start")
        found = re.search(r"listens on (\S+)", log.read_text())
        assert found is not None
        self.url = found.group(1)
        self.wait_for_daemon()

    @staticmethod
    def _until(holds: Callable[[], bool], complaint: str) -> None:
        deadline = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < deadline, complaint
            time.sleep(0.02)

    def health(self) -> dict[str, object]:
        with urllib.request.urlopen(f"{self.url}/penstock/health", timeout=5) as answer:
            return dict(json.load(answer))

    def wait_for_daemon(self) -> None:
        self._until(lambda: self.health()["mode"] == "governed", "the gate never heard the daemon")

    def run(self, programs: int, display: "KillsAt | None" = None) -> RunResult:
        bus = resolve_url(None, NODE, self.folder)
        with StatusWatch(bus, NODE) as watch:
            options = ReplayOptions(
                trace=synthesize("swe-bench", programs=programs, seed=1),
                url=self.url,
                arrival=Poisson(0.5),
                seed=1,
                tokens_per_word=64,
                time_scale=TIME_SCALE,
                nats=bus,
                node=NODE,
                observe=watch.latest,
            )
            return replay(options, display or KillsAt())

    def stop(self) -> None:
        if self.double is not None:
            self.double.terminate()
            self.double.wait(10)
        self.daemon.clean_up()


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
def mars(tmp_path: Path) -> Iterator[Loop]:
    loop = Loop(tmp_path, "mars")
    try:
        loop.start()
        yield loop
    finally:
        loop.stop()


def test_programs_are_held_granted_and_counted(mars: Loop) -> None:
    result = mars.run(25)
    summary = result.summary
    assert (summary.programs_ended, summary.programs_failed) == (25, 0)
    assert summary.turns_ended == sum(len(p.turns) for p in synthesize("swe-bench", programs=25, seed=1).programs)
    assert summary.longest_hold_s > 1, "nobody was held: the load did not saturate"
    assert max(result.series.queue) > 0
    assert max(result.series.limit) > min(limit for limit in result.series.limit if limit)
    assert summary.cache_hit_ratio > 0.5


def test_kill_minus_nine_of_the_daemon_under_load_fails_no_request(mars: Loop) -> None:
    killed = threading.Event()
    back_after_s: list[float] = []

    def kill_and_restart() -> None:
        mars.daemon.kill()
        killed.set()

    def bring_back() -> None:
        killed.wait(60)
        began = time.monotonic()
        mars.daemon.start()
        while mars.daemon.log.count('"event": "up"') < 2 and time.monotonic() < began + 10:
            time.sleep(0.02)
        back_after_s.append(time.monotonic() - began)

    helper = threading.Thread(target=bring_back)
    helper.start()
    result = mars.run(25, KillsAt(60, kill_and_restart))
    helper.join()
    assert killed.is_set()
    assert (result.summary.programs_ended, result.summary.programs_failed) == (25, 0)
    assert [turn.error for turn in result.turns if turn.error] == []
    assert back_after_s[0] < 2.0
    mars.wait_for_daemon()


def test_kill_minus_nine_of_the_bus_under_load_fails_no_request(mars: Loop) -> None:
    def kill_the_bus() -> None:
        endpoint = read_endpoint(NODE, mars.folder)
        assert endpoint is not None
        os.kill(endpoint.pid, signal.SIGKILL)

    display = KillsAt(60, kill_the_bus)
    result = mars.run(25, display)
    assert display.done
    assert (result.summary.programs_ended, result.summary.programs_failed) == (25, 0)
    mars.wait_for_daemon()
