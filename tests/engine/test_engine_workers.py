"""SGLang with several tokenizer workers: the plugin is in none of them, and its scheduler obeys alone.

What a gate would hold passes at once; a gate outside names turns in a header that reaches the scheduler.
"""

from collections.abc import Awaitable, Callable, Iterator

import pytest
from engine_scene import FCFS, Bus, playing
from engine_server import EngineServer, Launch
from engine_versions import on
from scheduler_alone import AS_WITH_A_GATE, doctor_of

from controlplane.core.model.events import TurnEnded, TurnSubmitted
from controlplane.gate.request_ids import Carried, request_id_with
from controlplane.gate.requests import new_turn_id

pytestmark = on("sglang")


class SeveralWorkers(EngineServer):
    """One SGLang server that takes requests in two processes."""

    has_gate = False
    session_header = "x-smg-routing-key"


@pytest.fixture(scope="module")
def workers(launch: Launch) -> Iterator[EngineServer]:
    yield from launch("workers", "--tokenizer-worker-num", "2", server_class=SeveralWorkers)


@AS_WITH_A_GATE
async def test_what_the_scheduler_alone_can_do_it_does(
    as_with_a_gate: Callable[[EngineServer, Bus], Awaitable[None]], workers: EngineServer, bus: Bus
) -> None:
    await as_with_a_gate(workers, bus)


async def test_doctor_and_log_say_which_half_works(workers: EngineServer, bus: Bus) -> None:
    daemon = bus.daemon()
    async with playing(workers, bus) as scene:
        await scene.chat("unasked", "w1")
        found = await doctor_of(daemon, bus, workers)
        assert (found["gate"]["state"], found["scheduler"]["state"]) == ("look", "ok")
        assert "SGLang with several tokenizer workers has no place for one" in found["gate"]["found"]
    assert "penstock: no gate in this server: in 2 tokenizer workers SGLang loads no plugin" in workers.log


async def test_a_gate_outside_names_turns_and_a_body_overrules_nothing(workers: EngineServer, bus: Bus) -> None:
    async with playing(workers, bus, FCFS) as scene:
        asked = {"messages": [{"role": "user", "content": "w1"}], "max_tokens": 2, "model": "default"}
        claims = {"custom_params": {"program_id": "x", "penstock_turn": "x", "penstock_parent": "x"}}
        for path, asks in (
            ("chat/completions", {**asked, **claims, "session_id": "other", "rid": new_turn_id()}),
            ("completions", {"model": "default", "prompt": "w1", "max_tokens": 2, **claims}),
            ("messages", asked),
        ):
            carried = Carried(
                turn_id=new_turn_id(), program_id=f"\N{LATIN SMALL LETTER U WITH DIAERESIS}ber {path}"
            )
            reply = await scene.post(f"/v1/{path}", asks, x_smg_routing_key=request_id_with(carried, "mine"))
            assert reply.status == 200, path
            ended = await scene.until(TurnEnded, turn_id=carried.turn_id)
            assert ended.program_id == carried.program_id
        reply = await scene.post("/v1/chat/completions", {**asked, **claims})
        ended = await scene.until(TurnEnded, program_id="x")
        assert (reply.status, ended.turn_id == "x") == (200, False), "it names a program, and nothing else"
        assert not [event for event in scene.heard(TurnSubmitted) if event.program_id == "other"]
