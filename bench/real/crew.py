"""Agents as processes: imported once, then each forked as it arrives, and killed with its tools at its limit."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from support.agent_runs import SCRIPTS, environment

from real.results import COMPLETED, FAILED, TIMED_OUT, Ended
from real.tasks import MINI, OPENHANDS, TOOL_TIMEOUT_S, Task

_MODULES = (
    "openhands.sdk",
    *(f"openhands.tools.{name}" for name in ("delegate", "file_editor", "task", "task_tracker", "terminal")),
    *("openai.resources.beta.beta", "openai.resources.admin"),  # which the first request would import
    *("minisweagent.agents.default", "minisweagent.environments.local", "minisweagent.models.litellm_model"),
)
_SCRIPTS = {OPENHANDS: "openhands_run.py", MINI: "mini_swe_agent_run.py"}
_SUCCESS = ('"status": "finished"', '"exit_status": "Submitted"')  # on the last line
_LOOK_S = 0.05
_IMPORTED_WITHIN_S = 240.0


@dataclass(slots=True)
class _Agent:
    task: Task
    asked_s: float
    process: int = 0
    is_late: bool = False


class Crew:
    """One run's agents. ``url``: of the model; ``bus``: to which adapters report, empty: there are none."""

    def __init__(self, python: str, folder: Path, *, url: str, bus: str, node: str, limit_s: float) -> None:
        self._folder, self._limit_s = folder, limit_s
        self._told = {
            "url": f"{url}/v1",
            "adapter": bool(bus),
            "timeout_s": TOOL_TIMEOUT_S,
            "terminal": "subprocess",
        }
        self._environment = environment(bus) | {
            "PENSTOCK_NODE": node,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # whose Python has pytest
            "MSWEA_SILENT_STARTUP": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with (folder / "crew.log").open("wb") as log:
            self._parent = subprocess.Popen(
                [python, str(SCRIPTS / "imported_once.py"), *_MODULES],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                text=True,
            )
        self._lines: queue.Queue[str] = queue.Queue()
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()
        self._import()

    def work(self, tasks: Sequence[Task], show: Callable[[float, int, Sequence[Ended]], None]) -> list[Ended]:
        """All of them, each from its time on; ``show`` is told the time, how many work, and who has ended."""
        began_s = time.monotonic()
        left, asked = deque(tasks), deque[_Agent]()
        working: dict[int, _Agent] = {}
        ended: list[Ended] = []
        while left or asked or working:
            now_s = time.monotonic() - began_s
            if left and left[0].at_s <= now_s:
                asked.append(_Agent(left.popleft(), now_s))
                self._begin(asked[-1].task)
            for process, *end in self._heard():
                if end:
                    agent = working.pop(int(process))
                    took_s = time.monotonic() - began_s - agent.asked_s
                    ended.append(self._ended(agent, took_s, float(end[1]), ok=end[0] == "0"))
                else:
                    agent = working[int(process)] = asked.popleft()
                    agent.process = int(process)
            for agent in working.values():
                if not agent.is_late and now_s - agent.asked_s > self._limit_s:
                    agent.is_late = True
                    _kill(agent.process)
            show(now_s, len(working), ended)
            if self._parent.poll() is not None:
                raise RuntimeError(f"what starts the agents has ended: {self._folder / 'crew.log'}")
        return ended

    def _begin(self, task: Task) -> None:
        folder = self._folder / task.name
        told = self._told | {"message": task.message, "workspace": str(folder)}
        self._ask(SCRIPTS / _SCRIPTS[task.harness], told, folder)

    def close(self) -> None:
        """End all that still runs."""
        _kill(self._parent.pid)
        self._parent.wait()
        self._hearing.join()
        for pipe in (self._parent.stdin, self._parent.stdout):
            assert pipe is not None
            pipe.close()

    def _import(self) -> None:
        """Return once all is imported: a run has ended that does nothing."""
        nothing = self._folder / "nothing.py"
        nothing.touch()
        self._ask(nothing, {}, self._folder / "nothing")
        said = [self._lines.get(timeout=_IMPORTED_WITHIN_S) for _ in range(2)]
        if said[-1].split()[1] != "0":
            raise RuntimeError(f"the agents' harnesses said {said}: {self._folder / 'nothing.err'}")

    def _ask(self, script: Path, told: dict[str, object], out: Path) -> None:
        run = {
            "script": str(script),
            "arguments": [json.dumps(told)],
            "environment": self._environment,
            "stdout": f"{out}.out",
            "stderr": f"{out}.err",
        }
        assert self._parent.stdin is not None
        self._parent.stdin.write(json.dumps(run) + "\n")
        self._parent.stdin.flush()

    def _hear(self) -> None:
        assert self._parent.stdout is not None
        for line in self._parent.stdout:
            self._lines.put(line)

    def _heard(self) -> Iterator[list[str]]:
        """What was said in the meantime, by words; it may be waited for a moment."""
        with contextlib.suppress(queue.Empty):
            yield self._lines.get(timeout=_LOOK_S).split()
            while True:
                yield self._lines.get_nowait().split()

    def _ended(self, agent: _Agent, took_s: float, cpu_s: float, *, ok: bool) -> Ended:
        folder = self._folder / agent.task.name
        outcome = TIMED_OUT if agent.is_late else FAILED
        if ok and not agent.is_late:
            last = (Path(f"{folder}.out").read_text().splitlines() or [""])[-1]
            if any(word in last for word in _SUCCESS) and agent.task.is_done(folder):
                outcome = COMPLETED
        return Ended(
            name=agent.task.name,
            harness=agent.task.harness,
            at_s=round(agent.asked_s, 2),
            took_s=round(took_s, 2),
            outcome=outcome,
            cpu_s=round(cpu_s, 2),
        )


def _kill(number: int) -> None:
    """A process and all that it has started, whatever sessions they made."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(number)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
