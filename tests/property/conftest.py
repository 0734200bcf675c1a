"""Hypothesis profiles: the same examples every time, or with ``HYPOTHESIS_PROFILE=search`` many new ones."""

import os

from hypothesis import HealthCheck, settings

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("repeatable", max_examples=60, stateful_step_count=40, derandomize=True, **_COMMON)
settings.register_profile("search", max_examples=1000, stateful_step_count=60, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
