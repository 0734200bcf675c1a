"""The real SGLang on this machine's CPU, started by the engine tests' own helper."""

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_server import EngineServer

from ab import ROOT
from ab.model import write_model


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    """The engine that every system runs on.

    ``threads``: two is what a stock start takes on two cores. ``dtype``: of its weights and KV, empty: the model's
    own bfloat16, with which a CPU without instructions for it takes several times as long as with ``float32``.
    """

    model: str = "20m"
    pool_tokens: int = 16_000
    context_tokens: int = 16_384
    chunk_tokens: int = 1024
    threads: int = 2
    # Not in the representation, of which a scenario's digest is: those from before keep theirs.
    dtype: str = field(default="", repr=False)


def find_environment(version: str = "") -> Path:
    """The engine tests' environment, which is made where it is not there yet (minutes, 3 GB)."""
    script = ROOT / "scripts" / "engine_env.py"
    command = [sys.executable, str(script), *(("--version", version) if version else ())]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Path(said.stdout.strip().splitlines()[-1])


def versions(environment: Path) -> dict[str, str]:
    """What runs in the engine's environment."""
    look = "import importlib.metadata as m\nfor n in ('sglang', 'torch', 'transformers'): print(n, m.version(n))"
    said = subprocess.run([environment / "bin" / "python", "-c", look], capture_output=True, text=True, check=True)
    return dict(line.split() for line in said.stdout.splitlines())


def start_engine(
    folder: Path,
    environment: Path,
    shape: EngineShape,
    *,
    plugins: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Any:
    """A fresh engine, ready to serve; the caller kills it. Its log is ``folder/engine.log``."""
    server = EngineServer(
        folder,
        environment=environment,
        model=write_model(folder / "model", shape.model),
        pool_tokens=shape.pool_tokens,
        plugins=plugins,
        variables={"OMP_NUM_THREADS": str(shape.threads), **(variables or {})},
        arguments=(
            *("--context-length", str(shape.context_tokens)),
            *("--chunked-prefill-size", str(shape.chunk_tokens)),
            *(("--dtype", shape.dtype) if shape.dtype else ()),
        ),
    )
    try:
        server.start().wait_ready()
    except BaseException:
        server.kill()
        raise
    return server


def retractions(url: str) -> int:
    """Requests that the engine took back out of its batch for want of memory; -1 where it does not say."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
    except (urllib.error.URLError, OSError):
        return -1
    counts = [line.split()[-1] for line in lines if line.startswith("sglang:num_retracted_requests_total")]
    return sum(round(float(count)) for count in counts)
