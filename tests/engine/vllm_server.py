"""The real vLLM on this machine's CPU, in processes of its own: the HTTP server's and EngineCore's."""

from collections.abc import Sequence
from pathlib import Path

from engine_server import ROOT, STARTUP, EngineServer

ASYNC = Path(__file__).parent / "vllm_async"  # scheduling overlaps with steps there, as on a GPU
NAME = Path(__file__).parent / "vllm_name"
PATH = f"{ROOT}:{STARTUP}:{ASYNC}"

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the worker in EngineCore, as on one GPU
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # threads that spin on shared cores take ten times as long
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_SERVER_DEV_MODE": "1",  # to empty the cache
    "PYTHONUNBUFFERED": "1",
}
_ARGUMENTS = (
    *("--served-model-name", "tiny"),
    *("--host", "127.0.0.1"),
    *("--distributed-executor-backend", "uni"),
    *("--load-format", "dummy"),
    *("--dtype", "bfloat16"),
    *("--max-num-batched-tokens", "1024"),
    "--enforce-eager",
    "--enable-prefix-caching",
    "--enable-chunked-prefill",
    "--enable-prompt-tokens-details",
)


class VllmServer(EngineServer):
    """One vLLM server. The model must fit whole into the pool."""

    block_tokens = 32  # a CPU has no smaller ones

    def _launch(self, model: Path) -> list[str]:
        blocks = self.pool_tokens // self.block_tokens + 1  # one is a placeholder
        own = (
            *("--model", str(model), "--port", str(self.port)),
            *("--block-size", str(self.block_tokens), "--num-gpu-blocks-override", str(blocks)),
            *("--max-model-len", str(self.pool_tokens)),
        )
        return ["-W", "ignore", "-m", "vllm.entrypoints.openai.api_server", *_ARGUMENTS, *own]

    def _own_variables(self, plugins: Sequence[str]) -> dict[str, str]:
        return {**_ENVIRONMENT, "PYTHONPATH": PATH, "VLLM_PLUGINS": ",".join((*plugins, "penstock_async"))}


class ServeCommand(VllmServer):
    """``vllm serve``, which starts several API servers, or another front end, where the module starts one."""

    def _launch(self, model: Path) -> list[str]:
        arguments = super()._launch(model)
        at = arguments.index("vllm.entrypoints.openai.api_server")
        return [*arguments[:at], "vllm.entrypoints.cli.main", "serve", *arguments[at + 1 :]]

    def _own_variables(self, plugins: Sequence[str]) -> dict[str, str]:
        return {**super()._own_variables(plugins), "PYTHONPATH": f"{PATH}:{NAME}"}


class RustFrontEnd(ServeCommand):
    """The same with the front end in Rust, in which nothing of Python's runs."""

    has_gate = False
    session_header = "x-session-id"

    def _own_variables(self, plugins: Sequence[str]) -> dict[str, str]:
        return {**super()._own_variables(plugins), "VLLM_USE_RUST_FRONTEND": "1"}
