"""Which engines a run of the engine tests is about, and which of its tests each of them has.

``PENSTOCK_TEST_ENGINES`` names an engine, for every version of it that is tested in each run, or single versions.
All tests run on the first version; those of ``on_every_version`` on each. A test without ``on`` is every engine's.
"""

import os

import pytest
from engine_kinds import SGLANG, kind_of, versions_of

ENGINES = versions_of(os.environ.get("PENSTOCK_TEST_ENGINES", SGLANG))
KIND = kind_of(ENGINES[0])
on = pytest.mark.engines
on_every_version = pytest.mark.parametrize("engine_version", ENGINES, indirect=True)
