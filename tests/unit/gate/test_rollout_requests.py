"""What a trainer says over HTTP: which rollouts begin alike, and that weights were updated."""

from typing import Any

import pytest
from test_gate_middleware import CHAT, Bench

from controlplane.core.model.events import CacheFlushed, TurnQueued
from controlplane.gate.flushes import FLUSHING_PATHS, WEIGHTS_UPDATED

GROUP = {"x-penstock-group-id": "0", "x-penstock-group-size": "8"}


@pytest.mark.parametrize(
    ("headers", "body", "found"),
    [
        (GROUP, {}, ("0", 8)),
        ({}, {"group_id": 3, "group_size": 4}, ("3", 4)),
        ({}, {"metadata": {"group_id": "g"}, "vllm_xargs": {"group_size": "16"}}, ("g", 16)),
        ({}, {"custom_params": {"group_id": "g", "group_size": 2}}, ("g", 2)),
        ({}, {"metadata": {"group_id": "somebody else's word"}}, ("", 0)),
        ({}, {"group_size": 4}, ("", 0)),
        ({}, {"group_id": "undefined", "group_size": 4}, ("", 0)),
    ],
)
async def test_a_group_is_a_name_and_a_size(
    headers: dict[str, str], body: dict[str, Any], found: tuple[str, int]
) -> None:
    bench = Bench()
    await bench.held(CHAT | body, **headers)
    assert [(each.group_id, each.group_size) for each in bench.of(TurnQueued)] == [found]


@pytest.mark.parametrize("size", ["0", "-1", "many", "2.5", "1025", "9" * 30, True, [8]])
async def test_a_size_that_makes_no_sense_is_refused_with_what_is_expected(size: object) -> None:
    bench = Bench()
    reply = await bench.answered(CHAT | {"group_id": "g", "group_size": size})
    assert reply.status == 400
    assert "group_size" in reply.body.decode()
    assert bench.of(TurnQueued) == []


@pytest.mark.parametrize("path", [*sorted(FLUSHING_PATHS), WEIGHTS_UPDATED])
@pytest.mark.parametrize("status", [200, 400])
async def test_what_empties_a_cache_is_told_unless_the_engine_refuses_it(path: str, status: int) -> None:
    bench = Bench(governed=False)
    bench.app.status = status
    reply = await bench.answered(b"", path=path)
    is_ours = path == WEIGHTS_UPDATED
    assert reply.status == (200 if is_ours else status)
    assert [each.reason for each in bench.of(CacheFlushed)] == [path] * (is_ours or status == 200)
