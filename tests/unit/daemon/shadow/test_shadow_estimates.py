"""An estimate is another process's answer; without one the reason is told, and the daemon goes on."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from anyio import create_task_group
from anyio.lowlevel import checkpoint
from support.daemon_process import eventually

from controlplane.config import Config
from controlplane.core.policies.admission.aimd import Aimd
from controlplane.core.policies.presets import PRESETS
from controlplane.daemon.process.exec_bound import ends_with_us
from controlplane.daemon.shadow.estimates import Asked, Estimates, ShadowEstimate, options
from controlplane.daemon.shadow.replayer import replay

TICKS = 40

ANSWER: dict[str, Any] = {
    "format": 1,
    "stretch": {"since_s": 0.0, "until_s": 612.5, "programs": 38, "cut_at_start": 2},
    "expected": {
        "mean_jct_s": {"value": -0.21, "low": -0.29, "high": -0.12},
        "p95_ttft_s": {"value": -0.4, "low": None, "high": None},
        "hit_rate": {"value": None, "low": None, "high": None},
    },
    "replay_error": {"mean_jct_s": 0.03, "p95_ttft_s": None},
}


class StretchDouble:
    """One file that was written."""

    failed, began_ns = "", 1

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("header\n")

    def pieces(self) -> list[Path]:
        return [self._path]

    def settle(self) -> None:
        pass


def program(folder: Path, text: str) -> tuple[str, ...]:
    """A command that stands for `penstock what-if`."""
    path = folder / "what_if_double.py"
    path.write_text(f"import os, sys, time\n{text}\n")
    return (sys.executable, str(path))


def asked(folder: Path) -> Asked:
    live, shadow = (Config(preset=name, policies=PRESETS[name]) for name in ("mars", "fcfs"))
    return Asked(live=live, shadow=shadow, recording=StretchDouble(folder / "piece"), every_s=0.01)  # type: ignore[arg-type]


async def now(value: bool) -> bool:
    return value


def begun(text: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)


def command_of(process: int) -> bytes:
    """Empty once it has ended, whether or not somebody has asked for its status."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


async def first(estimates: Estimates, work: Asked) -> ShadowEstimate:
    before = ShadowEstimate(reason="the first stretch is still being heard")
    async with create_task_group() as group:
        group.start_soon(estimates.keep)
        estimates.ask(work)
        await eventually(lambda: now(estimates.latest != before), what="an estimate")
        group.cancel_scope.cancel()
    return estimates.latest


async def test_what_the_process_tells_is_told_on(tmp_path: Path) -> None:
    told = msgspec.json.encode(ANSWER).decode()
    text = f"open('seen', 'w').write(' '.join(sys.argv[2:]) + f' {{os.nice(0)}}')\nprint({told!r})"
    estimates = Estimates(lambda: 77, program(tmp_path, f"os.chdir({str(tmp_path)!r})\n{text}"))
    latest = await first(estimates, asked(tmp_path))
    assert (latest.made, latest.made_at_ns, latest.stretch_s, latest.programs) == (1, 77, 612.5, 38)
    assert [(each.name, each.value, each.is_bounded) for each in latest.changes] == [
        ("mean_jct_s", -0.21, True),
        ("p95_ttft_s", -0.4, False),
    ]
    assert latest.changes[0].replay_error == 0.03
    assert latest.reason == ""
    assert latest.cpu_s > 0
    assert (tmp_path / "seen").read_text() == f"--preset fcfs --json {min(19, os.nice(0) + 10)}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sys.exit('penstock: no whole program in the stretch')", "penstock: no whole program in the stretch"),
        ("print('{')", "not understood"),
        ('print(\'{"format": 2, "stretch": {}, "expected": {}}\')', "format 2, not 1"),
        ("sys.exit(3)", "ended with 3"),
        ("os.kill(os.getpid(), 9)", "took more than 300 s of CPU time: make the stretch shorter"),
    ],
)
async def test_without_an_answer_the_reason_is_told(tmp_path: Path, text: str, said: str) -> None:
    latest = await first(Estimates(lambda: 0, program(tmp_path, text)), asked(tmp_path))
    assert said in latest.reason
    assert latest.made == 0


async def test_the_process_ends_with_a_daemon_that_is_killed(tmp_path: Path) -> None:
    command = [*ends_with_us(cpu_s=300), *program(tmp_path, "time.sleep(600)")]
    text = f"import subprocess, time\nprint(subprocess.Popen({command!r}).pid, flush=True)\ntime.sleep(600)"
    with begun(text) as daemon:
        assert daemon.stdout is not None
        child = int(daemon.stdout.readline())
        await eventually(lambda: now(b"/what_if_double.py" in command_of(child).split(b"exec_bound")[0]), what="it")
        daemon.kill()
    await eventually(lambda: now(not command_of(child)), what="end of it")


async def test_none_is_left_behind_whenever_it_is_cancelled() -> None:
    """From before the process is there until it runs; who was cancelled has waited for the command's end."""
    before = psutil.Process().children()
    for ticks in range(TICKS):
        async with create_task_group() as group:
            group.start_soon(replay, Path("a.log"), (), (sys.executable, "-c", "import time; time.sleep(600)"))
            for _ in range(ticks):
                await checkpoint()
            group.cancel_scope.cancel()
        assert psutil.Process().children() == before


async def test_it_is_asked_for_what_the_shadow_decides_by() -> None:
    live = Config(preset="mars", policies=PRESETS["mars"])
    assert options(live, live) == ["--preset", "mars"]
    changed = replace(live, policies=replace(PRESETS["mars"], admission=Aimd(beta=0.6)))
    assert options(live, changed) == ["--preset", "mars", "--set", "admission.beta=0.6"]
