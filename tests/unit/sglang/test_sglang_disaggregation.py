"""SGLang's servers that prefill or decode only: what each tells, and who names turns there."""

from types import SimpleNamespace
from typing import Any

import pytest
from engine_double import Engine
from scheduler_double import RequestDouble, SchedulerDouble
from sglang_double import GenerateReqInput, SglangDouble
from support.hooked import gated_scope

from controlplane.core.model.commands import Retain
from controlplane.core.model.events import (
    DECODE,
    DECODES,
    PREFILL,
    CommandApplied,
    FirstToken,
    PoolSampled,
    TurnDecoded,
    TurnEnded,
    TurnPrefilled,
    TurnSubmitted,
)
from controlplane.core.model.types import seconds
from controlplane.gate.request_ids import Carried, request_id_with
from controlplane.gate.requests import new_turn_id
from engine_hooks.engine.settings import PluginMode
from engine_hooks.guard import Guard
from engine_hooks.sglang.carrier import carrier
from engine_hooks.sglang.engine_view import EngineView
from engine_hooks.sglang.targets import DECODE_STEP, PREFILL_STEP, SCHEDULER


def apart(sglang: SglangDouble, monkeypatch: pytest.MonkeyPatch, mode: str) -> Engine:
    engine = Engine(sglang, monkeypatch, PluginMode.ON)
    engine.scheduler = engine.view.scheduler = SchedulerDouble()
    engine.scheduler.server_args = SimpleNamespace(disaggregation_mode=mode)
    engine.view.disaggregation = mode
    engine.side.scheduler_made(None, None, engine.scheduler)
    engine.sent.clear()
    return engine


def handed_over(rid: str, room: int | None = 7, host: str = "10.0.0.1") -> RequestDouble:
    request = RequestDouble(rid, 100, program="p")
    request.bootstrap_room, request.bootstrap_host = room, host  # type: ignore[attr-defined]
    return request


@pytest.mark.parametrize(
    ("mode", "step", "told"),
    [
        (PREFILL, PREFILL_STEP, [TurnSubmitted, FirstToken, TurnPrefilled, PoolSampled]),
        (DECODE, DECODE_STEP, [TurnDecoded, PoolSampled]),
    ],
)
def test_each_tells_its_own_part(
    mode: str, step: str, told: list[type], sglang: SglangDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = apart(sglang, monkeypatch, mode)
    request = handed_over("r")
    engine.call(f"{SCHEDULER}_add_request_to_queue", engine.scheduler, request)
    request.output_ids = [1, 2]
    engine.call(f"{SCHEDULER}process_batch_result", engine.scheduler, SimpleNamespace(reqs=[request]))
    request.is_finished = True
    engine.attached.turn_ended(request)
    engine.attached.on_command(Retain(command_id=1, program_id="p", ttl_ns=seconds(9)))
    engine.call(step, engine.scheduler, None)
    events: list[Any] = [event for event in engine.sent if type(event) is not CommandApplied]
    kinds = [type(event) for event in events if "Command" not in type(event).__name__]
    assert kinds == told
    assert [event.handoff for event in events if isinstance(event, TurnPrefilled | TurnDecoded)] == ["7"]
    (sample,) = [event for event in events if isinstance(event, PoolSampled)]
    assert (sample.disaggregation, sample.reason) == (mode, DECODES if mode == DECODE else "")
    answered = [event for event in engine.sent if "Command" in type(event).__name__]
    assert bool(answered) is (mode == PREFILL), "a decode engine is told nothing"
    assert engine.side.account()["passive_because"] == sample.reason  # type: ignore[index]


def test_a_prefill_that_failed_and_a_servers_own_request_are_handed_to_nobody(
    sglang: SglangDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = apart(sglang, monkeypatch, PREFILL)
    monkeypatch.setattr(engine.view, "was_aborted", lambda request: request.rid == "failed")
    for request in (handed_over("failed"), handed_over("own", host="2.2.2.2"), handed_over("no router", room=None)):
        engine.attached.turn_queued(request)
        engine.attached.turn_ended(request)
    assert [event.ok for event in engine.sent if isinstance(event, TurnEnded)] == [False, True, True]


def test_a_request_on_its_way_between_engines_is_not_taken_for_gone() -> None:
    scheduler: Any = SchedulerDouble()
    scheduler.server_args = SimpleNamespace(disaggregation_mode=DECODE)
    waits = [SimpleNamespace(req=handed_over(rid)) for rid in ("queued", "thrown out")]
    scheduler.disagg_decode_prealloc_queue = SimpleNamespace(queue=waits[:1], retracted_queue=[waits[1].req])
    scheduler.disagg_prefill_inflight_queue = [handed_over("sent")]
    assert EngineView(scheduler).live_request_ids() == {"queued", "thrown out", "sent"}


def test_where_no_gate_can_be_turns_are_named_by_the_one_before_the_router() -> None:
    carried = Carried(turn_id=new_turn_id(), program_id="outside")
    for mode, named in ((PREFILL, ("outside", carried.turn_id)), ("null", ("p", "t-1"))):
        obj = GenerateReqInput()
        header = (b"x-request-id", request_id_with(carried).encode())
        request = SimpleNamespace(scope={**gated_scope(), "headers": [header]})
        manager = SimpleNamespace(server_args=SimpleNamespace(disaggregation_mode=mode))
        carrier(GenerateReqInput, Guard())(lambda *given: given, manager, obj, request)
        labels = obj.sampling_params["custom_params"]
        assert (labels["program_id"], labels["penstock_turn"]) == named
