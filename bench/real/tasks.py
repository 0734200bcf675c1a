"""Tasks for real agents, drawn from a seed: a small project with bugs, and the script of a model that mends it.

A task goes module by module: read it, run its tests, which fail, mend it, run them again; then, for some modules, a
build. All of that is real work of the agent's own tools; only the model's thoughts are not.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

from controlplane.lab.double.replies import reply_text

OPENHANDS, MINI = "openhands", "mini-swe-agent"
_FUNCTIONS = 12  # of a module
_BUG, _MENDED = "first - second", "first + second"
TOOL_TIMEOUT_S = 300  # of a command: longer than any task may take
_SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_BUILD = '''"""Compile the project again and again until so many seconds of CPU are used; then leave a stamp."""
import pathlib, sys, time

sources = [path.read_text() for path in pathlib.Path().glob("*.py")]
passes = 0
while time.process_time() < float(sys.argv[1]):
    for source in sources:
        compile(source, "source", "exec")
    passes += 1
pathlib.Path(sys.argv[2]).touch()
print("built", len(sources), "files,", passes, "passes")
'''

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the tasks are like. A change makes runs that are not compared with those before."""

    openhands: int = 20
    mini: int = 4
    rate: float = 0.4  # agents/s, Poisson
    modules: tuple[int, int] = (2, 3)
    module_words: tuple[int, int] = (250, 900)
    reply_tokens: int = 60  # the median of a log-normal distribution
    builds: float = 0.5  # of the modules end with one
    build_cpu_s: tuple[float, float] = (1.0, 4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One of a project: its source, its bug apart, and the CPU seconds of the build after it; 0: none."""

    name: str
    words: int
    buggy: int
    build_cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What an agent is to do from ``at_s`` on, seconds after the first one's arrival."""

    name: str
    harness: str
    at_s: float
    modules: tuple[Module, ...]
    tokens: tuple[int, ...]  # of each reply

    @property
    def message(self) -> str:
        return f"{self.name}: mend this project module by module until its tests pass, and build it."

    def lay_out(self, folder: Path) -> None:
        """Write the project."""
        folder.mkdir(parents=True)
        (folder / "build.py").write_text(_BUILD)
        rng = random.Random(self.name)
        for module in self.modules:
            source, tests = [], [f"from {module.name} import *\n"]
            for number in range(_FUNCTIONS):
                words = reply_text(rng.randrange(1000), 0, module.words // _FUNCTIONS)
                returned = _BUG if number == module.buggy else _MENDED
                source.append(f'def total_{number}(first, second):\n    """{words}"""\n    return {returned}\n')
                tests.append(
                    f"def test_total_{number}():\n    assert total_{number}(2, {number}) == {2 + number}\n"
                )
            (folder / f"{module.name}.py").write_text("\n\n".join(source))
            (folder / f"test_{module.name}.py").write_text("\n\n".join(tests))

    def is_done(self, folder: Path) -> bool:
        """Whether the agent's tools did it: all tests passed, and what was to be built is."""
        left = [f"{module.name}.passed" for module in self.modules]
        left += [f"{module.name}.built" for module in self.modules if module.build_cpu_s]
        return all((folder / name).exists() for name in left)

    def replies(self, folder: Path) -> list[dict[str, Any]]:
        """The model's script, as the engine double reads it."""
        calls = [call for module in self.modules for call in self._calls(module, folder)]
        return [
            {"tokens": tokens, "calls": [{"tool": tool, "arguments": arguments}]}
            for tokens, (tool, arguments) in zip(self.tokens, [*calls, self._last()], strict=True)
        ]

    def _calls(self, module: Module, folder: Path) -> list[Call]:
        path = f"{module.name}.py"
        tests = f"python -m pytest -q -p no:cacheprovider test_{path}"
        calls = [
            self._shell(f"cat {path}"),
            self._shell(tests),
            self._mend(path, folder),
            self._shell(f"{tests} && touch {module.name}.passed"),
        ]
        if module.build_cpu_s:
            calls.append(self._shell(f"python build.py {module.build_cpu_s} {module.name}.built"))
        return calls

    def _shell(self, command: str) -> Call:
        if self.harness == MINI:
            return "bash", {"command": command}
        return "terminal", {"command": command, "timeout": TOOL_TIMEOUT_S}

    def _mend(self, path: str, folder: Path) -> Call:
        if self.harness == MINI:
            return self._shell(f"sed -i 's/{_BUG}/{_MENDED}/' {path} && grep -c '{_MENDED}' {path}")
        edit = {"command": "str_replace", "path": str(folder / path), "old_str": _BUG, "new_str": _MENDED}
        return "file_editor", edit

    def _last(self) -> Call:
        return self._shell(_SUBMIT) if self.harness == MINI else ("finish", {"message": "All tests pass."})


def tasks(load: Load, seed: int) -> list[Task]:
    """By arrival."""
    rng = random.Random(seed)
    harnesses = [OPENHANDS] * load.openhands + [MINI] * load.mini
    rng.shuffle(harnesses)
    at_s, drawn = 0.0, []
    for number, harness in enumerate(harnesses):
        modules = tuple(_module(load, rng, each) for each in range(rng.randint(*load.modules)))
        turns = sum(4 + bool(module.build_cpu_s) for module in modules) + 1
        tokens = tuple(_reply_tokens(load, rng) for _ in range(turns))
        name = f"task-{seed}-{number:03}"
        drawn.append(Task(name=name, harness=harness, at_s=at_s, modules=modules, tokens=tokens))
        at_s += rng.expovariate(load.rate)
    return drawn


def _module(load: Load, rng: random.Random, number: int) -> Module:
    built = rng.random() < load.builds
    return Module(
        name=f"part_{number}",
        words=rng.randint(*load.module_words),
        buggy=rng.randrange(_FUNCTIONS),
        build_cpu_s=round(rng.uniform(*load.build_cpu_s), 1) if built else 0.0,
    )


def _reply_tokens(load: Load, rng: random.Random) -> int:
    return max(16, min(8 * load.reply_tokens, round(rng.lognormvariate(log(load.reply_tokens), 0.6))))


def script(planned: Sequence[Task], folder: Path) -> str:
    """Of all their models, as ``penstock engine-double --script`` reads it."""
    return json.dumps({task.name: task.replies(folder / task.name) for task in planned})
