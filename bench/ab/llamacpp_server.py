"""The real llama.cpp server on a CPU, with the random model that ``scripts/llamacpp_env.py`` makes."""

from collections.abc import Sequence
from pathlib import Path

from engine_server import EngineServer

SLOTS = 4


class LlamaCppServer(EngineServer):
    """One server. ``environment``: the folder that the script prints. Its pool is shared evenly among its slots."""

    has_gate = False

    def __init__(self, folder: Path, *, environment: Path, model: Path, **more: object) -> None:
        self._binary, self._model = environment / "bin" / "llama-server", environment / "tiny.gguf"
        self._saved = folder / "slots"
        self._saved.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, environment=environment, model=model, **more)  # type: ignore[arg-type]
        self.command = [*self._serves(), *self.command[1:]]
        self.gate_options = ("--slot-save-path", str(self._saved))

    def _serves(self) -> list[str]:
        own = ["--host", "127.0.0.1", "--port", str(self.port), "-m", str(self._model), "--alias", "m", "-t", "1"]
        pool = ["-c", str(self.pool_tokens), "-np", str(SLOTS)]
        return [str(self._binary), *own, *pool, "--slots", "--metrics", "--slot-save-path", f"{self._saved}/"]

    def _launch(self, model: Path) -> list[str]:
        return []

    def _own_variables(self, plugins: Sequence[str]) -> dict[str, str]:
        return {}
