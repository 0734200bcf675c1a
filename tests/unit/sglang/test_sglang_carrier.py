"""How an identity gets into the sampling parameters that SGLang hands to its scheduler."""

from types import SimpleNamespace
from typing import Any

import pytest
from sglang_double import GenerateReqInput
from support.hooked import GATED, ON_RANK_1, gated_scope

from engine_hooks.guard import Guard
from engine_hooks.sglang.carrier import carrier, label

UNGATED = {"headers": [(b"x-session-id", b"s")]}


@pytest.mark.parametrize(
    ("sent", "session", "scope", "labelled"),
    [
        (None, None, gated_scope(), {"custom_params": GATED}),
        ({"custom_params": None}, None, gated_scope(), {"custom_params": GATED}),
        (
            {"temperature": 0.5, "custom_params": {"thinking_budget": 3, "program_id": "of the body"}},
            None,
            gated_scope(),
            {"temperature": 0.5, "custom_params": {"thinking_budget": 3, **GATED}},
        ),
        (  # every request of a batch
            [{"n": 1}, {"custom_params": {"mine": 1}}],
            None,
            gated_scope(),
            [{"n": 1, "custom_params": GATED}, {"custom_params": {"mine": 1, **GATED}}],
        ),
        (None, None, UNGATED, {"custom_params": {"program_id": "s"}}),
        (None, "of the body", {"headers": []}, {"custom_params": {"program_id": "of the body"}}),
        (  # a client cannot name a turn of its own
            {"custom_params": {name: "forged" for name in GATED if name != "program_id"} | {"mine": 1}},
            None,
            {"headers": []},
            {"custom_params": {"mine": 1}},
        ),
    ],
)
def test_labels_stand_beside_what_the_client_sent(
    sent: Any, session: str | None, scope: Any, labelled: Any
) -> None:
    before = repr(sent)
    obj = GenerateReqInput(sent, session)
    label(obj, scope)
    assert obj.sampling_params == labelled
    assert repr(sent) == before, "it is not changed in place"


@pytest.mark.parametrize("params", ["text", 7, {"custom_params": "text"}, {"custom_params": [1]}])
def test_what_sglang_will_refuse_is_left_to_it(params: Any) -> None:
    obj = GenerateReqInput(params)
    label(obj, gated_scope())
    assert obj.sampling_params is params


def test_what_names_nobody_is_left_alone() -> None:
    params = {"temperature": 1.0}
    obj = GenerateReqInput(params)
    label(obj, {"headers": []})
    assert obj.sampling_params is params


@pytest.mark.parametrize(("place", "chosen", "sent"), [(ON_RANK_1, None, 1), (ON_RANK_1, 0, 0), ("", None, None)])
def test_a_turn_is_sent_to_the_rank_that_its_gate_named_unless_its_client_has(
    place: str, chosen: int | None, sent: int | None
) -> None:
    obj = GenerateReqInput()
    obj.routed_dp_rank = chosen
    label(obj, gated_scope(place))
    assert obj.routed_dp_rank == sent


def test_the_hook_returns_what_the_engine_returns() -> None:
    obj, request = GenerateReqInput(), SimpleNamespace(scope=gated_scope())
    hook = carrier(GenerateReqInput, Guard())
    returned = hook(lambda *given, **more: (given, more), "manager", obj, request=request, more=1)
    assert returned == (("manager", obj, request), {"more": 1})
    assert obj.sampling_params == {"custom_params": GATED}


@pytest.mark.parametrize(
    ("request_of_http", "failures"),
    [
        (None, {}),
        (object(), {}),
        (SimpleNamespace(scope=None), {}),
        (SimpleNamespace(scope={}), {"generate_request": 1}),
    ],
)
def test_a_request_that_cannot_be_labelled_passes_as_it_is(request_of_http: Any, failures: dict[str, int]) -> None:
    guard = Guard()
    obj = GenerateReqInput({"n": 2})
    assert carrier(GenerateReqInput, guard)(lambda *_: "served", "manager", obj, request_of_http) == "served"
    assert (obj.sampling_params, guard.failures) == ({"n": 2}, failures)


def test_what_is_no_generation_is_left_alone() -> None:
    embedding = SimpleNamespace(sampling_params=None)
    carrier(GenerateReqInput, Guard())(lambda *_: None, "manager", embedding, SimpleNamespace(scope=gated_scope()))
    assert embedding.sampling_params is None
