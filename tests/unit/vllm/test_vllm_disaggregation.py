"""vLLM's engines that prefill or decode only: by what both know one turn, and what the one that decodes tells."""

from types import SimpleNamespace
from typing import Any

import pytest
from support.hooked import emitted
from vllm_double import RequestDouble, SchedulerDouble, VllmDouble

from controlplane.core.model.events import DECODE, DECODES, PREFILL, PoolSampled, TurnDecoded, TurnPrefilled
from engine_hooks.engine.settings import Settings
from engine_hooks.vllm.engine_view import EngineView
from engine_hooks.vllm.scheduler_side import PORT_VARIABLE, SchedulerSide

ROLES = {PREFILL: "kv_producer", DECODE: "kv_consumer", "": "kv_both"}
SENT_ON = {"do_remote_decode": True}


def role_of(scheduler: Any, side: str) -> Any:
    scheduler.vllm_config.kv_transfer_config = SimpleNamespace(
        kv_role=ROLES[side], kv_connector="ExampleConnector", kv_connector_extra_config={}
    )
    return scheduler


@pytest.mark.parametrize(
    ("side", "request_id", "params", "most", "handoff"),
    [
        (PREFILL, "chatcmpl-mine-0a1b2c3d", SENT_ON, 1, "chatcmpl-mine"),
        (PREFILL, "chatcmpl-mine-0a1b2c3d", None, 1, "chatcmpl-mine"),  # not every connector takes parameters
        (PREFILL, "chatcmpl-mine-0a1b2c3d", None, 9, ""),  # nobody else decodes it
        (DECODE, "chatcmpl-mine-4e5f6a7b", None, 9, "chatcmpl-mine"),
        (DECODE, "chatcmpl-its-4e5f6a7b", {"remote_request_id": "chatcmpl-mine-0a1b2c3d"}, 9, "chatcmpl-mine"),
        ("", "chatcmpl-mine-0a1b2c3d", SENT_ON, 1, ""),
    ],
)
def test_both_engines_know_a_turn_by_one_name(
    side: str, request_id: str, params: Any, most: int, handoff: str
) -> None:
    request: Any = RequestDouble(request_id, "a")
    request.kv_transfer_params, request.max_tokens = params, most
    assert EngineView(role_of(SchedulerDouble(), side)).handoff_of(request) == handoff


@pytest.mark.parametrize(("side", "why"), [(PREFILL, ""), (DECODE, DECODES)])
def test_the_one_works_as_ever_and_the_other_counts(
    side: str, why: str, vllm: VllmDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PORT_VARIABLE, "8000")
    sent: list[Any] = emitted(monkeypatch)
    plugin = SchedulerSide(Settings())
    scheduler = role_of(SchedulerDouble(), side)
    plugin.scheduler_made(scheduler)
    assert plugin.passive_because == why
    assert plugin.attached is not None
    request: Any = RequestDouble("chatcmpl-mine-0a1b2c3d", "a b")
    request.kv_transfer_params = SENT_ON
    scheduler.requests[request.request_id] = request
    plugin.attached.request_queued(request)
    request.num_output_tokens, request.max_tokens = 5, 1
    plugin.attached.freed(request)
    plugin.attached.idle()
    assert {event.disaggregation for event in sent if isinstance(event, PoolSampled)} == {side}
    kinds = {type(event) for event in sent}
    assert kinds == ({PoolSampled, TurnDecoded} if why else kinds | {TurnPrefilled, PoolSampled})
