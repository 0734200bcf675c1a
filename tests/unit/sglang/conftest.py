"""The double of SGLang as a fixture."""

import pytest
from sglang_double import SglangDouble


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> SglangDouble:
    return SglangDouble(monkeypatch)
