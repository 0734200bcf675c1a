"""What is compared: an engine as it is, its own priorities, and the plugin under a daemon's configuration."""

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vllm_server import PATH

from ab import ROOT
from ab.kinds import SGLANG, VLLM, Kind
from controlplane.config import parse, show
from controlplane.core.model.errors import ConfigError
from controlplane.core.policies.presets import PRESETS
from controlplane.lab.workload import provenance

STOCK = "stock"
PRIORITY = "priority"
AGENTINFER = "agentinfer"
_ENDINGS = {"+outside": (False, ()), "+halves": (True, ()), "+sessions": (False, ("--enable-session-radix-cache",))}
"""A gate outside: whether the plugin is in the engine's scheduler, and what the engine is started with beside."""
_STATIC = re.compile(r"static-(\d+)")
# agentinfer's cost model knows a GPU: these are the 20m shape's times on two cores.
_AGENTINFER_COSTS = {
    "ttl_prefill_model_intercept_seconds": 0.01,
    "ttl_prefill_model_linear_seconds_per_1k_tokens": 0.15,
    "ttl_prefill_model_quadratic_seconds_per_1k_tokens_squared": 0.038,
    "decode_step_fixed_seconds": 0.012,
    "decode_step_seconds_per_request": 0.001,
    "decode_step_seconds_per_context_token": 2.7e-6,
}
_DECIDING = ("core", "tool_calls", "gate", "emit", "transport", "wire", "daemon")


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One of the compared. ``toml`` is the daemon's configuration; empty: neither plugin nor daemon.

    ``flags``: what its engine is started with beside. ``variables``: of its engine's environment. ``first_come``:
    its programs' requests are numbered in order of the programs' arrival. ``outside``: `penstock gate` is
    before the engine, in which the plugin is only where ``has_plugin``.
    """

    name: str
    toml: str = ""
    flags: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    first_come: bool = False
    outside: bool = False
    in_engine: bool = True

    @property
    def has_daemon(self) -> bool:
        return bool(self.toml)

    @property
    def has_plugin(self) -> bool:
        return bool(self.toml) and self.in_engine


def static(window: int) -> System:
    """A fixed window of programs, first come, first served: what an operator can do by hand."""
    toml = f'preset = "fcfs"\n[admission]\npolicy = "fixed"\nwindow = {window}\n'
    return System(name=f"static-{window}", toml=toml)


def by_priority(kind: Kind) -> System:
    """The engine as it is, but for its queue, in which requests of the program that came first go first.

    That is all that an operator can tell a stock engine of programs. Raises ``ConfigError`` for one that is not
    asked to.
    """
    if not kind.priorities:
        raise ConfigError(f"--systems: {PRIORITY} is not tried on {kind.title}")
    return System(name=PRIORITY, flags=kind.priorities, first_come=True)


def agentinfer(folder: Path, kind: Kind) -> System:
    """agentinfer (PyPI), which pauses programs by a time-to-live inside vLLM's scheduler.

    ``folder``: its unpacked wheel; installed, it would replace the command ``vllm``. Raises ``ConfigError``.
    """
    core = "agentinfer.agentcache.core"
    if kind.name != VLLM or not (folder / AGENTINFER).is_dir():
        raise ConfigError(f"--systems: {AGENTINFER}=FOLDER: expected {VLLM}, and agentinfer's unpacked wheel")
    flags = ["--async-scheduling", "--scheduler-cls", f"{core}.scheduler.AgentCacheAsyncSchedulerBridge"]
    for middleware in ("AgentCacheIdentityMiddleware", "AgentCacheLifecycleMiddleware"):
        flags += ["--middleware", f"{core}.api_adapter.{middleware}"]
    settings = json.dumps({"agentcache": {"progress_ttl": _AGENTINFER_COSTS}})
    return System(
        name=AGENTINFER,
        flags=(*flags, "--additional-config", settings),
        variables={
            "PYTHONPATH": f"{PATH}:{folder}",
            "AGENTCACHE_VLLM_LIFECYCLE_SOCKET": f"/tmp/agentcache-{os.getpid()}",
        },
    )


def parse_system(text: str, kind: Kind) -> System:
    """``stock``, ``static-8``, a preset's name, ``NAME=FILE.toml`` and the like. Raises ``ConfigError``.

    With ``+outside`` behind it: by `penstock gate` before an engine without the plugin; with ``+halves``: before
    one whose scheduler has it; with ``+sessions``: before an SGLang that has sessions in the plugin's place.
    """
    inside, plus, ending = text.rpartition("+")
    if (found := _ENDINGS.get(plus + ending)) is not None:
        inner, (in_engine, flags) = parse_system(inside, kind), found
        if not inner.toml:
            raise ConfigError(f"--systems: {text}: only a preset or a configuration has a gate outside")
        if flags and kind.name != SGLANG:
            raise ConfigError(f"--systems: {text}: only SGLang has such sessions")
        return replace(inner, name=text, outside=True, in_engine=in_engine, flags=flags)
    name, separator, file = text.partition("=")
    if name == AGENTINFER:
        return agentinfer(Path(file).absolute(), kind)
    if separator:
        toml = Path(file).read_text()
        parse(tomllib.loads(toml))
        return System(name=name, toml=toml)
    if name == STOCK:
        return System(name=name)
    if name == PRIORITY:
        return by_priority(kind)
    if found := _STATIC.fullmatch(name):
        return static(int(found[1]))
    if name in PRESETS:
        return System(name=name, toml=f'preset = "{name}"\n')
    own = [PRIORITY] if kind.priorities else []
    rivals = [f"{AGENTINFER}=FOLDER"] if kind.name == VLLM else []
    known = ", ".join((STOCK, *own, *rivals, "static-N", *PRESETS, "NAME=FILE.toml"))
    raise ConfigError(f"--systems: expected some of {known}, got {text!r}")


def effective_digest(system: System) -> str:
    """Of the configuration with every default in it; empty for stock."""
    return provenance.digest(show(parse(tomllib.loads(system.toml)))) if system.has_daemon else ""


def code_digest(system: System) -> str:
    """Of all the code that decides, holds or tells; empty for stock."""
    if not system.has_daemon:
        return ""
    deciding = (*_DECIDING, "fleet") if system.outside else _DECIDING
    rooms = [ROOT / "controlplane" / room for room in deciding] + [ROOT / "engine_hooks"]
    return provenance.code_digest(rooms)
