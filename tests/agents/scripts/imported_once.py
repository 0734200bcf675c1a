"""Imports what it is told to, then forks for each run: imports take seconds, and a run needs its own process.

A line of JSON on standard input is a run: a script with its arguments, environment, and files for its output. The
answers are the process's number, and once it has ended that again, its exit status, and the CPU seconds that it and
those used for which it waited. Runs may overlap.
"""

import gc
import importlib
import json
import os
import runpy
import select
import sys
from pathlib import Path
from typing import Any

for name in sys.argv[1:]:
    importlib.import_module(name)
gc.collect()
gc.freeze()  # no run's collector touches, and so copies, what was imported


def become(run: dict[str, Any]) -> None:
    """In the new process, whose end is that of any Python program."""
    os.setsid()  # which the kernel shares the CPUs among
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


running = 0
while True:
    wait_s = 0.01 if running else None
    if select.select([0], [], [], wait_s)[0]:
        line = sys.stdin.buffer.raw.readline()
        if not line:
            break
        process = os.fork()
        if process == 0:
            become(json.loads(line))
        running += 1
        print(process, flush=True)
    while running:
        process, status, used = os.wait4(-1, os.WNOHANG)
        if not process:
            break
        running -= 1
        cpu_s = used.ru_utime + used.ru_stime
        print(process, os.waitstatus_to_exitcode(status), f"{cpu_s:.3f}", flush=True)
