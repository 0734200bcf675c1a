"""Whether a run had the machine to itself."""

import os
import subprocess
import sys
from itertools import chain, repeat
from typing import NamedTuple

import pytest
from ab import machine


class CpuTimes(NamedTuple):
    """As psutil gives them, of one CPU."""

    user: float
    idle: float
    iowait: float
    guest: float
    guest_nice: float


class MachineDouble:
    """A machine of two CPUs whose clock moves when somebody sleeps; ``others`` take so much of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.busy_s, self.own_s = 0.0, 100.0, 40.0
        self.others = [0.0]
        monkeypatch.setattr(machine, "cpus", lambda: 2)
        monkeypatch.setattr(machine.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(machine.time, "sleep", self.sleep)
        monkeypatch.setattr(machine, "busy_s", lambda: self.busy_s)
        monkeypatch.setattr(machine, "_own_s", lambda: self.own_s)

    def sleep(self, duration_s: float) -> None:
        others = self.others.pop(0) if len(self.others) > 1 else self.others[0]
        self.now_s += duration_s
        self.busy_s += 2 * duration_s * others


def test_the_share_of_others_is_what_is_busy_and_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    double = MachineDouble(monkeypatch)
    watch = machine.OthersWatch()
    double.now_s, double.busy_s, double.own_s = 4.0, 106.0, 42.0
    assert watch.ratio() == pytest.approx(0.5)
    double.own_s = 60.0
    assert watch.ratio() == 0.0, "a descendant's time may be counted a little later than the machine's"


@pytest.mark.parametrize(
    ("others", "arithmetic_ms", "said"),
    [
        ([0.8, 0.0, 0.5, 0.0, 0.05], [2.0], ["takes 80% of the CPUs", "takes 50% of the CPUs"]),
        ([0.0], [4.6, 2.6, 2.4], ["arithmetic 4.6 ms, usually 2.0", "arithmetic 2.6 ms, usually 2.0"]),
        ([0.9], [2.0], ["takes 90%"] * 50 + ["it does not become quiet: going on"]),
    ],
    ids=["busy", "slow", "for ever"],
)
def test_a_run_waits_until_others_are_quiet_and_the_machine_is_fast(
    others: list[float],
    arithmetic_ms: list[float],
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    double = MachineDouble(monkeypatch)
    double.others = others
    looks = chain(arithmetic_ms, repeat(arithmetic_ms[-1]))
    monkeypatch.setattr(machine, "arithmetic_ms", lambda: next(looks))
    machine.wait_for_quiet(usual_ms=2.0)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(said)
    assert all(text in line for text, line in zip(said, lines, strict=True))


def test_what_descendants_compute_is_ones_own() -> None:
    before_s = machine._own_s()
    burn = "import time\nwhile time.process_time() < 0.4: pass\nprint('burnt', flush=True)\ninput()"
    child = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"burnt\n"
        assert machine._own_s() - before_s >= 0.35
        assert machine.busy_s() >= machine._own_s() - before_s
    finally:
        child.communicate(b"\n")


def test_only_the_cpus_that_a_run_may_use_count(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = os.sched_getaffinity(0)
    first = min(allowed)

    def times(percpu: bool) -> list[CpuTimes]:
        assert percpu
        zero = {"idle": 0.0, "iowait": 0.0, "guest": 0.0, "guest_nice": 0.0}
        return [CpuTimes(user=5.0 if cpu == first else 9.0, **zero) for cpu in range(max(allowed) + 1)]

    monkeypatch.setattr(machine.psutil, "cpu_times", times)
    try:
        machine.pin(first)
        assert machine.cpus() == 1
        assert machine.busy_s() == 5.0
    finally:
        os.sched_setaffinity(0, allowed)
