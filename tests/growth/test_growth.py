"""Everything that grows with those who come has an end: its bound and who forgets stand beside each table."""

import asyncio
import sys
from collections import Counter
from functools import _lru_cache_wrapper

import pytest

from .crowd import Crowd
from .live_objects import sizes

_BOUND, _PROGRAMS = 16, 160


@pytest.fixture
def low_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound is called ``_MOST_...`` where it stands: made low it is reached soon, and what has none grows."""
    for name, module in list(sys.modules.items()):
        if name.startswith("controlplane."):
            for key, value in vars(module).items():
                if key.startswith("_MOST_") and isinstance(value, int) and value > _BOUND:
                    monkeypatch.setattr(module, key, _BOUND)


async def _lived_through(crowd: Crowd) -> list[Counter[str]]:
    found = []
    for _ in range(5):
        await crowd.live(_PROGRAMS)
        crowd.rest()
        found.append(sizes(*crowd.roots))
    assert crowd.pipeline.controller.ledger.estimates.turns.programs > 100, "they ran"
    return found


@pytest.mark.usefixtures("low_bounds")
@pytest.mark.parametrize("preset", ["penstock", "mori", "thunderagent", "infercept"])
def test_whoever_comes_and_goes_leaves_nothing_that_adds_up(preset: str) -> None:
    _, _, *found = asyncio.run(_lived_through(Crowd(preset)))
    grown = [
        f"{label}: {lengths}"
        for label in found[-1]
        if (lengths := [each[label] for each in found]) == sorted(set(lengths))
        and lengths[-1] - lengths[0] >= _PROGRAMS // 50
    ]
    assert not grown, "\n".join(grown)


def test_every_cache_of_a_function_has_a_bound() -> None:
    unbounded = [
        f"{name}.{key}"
        for name, module in list(sys.modules.items())
        if name.startswith(("controlplane", "engine_hooks"))
        for key, value in vars(module).items()
        if isinstance(value, _lru_cache_wrapper) and value.cache_info().maxsize is None and _takes_arguments(value)
    ]
    assert unbounded == []


def _takes_arguments(cached: object) -> bool:
    code = cached.__wrapped__.__code__  # type: ignore[attr-defined]
    return bool(code.co_argcount + code.co_kwonlyargcount)
