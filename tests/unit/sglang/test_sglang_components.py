"""A model that keeps a window, or states, beside full attention's KV: whose goes for what of which component."""

from typing import Any

import pytest
from engine_double import EVICT, Engine, EvictParamsDouble
from scheduler_double import ViewDouble
from sglang_double import ComponentType

from controlplane.core.model.commands import Pause, Retain
from controlplane.core.model.types import seconds


@pytest.mark.parametrize(
    ("asked", "evictable", "given_up"),
    [
        ({"num_tokens": 500}, {"FULL": 500}, 0),
        ({"num_tokens": 501}, {"FULL": 500}, 1),
        ({"num_tokens": 9, "swa_num_tokens": 64}, {"FULL": 500, "SWA": 0}, 2),
        ({"mamba_num": 1}, {"FULL": 500, "MAMBA": 1}, 0),
        ({"mamba_num": 2}, {"FULL": 500, "MAMBA": 1}, 1),
    ],
)
def test_pins_go_for_what_an_allocation_lacks_of_any_component(
    engine: Engine, asked: dict[str, int], evictable: dict[str, int], given_up: int
) -> None:
    """SGLang would throw out a running turn for it, or end: a pin that goes frees a window of 32, and a state."""
    for name in ("a", "b"):
        engine.ran(name, 500)
        engine.command(Retain(program_id=name, ttl_ns=seconds(60)))
    pins, tree = engine.attached._pins, engine.scheduler.tree_cache
    tree.tree_components = tuple(ComponentType)
    a_pin = {"FULL": 500, "SWA": 32, "MAMBA": 1}

    def evictable_now(component: ComponentType) -> int:
        return evictable.get(component.name, 0) + (2 - len(pins.programs)) * a_pin[component.name]

    tree.tree_core.component_evictable_size = evictable_now
    engine.call(EVICT, tree, EvictParamsDouble(**asked))
    assert 2 - len(pins.programs) == given_up
    assert engine.calls == [EvictParamsDouble(**asked)], "the eviction itself is the engine's"


def test_for_a_state_contexts_go_that_nobody_waits_for_and_no_others(engine: Engine) -> None:
    engine.steered()
    for name in ("ended", "waited for", "ended too"):
        engine.ran(name, 500)
    for name in ("ended", "ended too"):
        engine.command(Pause(program_id=name))
    engine.scheduler.tree_cache.tree_components = tuple(ComponentType)
    free = dict.fromkeys(ComponentType, 0)

    def evict_tail(key: Any, most_tokens: int) -> int:
        freed_tokens = ViewDouble.evict_tail(engine.view, key, most_tokens)
        free[ComponentType.MAMBA] += bool(freed_tokens)
        return freed_tokens

    engine.view.evict_tail = evict_tail  # type: ignore[method-assign]
    engine.view.free = lambda components: {each: free[each] for each in components}  # type: ignore[method-assign]
    assert engine.call(EVICT, "tree", EvictParamsDouble(mamba_num=1)).num_tokens_evicted == 5 + 500
    assert engine.view.cached == {"ended": 0, "waited for": 500, "ended too": 500}
    engine.call(EVICT, "tree", EvictParamsDouble(mamba_num=3))
    assert engine.view.cached == {"ended": 0, "waited for": 500, "ended too": 0}
    assert engine.calls == [EvictParamsDouble(), EvictParamsDouble(mamba_num=2)]
