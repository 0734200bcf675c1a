"""A double of somebody's package: modules with every target of a plugin, in ``sys.modules`` for one test."""

import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from engine_hooks.engine.targets import Target


class PackageDouble:
    """Functions with the parameters that are wanted, and classes with them, for as long as the test runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, targets: Iterable[Target]) -> None:
        self._monkeypatch = monkeypatch
        for target in targets:
            self.add(target)

    def add(self, target: Target) -> None:
        """Make a function with the parameters that are wanted; a class where its name begins as one."""
        path = target.path
        names = target.first or target.has
        if path.rpartition(".")[2][0].isupper():
            self._owner(path).__init__ = made_function(("self", *names))  # it may have methods already
        else:
            self.set(path, made_function(names))

    def set(self, path: str, value: Any) -> None:
        owner_path, _, name = path.rpartition(".")
        self._monkeypatch.delitem(sys.modules, path, raising=False)
        setattr(self._owner(owner_path), name, value)

    def remove(self, path: str) -> None:
        owner_path, _, name = path.rpartition(".")
        delattr(self.find(owner_path), name)

    def find(self, path: str) -> Any:
        return self._owner(path)

    def _owner(self, path: str) -> Any:
        found: Any = None
        walked = ""
        for part in path.split("."):
            walked = f"{walked}.{part}" if walked else part
            if found is not None and hasattr(found, part):
                found = getattr(found, part)
                continue
            made: Any = type(part, (), {}) if part[0].isupper() else sys.modules.get(walked)
            if made is None or (isinstance(made, types.ModuleType) and made.__spec__ is not None):
                made = types.ModuleType(walked)
                made.__path__ = []
                self._monkeypatch.setitem(sys.modules, walked, made)
            if found is not None:
                setattr(found, part, made)
            found = made
        return found


def made_function(names: tuple[str, ...]) -> Callable[..., Any]:
    """A function with these parameters, which returns its arguments."""
    namespace: dict[str, Any] = {}
    defaults = [f"{name}=None" for name in names]
    exec(f"def made({', '.join(defaults)}): return ({', '.join(names)}{',' if names else ''})", namespace)
    made: Callable[..., Any] = namespace["made"]
    return made
