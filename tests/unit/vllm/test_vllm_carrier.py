"""How an identity gets into the sampling parameters that vLLM hands to its scheduler."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from support.hooked import GATED, ON_RANK_1, gated_scope

from engine_hooks.guard import Guard
from engine_hooks.vllm import carrier as module
from engine_hooks.vllm.carrier import Carry, label, labelling
from engine_hooks.vllm.engine_view import LABELS_VARIABLE

UNGATED = {"headers": [(b"x-session-id", b"s")]}


@pytest.fixture(autouse=True)
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LABELS_VARIABLE, "ours")


@pytest.mark.parametrize(
    ("sent", "scope", "labelled"),
    [
        (None, gated_scope(), {"ours": GATED}),
        ({"mine": 1}, gated_scope(), {"mine": 1, "ours": GATED}),
        ({"mine": 1}, None, {"mine": 1}),
        (None, UNGATED, {"ours": {"program_id": "s"}}),
        ({"program_id": "b"}, UNGATED, {"program_id": "b", "ours": {"program_id": "b"}}),
        (None, {"headers": []}, None),
    ],
)
def test_labels_stand_beside_what_the_client_sent(sent: Any, scope: Any, labelled: Any) -> None:
    before, params = repr(sent), SimpleNamespace(extra_args=sent)
    label(params, scope)
    assert params.extra_args == labelled
    assert repr(sent) == before, "it is not changed in place"


def call(prompt: Any, params: Any, guard: Guard, scope: Any = None, **more: Any) -> list[Any]:
    """What the engine's own function is given by a handler behind the middleware."""
    given: list[Any] = []

    async def add_request(*args: Any, **more: Any) -> str:
        given.extend((args, more))
        return "collector"

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        hooked = labelling(add_request, guard)
        assert await hooked("client", request_id="r", prompt=prompt, params=params, **more) == "collector"

    async def nothing(*args: Any) -> Any:
        return {}

    asyncio.run(Carry(handler)(scope or gated_scope(), nothing, nothing))  # type: ignore[arg-type]
    return given


def test_what_a_handler_asks_of_the_engine_is_labelled_with_its_request() -> None:
    params = SimpleNamespace(extra_args=None)
    prompt = SimpleNamespace(sampling_params=SimpleNamespace(extra_args=None))
    assert call(prompt, params, Guard(), priority=1) == [("client", "r", prompt, params), {"priority": 1}]
    assert params.extra_args == prompt.sampling_params.extra_args == {"ours": GATED}
    assert call("text", SimpleNamespace(), Guard()), "nor does one without such parameters fail"


def test_a_failure_leaves_the_request_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "label", lambda *args: 1 // 0)
    params, guard = SimpleNamespace(extra_args=None), Guard()
    call("text", params, guard)
    assert (params.extra_args, guard.failures) == (None, {"add_request": 1})


@pytest.mark.parametrize(
    ("place", "given", "sent"),
    [
        (ON_RANK_1, {"data_parallel_rank": None}, {"data_parallel_rank": 1}),
        (ON_RANK_1, {"data_parallel_rank": 0}, {"data_parallel_rank": 0}),  # its client says where
        (ON_RANK_1, {}, {}),  # a vLLM that takes none
        ("", {"data_parallel_rank": None}, {"data_parallel_rank": None}),
    ],
)
def test_a_turn_is_sent_to_the_rank_that_its_gate_named(
    place: str, given: dict[str, Any], sent: dict[str, Any]
) -> None:
    assert call("text", SimpleNamespace(), Guard(), gated_scope(place), **given)[1] == sent
