"""The doubles of SGLang as fixtures."""

from collections.abc import Callable

import pytest
from engine_double import Engine
from sglang_double import SglangDouble

from engine_hooks.engine.settings import PluginMode


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> SglangDouble:
    return SglangDouble(monkeypatch)


@pytest.fixture
def make(sglang: SglangDouble, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    return lambda mode=PluginMode.ON: Engine(sglang, monkeypatch, mode)


@pytest.fixture
def engine(make: Callable[..., Engine]) -> Engine:
    return make()
