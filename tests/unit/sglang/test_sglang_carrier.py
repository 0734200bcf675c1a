"""How an identity gets into the sampling parameters that SGLang hands to its scheduler."""

from typing import Any

import pytest
from sglang_double import GenerateReqInput

from controlplane.gate import GatedRequest, Identity, Ticket
from controlplane.gate.tickets import Entered
from engine_hooks.guard import Guard
from engine_hooks.sglang.carrier import carrier, label

GATED = {"program_id": "p", "penstock_turn": "t-1"}


class RequestDouble:
    """Starlette's request, as far as the hook looks."""

    def __init__(self, scope: Any) -> None:
        self.scope = scope


def gated(parent_id: str = "", place: str = "", trace: str = "") -> dict[str, Any]:
    request = GatedRequest(
        identity=Identity(program_id="p", parent_id=parent_id),
        ticket=Ticket(turn_id="t-1", program_id="p", trace=trace),
        body={},
        entered=Entered(hold_ns=0, reason=""),
        place=place,
    )
    return {"headers": [], "penstock": request}


def ungated(**headers: str) -> dict[str, Any]:
    return {"headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]}


def labelled(params: Any, scope: dict[str, Any], session_id: str | None = None) -> Any:
    obj = GenerateReqInput(params, session_id)
    label(obj, scope)
    return obj.sampling_params


@pytest.mark.parametrize("params", [None, {}, {"custom_params": None}])
def test_a_gated_turn_carries_program_and_turn(params: Any) -> None:
    assert labelled(params, gated()) == {"custom_params": GATED}


def test_a_child_carries_its_parent() -> None:
    assert labelled(None, gated("root"))["custom_params"] == {**GATED, "penstock_parent": "root"}


def test_a_traced_turn_carries_its_clients_span() -> None:
    assert labelled(None, gated(trace="00-1-2-01"))["custom_params"] == {**GATED, "penstock_trace": "00-1-2-01"}


def test_what_the_client_sent_stays_and_is_not_changed_in_place() -> None:
    sent = {"temperature": 0.5, "custom_params": {"thinking_budget": 3, "program_id": "of the body"}}
    copy = {"temperature": 0.5, "custom_params": dict(sent["custom_params"])}  # type: ignore[call-overload]
    assert labelled(sent, gated()) == {"temperature": 0.5, "custom_params": {"thinking_budget": 3, **GATED}}
    assert sent == copy


@pytest.mark.parametrize(
    ("place", "chosen", "sent"),
    [
        ("node/engine-30000-dp1", None, 1),
        ("node/engine-30000-dp1", 0, 0),  # its client says where
        ("node/engine-30000-dp0", None, 0),
        ("", None, None),
    ],
)
def test_a_turn_is_sent_to_the_rank_that_its_gate_named(place: str, chosen: int | None, sent: int | None) -> None:
    obj = GenerateReqInput()
    obj.routed_dp_rank = chosen
    label(obj, gated(place=place))
    assert obj.routed_dp_rank == sent


def test_every_request_of_a_batch_is_labelled() -> None:
    params = [{"n": 1}, {"custom_params": {"mine": 1}}]
    assert labelled(params, gated()) == [
        {"n": 1, "custom_params": GATED},
        {"custom_params": {"mine": 1, **GATED}},
    ]


@pytest.mark.parametrize("params", ["text", 7, {"custom_params": "text"}, {"custom_params": [1]}])
def test_what_sglang_will_refuse_is_left_to_it(params: Any) -> None:
    assert labelled(params, gated()) is params


def test_without_a_gate_headers_and_body_name_the_program() -> None:
    assert labelled(None, ungated(x_session_id="s"))["custom_params"] == {"program_id": "s"}
    assert labelled(None, ungated(), "body session")["custom_params"] == {"program_id": "body session"}
    scope = ungated(x_penstock_parent_id="root")
    sent = {"custom_params": {"program_id": "mine"}}
    assert labelled(sent, scope)["custom_params"] == {"program_id": "mine"}, "nobody has checked whose child it is"


@pytest.mark.parametrize("headers", [{}, {"x_penstock_program_id": "x" * 300}])
def test_without_a_gate_what_names_nobody_is_left_alone(headers: dict[str, str]) -> None:
    params = {"temperature": 1.0}
    assert labelled(params, ungated(**headers)) is params


def test_a_client_cannot_name_a_turn_of_its_own() -> None:
    sent = {"custom_params": {"penstock_turn": "forged", "penstock_parent": "forged", "mine": 1}}
    sent["custom_params"]["penstock_trace"] = "forged"
    assert labelled(sent, ungated())["custom_params"] == {"mine": 1}
    assert labelled(sent, gated())["custom_params"] == {"mine": 1, **GATED}


def test_the_hook_returns_what_the_engine_returns() -> None:
    def original(manager: Any, obj: Any, request: Any = None, **more: Any) -> Any:
        return ("generator", manager, obj, request, more)

    hook = carrier(GenerateReqInput, Guard())
    obj, request = GenerateReqInput(), RequestDouble(gated())
    assert hook(original, "manager", obj, request=request, more=1) == (
        "generator",
        "manager",
        obj,
        request,
        {"more": 1},
    )
    assert obj.sampling_params == {"custom_params": GATED}


@pytest.mark.parametrize(
    ("request_of_http", "failures"),
    [(None, {}), (object(), {}), (RequestDouble(None), {}), (RequestDouble({}), {"generate_request": 1})],
)
def test_a_request_that_cannot_be_labelled_passes_as_it_is(request_of_http: Any, failures: dict[str, int]) -> None:
    guard = Guard()
    obj = GenerateReqInput({"n": 2})
    assert carrier(GenerateReqInput, guard)(lambda *_: "served", "manager", obj, request_of_http) == "served"
    assert obj.sampling_params == {"n": 2}
    assert guard.failures == failures


def test_what_is_no_generation_is_left_alone() -> None:
    embedding = type("EmbeddingReqInput", (), {"sampling_params": None})()
    carrier(GenerateReqInput, Guard())(lambda *_: None, "manager", embedding, RequestDouble(gated()))
    assert embedding.sampling_params is None
