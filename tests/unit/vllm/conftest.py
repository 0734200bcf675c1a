"""The double of vLLM as a fixture."""

import pytest
from vllm_double import VllmDouble


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> VllmDouble:
    return VllmDouble(monkeypatch)
