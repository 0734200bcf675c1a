"""A node of the demo's own: a daemon with its nats-server, and the engine double, each a process."""

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from controlplane.core.model.errors import EngineUnavailable
from controlplane.lab.experiment import Hardware
from controlplane.lab.surroundings import own_environment

NODE = "demo"
_START_TIMEOUT_S = 60.0
_ENDS_WITHIN_S = 10.0


@contextlib.contextmanager
def running_node(
    preset: str, hardware: Hardware, folder: Path, *, time_scale: float, tokens_per_word: int
) -> Iterator[str]:
    """A daemon of that preset and an engine double; yields the double's URL. Raises ``EngineUnavailable``."""
    common = ["--node", NODE, "--state-dir", str(folder), "--time-scale", f"{time_scale:g}"]
    double = ["--profile", hardware.profile, "--pool-tokens", str(hardware.pool_tokens)]
    double += ["--port", "0", "--tokens-per-word", str(tokens_per_word)]
    with (
        command_running(["up", "--preset", preset, *common], ready=r'"event": "up"|\bup\b.*preset'),
        command_running(["engine-double", *double, *common], ready=r"listens on (\S+)") as (_, found),
    ):
        yield found.group(1)


@contextlib.contextmanager
def command_running(
    arguments: list[str], *, ready: str
) -> Iterator[tuple["subprocess.Popen[str]", "re.Match[str]"]]:
    """A ``penstock`` command that runs in the background; yields once a line of its output matches ``ready``."""
    process = subprocess.Popen(
        [sys.executable, "-m", "controlplane", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=own_environment(),
        start_new_session=True,  # Ctrl-C is the demo's, which ends this one when nobody talks to it any more
    )
    seen = threading.Event()
    found: list[re.Match[str]] = []
    said = ["it said nothing"]

    def read() -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                said[0] = line.strip() or said[0]
                if not found and (match := re.search(ready, line)):
                    found.append(match)
                    seen.set()
        seen.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        seen.wait(_START_TIMEOUT_S)
        if not found:
            raise EngineUnavailable(f"penstock {arguments[0]} did not start: {said[0]}")
        yield process, found[0]
    finally:
        process.terminate()
        try:
            process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(5)
