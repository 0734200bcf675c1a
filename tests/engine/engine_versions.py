"""Which versions of SGLang the engine tests run on: ``make test-engine ENGINES="0.5.21 0.5.17"``.

All tests run on the first; those of ``on_every_version`` on each.
"""

import os

import pytest

ENGINES = os.environ.get("PENSTOCK_TEST_ENGINES", "0.5.21 0.5.17").split()

on_every_version = pytest.mark.parametrize("engine_version", ENGINES, indirect=True)
