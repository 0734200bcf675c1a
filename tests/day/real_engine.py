"""A real engine on this machine's CPU in the double's place."""

import json
import sys
import urllib.request
from pathlib import Path

from support.daemon_process import NODE
from support.whole_loop import Loop

ROOT = Path(__file__).resolve().parents[2]
POOL_TOKENS = 6_000
_VLLM = ("--max-model-len", "4000")
_SGLANG = ("--context-length", "12000", "--chunked-prefill-size", "1024", "--dtype", "float32")


class RealEngine(Loop):
    """A daemon, and SGLang or vLLM with a model of 20 million random weights."""

    def __init__(self, folder: Path, engine: str) -> None:
        config = folder / "penstock.toml"
        config.write_text("[host]\ncpus = 64\nelsewhere = true\n")  # what runs beside is no part of the load
        super().__init__(folder, "penstock", time_scale=1, daemon=("--config", str(config)))
        sys.path.append(str(ROOT / "bench"))
        from ab.engine import find_environment
        from ab.kinds import CPU, KINDS, SGLANG
        from ab.model import write_model

        kind = KINDS[engine]
        self._server = kind.servers[CPU](
            folder / "engine",
            environment=find_environment(kind.version),
            model=write_model(folder / "model", "20m"),
            pool_tokens=POOL_TOKENS,
            plugins=("penstock",),
            variables={"PENSTOCK_NODE": NODE, "PENSTOCK_STATE_DIR": str(folder)},
            arguments=_SGLANG if kind.name == SGLANG else _VLLM,
        )
        self.model = ""

    def start_double(self) -> None:
        self._server.start().wait_ready()
        self.url = self._server.url
        with urllib.request.urlopen(f"{self.url}/v1/models") as answer:
            self.model = json.load(answer)["data"][0]["id"]

    def stop(self) -> None:
        self._server.stop()
        super().stop()
