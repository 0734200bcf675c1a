"""Freezing with real processes on this machine: wake-ups in time, the host over time, and a daemon that is killed.

    python bench/freezing_live.py [--programs N] [--plot FILE] [--json]

A daemon, an engine double with its gate, and agents that talk to both. Each agent has a sandbox: a process that
holds 40 MB and burns a twentieth of a CPU while it is awake, in a cgroup of its own where those can be made,
else it is stopped by signals. Two programs are let in at a time, so that the others are held. All of it runs
twice, never frozen and frozen; in a third run the daemon is killed while sandboxes are frozen, and the keeper
in a fourth.

`replies_to_frozen` counts replies whose program's sandbox was frozen as they came. `all_awake_s`: from the kill
to when no sandbox is frozen; -1: nobody was killed.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from freezing import Seen, plot, shown

from controlplane.core.model.events import SandboxSampled
from controlplane.emit.tool_reporter import ToolReporter
from controlplane.lab.demo.node import command_running
from controlplane.transport.endpoint import read_endpoint, resolve_url
from controlplane.transport.roles import BusRole
from engine_hooks.tools.resources.client import Resources
from engine_hooks.tools.resources.sandboxes import Sandboxes

NODE = "freezing"
WARM_S = 15.0  # until the gate hears the daemon, on a busy machine: before that it lets everything pass
TURNS, WORDS, TOKENS = 3, 400, 60
TOOL_S, PAUSE_S = 0.1, 0.05
CONFIG = """
preset = "fcfs"
[http]
listen = "off"
[admission]
policy = "fixed"
window = 2
[control.sandboxes]
freeze = {freeze}
after_s = 0.5
"""
# Holds memory, burns a twentieth of a CPU, and computes for as long as a line of its input says.
SANDBOX = """
import sys, threading, time
held = bytearray(b"x") * 40_000_000
def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: pass
def idle():
    while True: burn(0.01); time.sleep(0.19)
threading.Thread(target=idle, daemon=True).start()
for line in sys.stdin:
    burn(float(line)); print("done", flush=True)
"""
RUNS = {"awake": "", "frozen": "", "daemon killed": "daemon", "keeper killed": "keeper"}  # and what is killed
CGROUPS = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")]


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    run: str
    by: str
    programs: int
    mean_s: float
    cpu_ratio: float
    most_frozen: int
    woken: int
    late: int
    latest_s: float
    wake_p50_ms: float
    wake_max_ms: float
    replies_to_frozen: int
    all_awake_s: float


class Sandbox:
    """A program's process, registered with ``resources``."""

    def __init__(self, program: str, resources: Resources, cgroups: Path | None) -> None:
        command = [sys.executable, "-c", SANDBOX]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._cgroup = cgroups / program if cgroups else None
        if self._cgroup is None:
            self.process = resources.start_process(program, command, freezable=True, **pipes)
            return
        self._cgroup.mkdir()
        self.process = subprocess.Popen(command, **pipes)
        (self._cgroup / "cgroup.procs").write_text(str(self.process.pid))
        resources.add_cgroup(program, self._cgroup, freezable=True)

    @property
    def is_frozen(self) -> bool:
        try:
            if self._cgroup is not None:
                return "frozen 1" in (self._cgroup / "cgroup.events").read_text()
            return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED
        except (OSError, psutil.Error):
            return False  # it has ended

    def run(self, cpu_s: float) -> None:
        """A tool that computes for so long."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{cpu_s}\n")
        self.process.stdin.flush()
        self.process.stdout.readline()


class Agents:
    """Programs, a thread each."""

    def __init__(self, url: str, state: Path, programs: int, cgroups: Path | None, seen: Seen) -> None:
        self._url, self._programs, self._cgroups, self._seen = url, programs, cgroups, seen
        self.reporter = ToolReporter(url=resolve_url(None, NODE, state, role=BusRole.AGENT), node=NODE)
        self._told, self.reporter.sandbox = self.reporter.sandbox, self._tell  # type: ignore[method-assign]
        self.resources = Resources(state / "audit.jsonl", state / "frozen")
        self.resources.sandboxes = Sandboxes(self.reporter, self.resources)
        self.sandboxes: dict[str, Sandbox] = {}
        self.took_s: list[float] = []
        self.to_frozen = 0

    def _tell(self, program_id: str, **fields: Any) -> None:
        self._seen.event(SandboxSampled(program_id=program_id, **fields), 0)
        self._told(program_id, **fields)

    @property
    def frozen(self) -> int:
        return sum(each.is_frozen for each in list(self.sandboxes.values()))

    @property
    def held_bytes(self) -> int:
        """What all sandboxes have in memory, frozen or not."""
        held = 0
        for each in list(self.sandboxes.values()):
            with suppress(psutil.Error):  # it has ended
                held += psutil.Process(each.process.pid).memory_info().rss
        return held

    def run(self, meanwhile: Callable[[], None]) -> None:
        threads = [threading.Thread(target=self._agent, args=(f"p{n:02}",)) for n in range(self._programs)]
        for thread in threads:
            thread.start()
            time.sleep(PAUSE_S)
        while any(thread.is_alive() for thread in threads):
            meanwhile()
        for sandbox in self.sandboxes.values():
            sandbox.process.wait(30)

    def _agent(self, program: str) -> None:
        began_s = time.monotonic()
        sandbox = self.sandboxes[program] = Sandbox(program, self.resources, self._cgroups)
        messages = [{"role": "user", "content": "word " * WORDS}]
        for turn in range(TURNS):
            reply = self._ask(program, messages)
            self.to_frozen += sandbox.is_frozen
            call = f"{program}-{turn}"
            self.reporter.tool_enqueued(program, call, "make")
            self.reporter.wait_for_slot(program, call, "make")
            self.reporter.tool_started(program, call, "make")
            sandbox.run(TOOL_S)
            self.reporter.tool_ended(program, call)
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "result " * WORDS}]
        self.took_s.append(time.monotonic() - began_s)
        self.reporter.program_ended(program)
        self.resources.end(program)

    def _ask(self, program: str, messages: list[dict[str, str]]) -> str:
        body = json.dumps({"model": "m", "messages": messages, "max_tokens": TOKENS}).encode()
        headers = {"content-type": "application/json", "x-penstock-program-id": program}
        request = urllib.request.Request(f"{self._url}/v1/chat/completions", body, headers)
        with urllib.request.urlopen(request, timeout=600) as answer:
            return str(json.load(answer)["choices"][0]["message"]["content"])


@contextmanager
def own_cgroups() -> Iterator[Path | None]:
    """A cgroup (v2) to make others in; None where we may not."""
    made = None
    for root in CGROUPS:
        if (root / "cgroup.controllers").exists() and os.access(root, os.W_OK):
            made = root / f"penstock-{os.getpid()}"
            made.mkdir()
            break
    try:
        yield made
    finally:
        if made is not None:
            for folder in [*made.glob("*/"), made]:
                folder.rmdir()


def run(name: str, programs: int, cgroups: Path | None, *, freeze: bool, kill: str = "") -> tuple[Row, Seen]:
    """One run; ``kill``: the daemon or the keeper, once half of all sandboxes are frozen."""
    folder, seen = Path(tempfile.mkdtemp(prefix="penstock-bench-")), Seen()
    (folder / "penstock.toml").write_text(CONFIG.format(freeze=str(freeze).lower()))
    common = ["--node", NODE, "--state-dir", str(folder)]
    up = ["up", "--config", str(folder / "penstock.toml"), *common]
    double = ["engine-double", "--port", "0", *common]
    awake_s = -1.0
    try:
        with (
            command_running(up, ready=r'"event": "up"|\bup\b.*preset') as (daemon, _),
            command_running(double, ready=r"listens on (\S+)") as (_, found),
        ):
            time.sleep(WARM_S)
            agents, began_s = Agents(found.group(1), folder, programs, cgroups, seen), time.monotonic()

            def watch() -> None:
                nonlocal awake_s
                seen.look(time.monotonic() - began_s, psutil.cpu_percent(0.25) / 100, agents.held_bytes)
                if kill and awake_s < 0 and agents.frozen >= programs // 2:
                    keeper = agents.resources.live_keeper()
                    assert keeper is not None
                    os.kill(daemon.pid if kill == "daemon" else keeper.pid, signal.SIGKILL)
                    killed_s = time.monotonic()
                    while agents.frozen:
                        time.sleep(0.01)
                    awake_s = time.monotonic() - killed_s

            agents.run(watch)
            agents.reporter.close()
            agents.resources.close(30)
    finally:
        if kill == "daemon" and (left := read_endpoint(NODE, folder)) is not None:
            with suppress(ProcessLookupError):
                os.kill(left.pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
    ms = sorted(1000 * each for each in seen.took_s) or [0.0]
    row = Row(
        run=name,
        by="cgroups" if cgroups else "signals",
        programs=programs,
        mean_s=statistics.fmean(agents.took_s),
        cpu_ratio=statistics.fmean(seen.cpu_ratio),
        most_frozen=max(seen.frozen),
        woken=len(seen.took_s),
        late=len(seen.late_s),
        latest_s=max(seen.late_s, default=0.0),
        wake_p50_ms=statistics.median(ms),
        wake_max_ms=ms[-1],
        replies_to_frozen=agents.to_frozen,
        all_awake_s=awake_s,
    )
    return row, seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=8)
    parser.add_argument("--runs", default=",".join(RUNS))
    parser.add_argument("--signals", action="store_true", help="stop processes by signals, whatever can be made")
    parser.add_argument("--plot", type=Path, help="write memory and CPUs over time to this file (.svg, .png)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs: list[tuple[str, Seen]] = []
    with own_cgroups() as found:
        cgroups = None if options.signals else found
        for name in options.runs.split(","):
            row, seen = run(name, options.programs, cgroups, freeze=name != "awake", kill=RUNS[name])
            runs.append((name, seen))
            lines = [json.dumps(asdict(row))] if options.json else shown([row])[2 * (len(runs) > 1) :]
            print(*lines, sep="\n", flush=True)
    if options.plot:
        plot(options.plot, [("this host", name, seen) for name, seen in runs], os.cpu_count() or 1)


if __name__ == "__main__":
    main()
