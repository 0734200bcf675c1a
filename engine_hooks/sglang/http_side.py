"""The plugin in SGLang's HTTP process: where the gate goes, and the hook that carries identities on."""

import functools
from collections.abc import Callable
from typing import Any

from controlplane.core.model.events import DECODE, DECODES
from controlplane.core.model.places import places_of_ranks
from controlplane.gate import GATED_PATHS, GateMiddleware, HealthPage
from engine_hooks.engine.board import HealthFile
from engine_hooks.engine.http_side import HttpSide, probe_health
from engine_hooks.engine.settings import ENGINE, GATE, Settings, role_of
from engine_hooks.engine.targets import Feature
from engine_hooks.guard import Guard
from engine_hooks.sglang.carrier import carrier
from engine_hooks.sglang.processes import disaggregation, no_gate, ranks_of
from engine_hooks.sglang.targets import GENERATE, TERMINATE
from engine_hooks.sglang.verify import sglang_version, unbound, unproven

# The functions of SGLang's server that generate: some of their paths are set by the environment.
_GENERATING = frozenset(
    {
        "anthropic_v1_messages",
        "generate_request",
        "ollama_chat",
        "ollama_generate",
        "openai_v1_chat_completions",
        "openai_v1_completions",
        "sagemaker_chat_completions",
        "v1_responses_request",
        "vertex_generate",
    }
)


def install(settings: Settings, *, lacking: bool) -> None:
    """Register the HTTP process's hooks, the gate unless the settings ask for a probe, and the health page.

    ``lacking``: this SGLang has not what the gate and the page need, so that there is the one hook only. SGLang
    must be importable. Raises whatever is wrong with it before anything is changed.
    """
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks: dict[str, Callable[..., Any]] = {}
    if lacking or not settings.obeys:
        guard = Guard()
        hooks[GENERATE] = carrier(GenerateReqInput, guard)
        HookRegistry.register(GENERATE, hooks[GENERATE], HookType.AROUND)
        if not lacking:
            _serve_probe_health(settings, guard, hooks)
        return

    from sglang.srt.entrypoints.http_server import app

    def role() -> str:
        return role_of(GATE, getattr(app, "server_args", None))

    def behind() -> tuple[str, ...]:
        server_args = getattr(app, "server_args", None)
        return places_of_ranks(settings.node, role_of(ENGINE, server_args), ranks_of(server_args))

    def higher_first() -> bool:
        server_args = getattr(app, "server_args", None)
        return not getattr(server_args, "schedule_low_priority_values_first", False)

    def why() -> str:
        because = _why_passive(app, hooks)
        if not because:
            side.guard.run("usage", _tell_cached_tokens)
        return because

    side = HttpSide(settings, why, HealthFile(), _engine(), role, behind, higher_first)
    hooks[GENERATE] = carrier(GenerateReqInput, side.guard)
    hooks[TERMINATE] = side.guard.around("sigterm_handler", after=side.terminating)
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)
    app.add_middleware(GateMiddleware, **side.middleware(gated_paths(app)))


def gated_paths(app: Any) -> frozenset[str]:
    """Where turns come in: the usual paths, and wherever this server has put what generates."""
    found = {
        route.path
        for route in getattr(app, "routes", ())
        if getattr(getattr(route, "endpoint", None), "__name__", "") in _GENERATING
    }
    return frozenset(GATED_PATHS) | found


def _serve_probe_health(settings: Settings, guard: Guard, hooks: dict[str, Callable[..., Any]]) -> None:
    from sglang.srt.entrypoints.http_server import app

    why = functools.partial(_why_passive, app, hooks)
    app.add_middleware(HealthPage, health=probe_health(settings, guard, _engine(), why, HealthFile()))


def _tell_cached_tokens() -> None:
    """Replies say what of a prompt was cached, as with ``--enable-cache-report``: the gate and its clients ask."""
    from sglang.srt.runtime_context import get_context

    get_context().override("penstock", enable_cache_report=True)


def _engine() -> tuple[str, str]:
    return "sglang", sglang_version()


def _why_passive(app: Any, hooks: dict[str, Callable[..., Any]]) -> str:
    """Why the plugin must do nothing on this server; empty if it may."""
    problems = unbound(hooks, Feature.GATE)
    if problems:
        return problems[0].message
    server_args = getattr(app, "server_args", None)
    decodes = DECODES if disaggregation(server_args) == DECODE else ""
    return unproven(server_args) or decodes or no_gate(server_args)
