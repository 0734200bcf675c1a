"""The benchmark of the hooks still drives them as they are."""

import hook_cost_engine
import pytest
from hook_cost_engine import HOOKED


@pytest.mark.parametrize("engine", HOOKED)
def test_an_empty_hook_is_one(engine: str) -> None:
    plain, wrapped = hook_cost_engine.empty_hook(engine)
    assert (plain(), wrapped()) == (None, None)
    assert HOOKED[engine].step in HOOKED[engine].events
