"""A real engine on this machine's CPU in the double's place."""

import sys
from pathlib import Path
from typing import Any

import psutil

from controlplane.lab.fleet.agents import MODEL
from support.daemon_process import NODE
from support.whole_loop import Loop

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ("sglang", "vllm")
ELSEWHERE = "[host]\ncpus = 64\nelsewhere = true\n"  # what runs beside is no part of the load
POOL_TOKENS = 6_000
_PARTS = {"core": ("enginecore", "scheduler"), "detokenizer": ("detokenizer",)}  # as their processes are titled
_COMMON = ("--served-model-name", MODEL)
_MOST_TOKENS = 4_000  # vLLM's context, which is to fit its pool
_SGLANG = ("--context-length", "12000", "--chunked-prefill-size", "1024", "--dtype", "float32")


class RealEngine(Loop):
    """A daemon, and SGLang or vLLM with a model of 20 million random weights."""

    def __init__(
        self, folder: Path, engine: str, *, daemon: tuple[str, ...], pool_tokens: int = POOL_TOKENS, **more: Any
    ) -> None:
        super().__init__(folder, "penstock", time_scale=1, daemon=daemon, **more)
        sys.path.append(str(ROOT / "bench"))
        from ab.engine import find_environment
        from ab.kinds import CPU, KINDS, SGLANG
        from ab.model import write_model

        kind, most = KINDS[engine], min(_MOST_TOKENS, pool_tokens * 9 // 10)
        self._server = kind.servers[CPU](
            self.logs / "engine",
            environment=find_environment(kind.version),
            model=write_model(self.logs / "model", "20m"),
            pool_tokens=pool_tokens,
            plugins=("penstock",),
            variables={"PENSTOCK_NODE": NODE, "PENSTOCK_STATE_DIR": str(folder)},
            arguments=(*_COMMON, *(_SGLANG if kind.name == SGLANG else (kind.context, str(most)))),
        )

    def start_double(self) -> None:
        self._server.start().wait_ready()
        self.url = self._server.url

    def kill_engine(self) -> None:
        self._server.kill()

    @property
    def engine_has_ended(self) -> bool:
        return not self._server.is_running()

    def engine_processes(self) -> dict[str, psutil.Process]:
        server = psutil.Process(self._server.pid)
        found = {"server": server}
        for child in server.children(recursive=True):
            title = " ".join(child.cmdline()).lower()
            found |= {part: child for part, names in _PARTS.items() if any(name in title for name in names)}
        return found

    def stop(self) -> None:
        self._server.stop()
        super().stop()
