"""Which engines the engine tests run on: ``make test-engine ENGINES="0.5.21 0.5.17"``, ``make test-engine-vllm``.

A version without a name before it is SGLang's. All tests run on the first; those of ``on_every_version`` on each.
If the first is vLLM's, only those of ``every_engine`` and ``vllm_only`` run.
"""

import os

import pytest

ENGINES = os.environ.get("PENSTOCK_TEST_ENGINES", "0.5.21 0.5.17").split()

VLLM = "vllm-"
every_engine = pytest.mark.every_engine  # what holds of SGLang holds of vLLM
vllm_only = pytest.mark.vllm_only
on_every_version = pytest.mark.parametrize("engine_version", ENGINES, indirect=True)
