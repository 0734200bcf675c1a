"""SGLang and vLLM on a GPU: the engine tests' servers, started without what is a CPU's.

Written from the engines' options, which a test has their own parsers read; where no GPU is, nothing of it runs.
"""

from collections.abc import Sequence
from pathlib import Path

from engine_server import EngineServer
from vllm_server import VllmServer

_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}
_START_TIMEOUT_S = 1200.0  # kernels are compiled and graphs captured at the first start
_NONE = "none"  # an empty list of plugins means all of them to SGLang


class AcceleratedSglang(EngineServer):
    """One SGLang server on a GPU."""

    start_timeout_s = _START_TIMEOUT_S

    def _launch(self, model: Path) -> list[str]:
        return [
            *("-m", "sglang.launch_server"),
            *("--model-path", str(model), "--host", "127.0.0.1", "--port", str(self.port)),
            *("--load-format", "dummy", "--random-seed", "1"),
            *("--max-total-tokens", str(self.pool_tokens)),
            "--enable-cache-report",
            "--enable-metrics",
        ]

    def _own_variables(self, plugins: Sequence[str]) -> dict[str, str]:
        return {**_OFFLINE, "SGLANG_PLUGINS": ",".join(plugins) or _NONE}


class AcceleratedVllm(VllmServer):
    """One vLLM server on a GPU."""

    start_timeout_s = _START_TIMEOUT_S
    block_tokens = 16

    def _launch(self, model: Path) -> list[str]:
        blocks = self.pool_tokens // self.block_tokens + 1  # one is a placeholder
        return [
            *("-W", "ignore", "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(model), "--host", "127.0.0.1", "--port", str(self.port)),
            *("--load-format", "dummy", "--seed", "1"),
            *("--block-size", str(self.block_tokens), "--num-gpu-blocks-override", str(blocks)),
            "--enable-prefix-caching",
            "--enable-prompt-tokens-details",
        ]

    def _own_variables(self, plugins: Sequence[str]) -> dict[str, str]:
        return {**_OFFLINE, "VLLM_NO_USAGE_STATS": "1", "VLLM_PLUGINS": ",".join(plugins) or _NONE}
