"""How an identity gets into the sampling parameters that vLLM hands to its scheduler."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.gate import GatedRequest, Identity, Ticket
from controlplane.gate.tickets import Entered
from engine_hooks.guard import Guard
from engine_hooks.vllm import carrier as module
from engine_hooks.vllm.carrier import Carry, label, labelling

GATED = {
    "program_id": "p",
    "penstock_turn": "t-1",
    "penstock_parent": "root",
    "penstock_trace": "00-1-2-01",
}


def gated(place: str = "") -> dict[str, Any]:
    request = GatedRequest(
        identity=Identity(program_id="p", parent_id="root"),
        ticket=Ticket(turn_id="t-1", program_id="p", trace="00-1-2-01"),
        body={},
        entered=Entered(hold_ns=0, reason=""),
        place=place,
    )
    return {"type": "http", "headers": [], "penstock": request}


def labelled(extra_args: Any, scope: Any) -> Any:
    params = SimpleNamespace(extra_args=extra_args)
    label(params, scope)
    return params.extra_args


@pytest.mark.parametrize("extra_args", [None, {}])
def test_a_gated_turn_carries_program_turn_parent_and_its_clients_span(extra_args: Any) -> None:
    assert labelled(extra_args, gated()) == {"penstock": GATED}


def test_what_the_client_sent_stays_and_is_not_changed_in_place() -> None:
    sent = {"mine": 1}
    assert labelled(sent, gated()) == {"mine": 1, "penstock": GATED}
    assert sent == {"mine": 1}


@pytest.mark.parametrize("scope", [None, {"headers": []}])
def test_what_a_client_wrote_under_our_name_is_taken_out(scope: Any) -> None:
    assert labelled({"mine": 1, "penstock": {"penstock_turn": "forged"}}, scope) == {"mine": 1}


def test_without_a_gate_headers_and_the_clients_own_arguments_name_the_program() -> None:
    headers = [(b"x-session-id", b"s")]
    assert labelled(None, {"headers": headers}) == {"penstock": {"program_id": "s"}}
    named = labelled({"program_id": "of the body"}, {"headers": headers})
    assert named == {"program_id": "of the body", "penstock": {"program_id": "of the body"}}


def test_a_request_that_names_nobody_is_left_alone() -> None:
    assert labelled(None, {"headers": []}) is None


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

    asyncio.run(Carry(handler)(scope or gated(), nothing, nothing))  # type: ignore[arg-type]
    return given


def test_what_a_handler_asks_of_the_engine_is_labelled_with_its_request() -> None:
    params = SimpleNamespace(extra_args=None)
    prompt = SimpleNamespace(sampling_params=SimpleNamespace(extra_args=None))
    given = call(prompt, params, Guard(), priority=1)
    assert given == [("client", "r", prompt, params), {"priority": 1}]
    assert params.extra_args == prompt.sampling_params.extra_args == {"penstock": GATED}


def test_a_failure_leaves_the_request_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(module, "label", fail)
    params, guard = SimpleNamespace(extra_args=None), Guard()
    call("text", params, guard)
    assert (params.extra_args, guard.failures) == (None, {"add_request": 1})


@pytest.mark.parametrize(
    ("place", "given", "sent"),
    [
        ("node/engine-8000-dp1", {"data_parallel_rank": None}, {"data_parallel_rank": 1}),
        ("node/engine-8000-dp1", {"data_parallel_rank": 0}, {"data_parallel_rank": 0}),  # its client says where
        ("node/engine-8000-dp1", {}, {}),  # a vLLM that takes none
        ("", {"data_parallel_rank": None}, {"data_parallel_rank": None}),
    ],
)
def test_a_turn_is_sent_to_the_rank_that_its_gate_named(
    place: str, given: dict[str, Any], sent: dict[str, Any]
) -> None:
    assert call("text", SimpleNamespace(), Guard(), gated(place), **given)[1] == sent


def test_a_request_without_such_parameters_passes() -> None:
    assert call("text", SimpleNamespace(), Guard())
