"""A real engine, started by the engine tests' own helpers, and what it says of itself."""

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from engine_server import EngineServer

from ab import ROOT
from ab.kinds import CPU, LLAMACPP, EngineShape, Kind
from ab.machine import tree_cpu_s
from ab.model import write_model


def find_environment(version: str = "") -> Path:
    """The engine tests' environment, which is made where it is not there yet (minutes, 3 GB)."""
    return _path_in(subprocess.run(_asked(version), stdout=subprocess.PIPE, text=True, check=True))


def ready_environment(version: str = "") -> Path | None:
    """The engine tests' environment; None where it was not made."""
    done = subprocess.run([*_asked(version), "--check"], capture_output=True, text=True)
    return _path_in(done) if done.returncode == 0 else None


def _asked(version: str) -> list[str]:
    if version == LLAMACPP:
        return [sys.executable, str(ROOT / "scripts" / "llamacpp_env.py")]
    script = ROOT / "scripts" / "engine_env.py"
    return [sys.executable, str(script), *(("--version", version) if version else ())]


def _path_in(done: "subprocess.CompletedProcess[str]") -> Path:
    return Path(done.stdout.strip().splitlines()[-1])


_LOOK = """
import sys
from importlib.metadata import PackageNotFoundError, version
for name in sys.argv[1:]:
    try:
        print(name.removesuffix("-cpu"), version(name))
    except PackageNotFoundError:
        pass
"""


def versions(environment: Path, kind: Kind) -> dict[str, str]:
    """What runs in the engine's environment, by its name; empty where the engine is not in it."""
    if not kind.packages:
        return {kind.name: environment.name.removeprefix(f"engine-{kind.name}-").partition("-")[0]}
    command = [environment / "bin" / "python", "-c", _LOOK, *kind.packages, "torch", "transformers"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = dict(line.split() for line in done.stdout.splitlines())
    return found if kind.packages[0] in found else {}


def version_of(environment: Path, kind: Kind) -> str:
    """The engine's in its environment. Raises ``SystemExit`` where it has another one."""
    found = versions(environment, kind).get(kind.packages[0] if kind.packages else kind.name)
    if found is None:
        raise SystemExit(f"no {kind.title} is in {environment}")
    return found


def start_engine(
    folder: Path,
    environment: Path,
    shape: EngineShape,
    *,
    plugins: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> EngineServer:
    """A fresh engine, ready to serve; the caller kills it. Its log is ``folder/engine.log``.

    ``flags``: what it is started with beside the shape's.
    """
    threads = {"OMP_NUM_THREADS": str(shape.threads)} if shape.device == CPU else {}
    server = shape.server(
        folder,
        environment=environment,
        model=write_model(folder / "model", shape.model),
        pool_tokens=shape.pool_tokens,
        plugins=plugins,
        variables={**threads, **(variables or {})},
        arguments=(*shape.engine.arguments(shape), *flags),
    )
    try:
        server.start().wait_ready()
    except BaseException:
        server.kill()
        raise
    return server


def cpu_s(server: EngineServer) -> float:
    """CPU time of all the engine's processes so far."""
    return tree_cpu_s(psutil.Process(server.pid))


def retractions(server: EngineServer, kind: Kind) -> int:
    """Requests that the engine took back out of its batch for want of memory; -1 where it does not say."""
    try:
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
    except (urllib.error.URLError, OSError):
        return -1
    counts = [line.split()[-1] for line in lines if line.startswith(kind.retractions)]
    return sum(round(float(count)) for count in counts)
