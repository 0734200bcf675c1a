"""What becomes of the time that tools' environments take to make, and of what they leave behind.

    python bench/environments.py [--programs 50] [--make 1.0] [--json]

Agents run turns and tools against the engine double behind a gate with a fixed window, so that they queue. Their
environment takes ``--make`` seconds, and is made at the first tool, on arrival, or while the program nears its turn
(``ToolReporter.prepare``). Then agents that hold sandboxes (a folder, a process) are killed in rounds, with and
without a keeper. All but the engine is real. ThunderAgent §4.4, Figure 2.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whichever one is installed
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.daemon_process import NODE
from support.whole_loop import Loop

from controlplane.emit.tool_reporter import ToolReporter
from controlplane.wire.endpoint import resolve_url
from controlplane.wire.roles import BusRole

TURNS = 3
TOOL_S = 0.1
WINDOW = 6
MODES = ("first tool", "arrival", "its turn nears")
MOST_SEEN_RATIO = 0.1  # of the making, when the turn nears: more is missed budget
HELD = """
import subprocess, sys, time
from pathlib import Path
from engine_hooks.tools.resources.client import Resources

folder, keeper, programs = Path(sys.argv[1]), sys.argv[2] == "keeper", int(sys.argv[3])
held = Resources()
for n in range(programs):
    if keeper:
        workspace = held.make_workspace(f"run-{n}", within=folder)
    else:
        import tempfile
        workspace = Path(tempfile.mkdtemp(dir=folder))
    (workspace / "file").write_bytes(bytes(200_000))
    command = ["sleep", "600"]
    if keeper:
        held.start_process(f"run-{n}", command)
    else:
        subprocess.Popen(command, start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


class Environments:
    """Makes them, slowly, and counts those that there are."""

    def __init__(self, make_s: float) -> None:
        self.most = 0
        self._there = 0
        self._make_s = make_s
        self._lock = threading.Lock()

    def make(self) -> str:
        self._count(1)
        time.sleep(self._make_s)
        return "environment"

    def dispose(self, made: str) -> None:
        self._count(-1)

    def _count(self, by: int) -> None:
        with self._lock:
            self._there += by
            self.most = max(self.most, self._there)


def agent(
    url: str, program: str, mode: str, environments: Environments, reporter: ToolReporter
) -> tuple[float, float]:
    """JCT, and of that the time that it waited for its environment; both in seconds."""
    began_s, waited_s = time.monotonic(), 0.0
    reporter.program_started(program)
    ready: Callable[[], object] = environments.make
    if mode == "arrival":
        made: list[str] = []
        thread = threading.Thread(target=lambda: made.append(environments.make()))
        thread.start()
        ready = thread.join
    elif mode == "its turn nears":
        ready = reporter.prepare(program, environments.make, environments.dispose).result
    for turn in range(TURNS):
        ask(url, program, turn)
        if turn == 0:
            wanted_s = time.monotonic()
            ready()
            waited_s = time.monotonic() - wanted_s
        reporter.tool_started(program, f"call-{turn}", "bash")
        time.sleep(TOOL_S)
        reporter.tool_ended(program, f"call-{turn}")
    reporter.program_ended(program, "finished")
    environments.dispose("environment")
    return time.monotonic() - began_s, waited_s


def ask(url: str, program: str, turn: int) -> None:
    words = " ".join(f"{program}-{n}" for n in range(20 + 5 * turn))
    body = {"model": "double", "messages": [{"role": "user", "content": words}], "max_tokens": 40}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "x-penstock-program-id": program},
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        answer.read()


def measure(mode: str, programs: int, make_s: float) -> dict[str, float]:
    """All programs arrive at once, before a window of ``WINDOW``."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "window.toml"
        config.write_text(f'preset = "fcfs"\n[admission]\npolicy = "fixed"\nwindow = {WINDOW}\n')
        loop = Loop(Path(folder) / "state", "fcfs", time_scale=1.0, daemon=("--config", str(config)))
        loop.start()
        reporter = ToolReporter(url=resolve_url(None, NODE, loop.folder, role=BusRole.AGENT), node=NODE)
        environments, told = Environments(make_s), []

        def run(number: int) -> None:
            told.append(agent(loop.url, f"run-{number}", mode, environments, reporter))

        try:
            threads = [threading.Thread(target=run, args=(number,)) for number in range(programs)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            reporter.close()
            loop.stop()
    return {
        "jct_s": round(statistics.mean(jct for jct, _ in told), 2),
        "waited_s": round(statistics.mean(waited for _, waited in told), 3),
        "most_at_once": environments.most,
    }


def churn(keeper: bool, rounds: int, programs: int) -> list[dict[str, float]]:
    """After each round of an agent that is killed: processes and MB that are left of all rounds."""
    left = []
    with tempfile.TemporaryDirectory() as folder:
        before = set(psutil.pids())
        for _ in range(rounds):
            arguments = [sys.executable, "-c", HELD, folder, "keeper" if keeper else "none", str(programs)]
            environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
            held = subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment)
            assert held.stdout is not None
            held.stdout.readline()
            held.kill()
            held.wait()
            deadline_s = time.monotonic() + (30 if keeper else 0.5)
            while (mine := sleepers(before)) and time.monotonic() < deadline_s:
                time.sleep(0.1)
            disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
            left.append({"processes": len(mine), "mb": round(disk / 1e6, 1)})
        for process in sleepers(before):
            process.send_signal(signal.SIGKILL)
    return left


def sleepers(before: set[int]) -> list[psutil.Process]:
    """What agents started, and their keepers."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if process.pid not in before and (command[:2] == ["sleep", "600"] or "--parent" in command):
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=50)
    parser.add_argument("--make", type=float, default=1.0, help="seconds that an environment takes")
    parser.add_argument("--rounds", type=int, default=4, help="of agents that are killed")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    made = {mode: measure(mode, options.programs, options.make) for mode in MODES}
    left = {name: churn(name == "keeper", options.rounds, options.programs) for name in ("no keeper", "keeper")}
    if options.json:
        print(json.dumps({"made": made, "left": left}))
        return 0
    inline = made[MODES[0]]["jct_s"]
    print(f"{options.programs} programs, {WINDOW} at a time, an environment takes {options.make:g} s")
    for mode, one in made.items():
        print(
            f"  made at: {mode:15} mean JCT {one['jct_s']:6.2f} s ({one['jct_s'] / inline:.2f} of the first), "
            f"waited {one['waited_s']:.3f} s for it, {one['most_at_once']:.0f} at once at most"
        )
    for name, rounds in left.items():
        shown = ", ".join(f"{one['processes']:.0f} and {one['mb']:.1f} MB" for one in rounds)
        print(f"  {options.programs} sandboxes of an agent that is killed, {name}: left after each round: {shown}")
    hidden = made["its turn nears"]["waited_s"] <= MOST_SEEN_RATIO * options.make
    flat = all(one["processes"] == 0 and one["mb"] == 0 for one in left["keeper"])
    print(f"  the making is hidden: {'yes' if hidden else 'NO'}; nothing is left: {'yes' if flat else 'NO'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
