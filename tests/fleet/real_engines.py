"""Two SGLangs and a vLLM on this machine's CPU, with the plugin, as the engines of a fleet's site.

It needs the helpers of ``tests/engine`` on the path.
"""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from engine_server import ROOT, START_TIMEOUT_S, EngineServer
from tiny_model import write_tiny_model
from vllm_server import VllmServer

from controlplane.lab.fleet.agents import MODEL
from controlplane.lab.fleet.site import Launch

SGLANG, VLLM = "0.5.23", "vllm-0.32.0"
POOL_TOKENS = 320  # so few that programs wait for each other
_HEAD_DIM = 32  # both have attention for it on a CPU


def real_engines(folder: Path) -> tuple[Callable[[str, int], Launch], ...]:
    """How each is started. Raises ``SystemExit`` where an environment was not made."""
    model = write_tiny_model(folder / "model", _HEAD_DIM)
    sglang = partial(_launch, EngineServer, _environment(SGLANG, "engine-env"), model, folder)
    vllm = partial(_launch, VllmServer, _environment(VLLM, "engine-env-vllm"), model, folder)
    return (sglang, sglang, vllm)


def _launch(kind: type[EngineServer], environment: Path, model: Path, folder: Path, node: str, port: int) -> Launch:
    server = kind(
        folder / node,
        environment=environment,
        model=model,
        pool_tokens=POOL_TOKENS,
        port=port,
        plugins=("penstock",),
        variables={"PENSTOCK_NODE": node, "PENSTOCK_STATE_DIR": str(folder / node)},
        arguments=("--served-model-name", MODEL),
    )
    return Launch(
        command=tuple(server.command),
        place=f"{node}/engine-{port}",
        environment=server.variables,
        ready_within_s=START_TIMEOUT_S,
    )


def _environment(version: str, target: str) -> Path:
    command = [sys.executable, str(ROOT / "scripts" / "engine_env.py"), "--check", "--version", version]
    said = subprocess.run(command, capture_output=True, text=True)
    if said.returncode:
        raise SystemExit(f"{said.stderr.strip()}: make {target}")
    return Path(said.stdout.strip())
