"""Imports what it is told to, then forks for each run: imports take seconds, and a run needs its own process.

A line of JSON on standard input is a run: a script with its arguments, environment, and files for its output. The
answers are the process's number, and once it has ended its exit status.
"""

import importlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

for name in sys.argv[1:]:
    importlib.import_module(name)


def become(run: dict[str, Any]) -> None:
    """In the new process, whose end is that of any Python program."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number, path in ((1, run["stdout"]), (2, run["stderr"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.clear()
    os.environ.update(run["environment"])
    sys.argv = [run["script"], *run["arguments"]]
    sys.path[0] = str(Path(run["script"]).parent)
    runpy.run_path(run["script"], run_name="__main__")
    sys.exit()


for line in iter(sys.stdin.readline, ""):
    process = os.fork()
    if process == 0:
        become(json.loads(line))
    print(process, flush=True)
    _, status = os.waitpid(process, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
