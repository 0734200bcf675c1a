"""A double of SGLang: a tree of modules with every function that the plugin needs, and a double of HookRegistry."""

import functools
import types
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest
from support.package_double import PackageDouble

from engine_hooks.sglang.targets import ADD_MIDDLEWARE, REQUEST, TARGETS

REGISTRY = "sglang.srt.plugins.hook_registry"


class HookType(Enum):
    """SGLang's."""

    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"


class ComponentType(Enum):
    """SGLang's, of its tree."""

    FULL = 0
    SWA = 1
    MAMBA = 2


class HookRegistryDouble:
    """Registers and applies AROUND hooks as SGLang does; a target that is missing is passed over in silence."""

    def __init__(self, double: "SglangDouble") -> None:
        self._double = double
        self.hooks: dict[str, list[Callable[..., Any]]] = {}
        self.refused: set[str] = set()  # targets whose hooks apply_hooks fails to apply

    def register(self, target: str, hook: Callable[..., Any], hook_type: HookType = HookType.AFTER) -> None:
        assert hook_type is HookType.AROUND
        self.hooks.setdefault(target, []).append(hook)

    def apply_hooks(self) -> None:
        for target, hooks in self.hooks.items():
            owner_path, _, name = target.rpartition(".")
            if target in self.refused:
                continue
            owner = self._double.find(owner_path)
            wrapped = getattr(owner, name)
            for hook in hooks:
                wrapped = _around(wrapped, hook)
            setattr(owner, name, wrapped)


def _around(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    return wrapper


class AppDouble:
    """FastAPI's part in this: it keeps the middlewares that it is given."""

    def __init__(self) -> None:
        self.middlewares: list[tuple[type, dict[str, Any]]] = []
        self.routes: list[Any] = []
        self.server_args = types.SimpleNamespace(tp_size=1, dp_size=1, disaggregation_mode="null")

    def add_middleware(self, middleware_class: type, **options: Any) -> None:
        self.middlewares.append((middleware_class, options))


class GenerateReqInput:
    """SGLang's, as far as the plugin looks."""

    routed_dp_rank: int | None = None

    def __init__(self, sampling_params: Any = None, session_id: str | None = None) -> None:
        self.sampling_params = sampling_params
        self.session_id = session_id


class SglangDouble(PackageDouble):
    """SGLang with every target, in ``sys.modules`` for as long as the test runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch, TARGETS)
        self.app = AppDouble()
        self.registry = HookRegistryDouble(self)
        self.set(REQUEST, GenerateReqInput)
        self.set(ADD_MIDDLEWARE.rpartition(".")[0], self.app)
        self.set(f"{REGISTRY}.HookRegistry", self.registry)
        self.set(f"{REGISTRY}.HookType", HookType)
