"""What the probe tells of the CPUs: of those that we may use, as kernel and cgroup tell."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.daemon.process.host_probe import HostProbe, cpu_stall_ratio, pressure_file, usable_cpus

BURN_S = 0.4


def container(folder: Path, *, quota: str, used_us: int = 0, stall: str = "") -> Path:
    """A cgroup's folder as a container sees its own."""
    folder.mkdir(exist_ok=True)
    (folder / "cpu.max").write_text(f"{quota} 100000\n")
    (folder / "cpu.stat").write_text(f"usage_usec {used_us}\nuser_usec 0\n")
    if stall:
        (folder / "cpu.pressure").write_text(f"some avg10={stall} avg60=0.00 avg300=0.00 total=1\n")
    return folder


@pytest.mark.parametrize(
    ("quota", "cpus"), [("50000", 0.5), ("max", math.inf), ("", math.inf), ("100000000", math.inf)]
)
def test_a_quota_bounds_the_cpus(tmp_path: Path, quota: str, cpus: float) -> None:
    assert usable_cpus(tmp_path) == len(os.sched_getaffinity(0)), "without a cgroup"
    assert usable_cpus(container(tmp_path, quota=quota)) == min(cpus, len(os.sched_getaffinity(0)))


def test_behind_a_quota_the_use_is_of_what_it_leaves(tmp_path: Path) -> None:
    """A container that may use half a CPU is full by half a CPU, however idle the machine is."""
    now_s = 100.0
    probe = HostProbe(container(tmp_path, quota="50000", used_us=10**6), now_s=lambda: now_s)
    now_s = 102.0
    container(tmp_path, quota="50000", used_us=10**6 + 250_000)
    assert probe.sample().cpu_use_ratio == pytest.approx(0.25)
    now_s = 103.0
    assert probe.sample().cpu_use_ratio == 0.0, "nothing more was used"
    now_s = 104.0
    container(tmp_path, quota="50000", used_us=10**7)
    assert probe.sample().cpu_use_ratio == 1.0, "more than there is time for"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_an_affinity_mask_leaves_others_out() -> None:
    """One CPU of several, which this process fills: the mean of all of them would be far from full."""
    text = f"""
import os, time
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
from pathlib import Path
from controlplane.daemon.process.host_probe import HostProbe
probe, until_s = HostProbe(Path("/nowhere")), time.monotonic() + {BURN_S}
while time.monotonic() < until_s:
    pass
sample = probe.sample()
print(sample.cpus, sample.cpu_use_ratio)
"""
    said = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    cpus, use = map(float, said.stdout.split())
    assert cpus == 1
    assert use > 0.9


def test_stalls_are_the_cgroup_s_where_it_tells_them(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    (proc / "pressure").mkdir(parents=True)
    (proc / "pressure" / "cpu").write_text("some avg10=90.00 avg60=0.00 avg300=0.00 total=1\n")
    cgroup = container(tmp_path / "cgroup", quota="max")
    assert cpu_stall_ratio(cgroup, proc) == 0.9
    container(tmp_path / "cgroup", quota="max", stall="12.50")
    assert cpu_stall_ratio(cgroup, proc) == 0.125
    assert pressure_file(cgroup, proc) == cgroup / "cpu.pressure"
    assert cpu_stall_ratio(tmp_path, tmp_path) == 0.0, "a kernel that tells nothing"


def test_of_tools_elsewhere_only_the_cpus_are_told(tmp_path: Path) -> None:
    cgroup = container(tmp_path, quota="50000", stall="80.00")
    there = HostProbe(cgroup).sample(64.0, elsewhere=True)
    assert (there.cpus, there.cpu_use_ratio, there.cpu_stall_ratio) == (64.0, 0.0, 0.0)
