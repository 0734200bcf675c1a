"""vLLM behind its front end in Rust: nothing of the plugin is in its HTTP process, and its scheduler obeys alone.

What a gate would hold passes at once; a gate outside names turns in their requests' ids.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from engine_scene import FCFS, NODE, WINDOW_OF_ONE, Bus, playing
from engine_server import EngineServer, Launch
from engine_versions import on
from scheduler_alone import AS_WITH_A_GATE, doctor_of, knows_both
from support.outside_gates import gate_outside
from test_engine_data_parallel import PROGRAMS, RANKS, TURNS, grow, heard_both, moved, places, where_they_ran
from tiny_model import words
from vllm_server import RustFrontEnd

from controlplane.core.model.events import TurnEnded, TurnQueued, TurnSubmitted
from controlplane.core.model.places import place_of
from controlplane.gate.request_ids import Carried, request_id_with
from controlplane.gate.requests import new_turn_id
from controlplane.transport.endpoint import Endpoint, write_endpoint

pytestmark = on("vllm")


@pytest.fixture(scope="module")
def has_front_end(engine_env: Path) -> None:
    (packages,) = engine_env.glob("lib/python*/site-packages")
    if not (binary := packages / "vllm" / "vllm-rs").exists():
        pytest.skip(f"no {binary}: scripts/engine_env.py --version vllm takes it from the wheel for GPUs")


@pytest.fixture(scope="module")
def rust_engine(launch: Launch, has_front_end: None) -> Iterator[EngineServer]:
    yield from launch("rust", server_class=RustFrontEnd)


@pytest.fixture(scope="module")
def rust_ranks(launch: Launch, has_front_end: None) -> Iterator[EngineServer]:
    """The engine with two data-parallel ranks."""
    yield from launch("rust-ranks", "--data-parallel-size", str(RANKS), server_class=RustFrontEnd)


@AS_WITH_A_GATE
async def test_what_the_scheduler_alone_can_do_it_does(
    as_with_a_gate: Callable[[EngineServer, Bus], Awaitable[None]], rust_engine: EngineServer, bus: Bus
) -> None:
    await as_with_a_gate(rust_engine, bus)


async def test_doctor_and_daemon_say_which_half_works(rust_engine: EngineServer, bus: Bus) -> None:
    daemon = bus.daemon()
    async with playing(rust_engine, bus) as scene:
        await scene.chat("unasked", "w1")
        found = await doctor_of(daemon, bus, rust_engine)
        place = f"{NODE}/engine-{rust_engine.port}"
        assert found["no gate"]["found"].startswith(f"no gate is before {place}: ")
        assert (found["gate"]["state"], found["scheduler"]["state"]) == ("look", "ok")
        assert "vLLM's Rust front end has no place for one" in found["gate"]["found"]
        assert found["scheduler"]["found"].startswith(f"at work (events, pins, order): {place}, heard ")
    assert "penstock: no gate in this server: vLLM's Rust front end has no place" in rust_engine.log


async def test_a_gate_outside_names_turns_and_a_body_overrules_nothing(rust_engine: EngineServer, bus: Bus) -> None:
    async with playing(rust_engine, bus, FCFS) as scene:
        for path, asks in (
            ("chat/completions", {"messages": [{"role": "user", "content": "w1"}]}),
            ("completions", {"prompt": "w1"}),
        ):
            carried = Carried(
                turn_id=new_turn_id(), program_id=f"\N{LATIN SMALL LETTER U WITH DIAERESIS}ber {path}"
            )
            claims = {"session_id": "other", "request_id": "other", "vllm_xargs": {"penstock": {"program_id": "x"}}}
            body = {"model": "tiny", "max_tokens": 2, **asks, **claims}
            reply = await scene.post(f"/v1/{path}", body, x_request_id=request_id_with(carried, "mine"))
            assert reply.status == 200
            ended = await scene.until(TurnEnded, turn_id=carried.turn_id)
            assert ended.program_id == carried.program_id
        assert (await scene.chat("named", "w2", vllm_xargs={"penstock": {"program_id": "x"}})).status == 200
        await scene.until(TurnEnded, program_id="named")
        assert not [event for event in scene.heard(TurnSubmitted) if event.program_id in ("other", "x")]


async def test_the_gate_outside_holds_turns_and_the_scheduler_tells_of_the_same(
    rust_engine: EngineServer, bus: Bus, tmp_path: Path
) -> None:
    """Before a daemon that gives out one slot."""
    daemon, log = bus.daemon(WINDOW_OF_ONE), tmp_path / "gate.log"
    write_endpoint(NODE, Endpoint(url=bus.server.url, pid=bus.server.pid), daemon.folder)
    async with playing(rust_engine, bus) as scene:
        with gate_outside(rust_engine.url, daemon.folder, log, "--node", NODE) as (scene.url, _):
            await knows_both(scene, log)
            claims = {"session_id": "other", "is_last_step": True}
            asked = scene.chat("first", words(9300, 60), output_tokens=200, **claims)
            first = asyncio.ensure_future(asked)
            await scene.until(TurnSubmitted, program_id="first")
            second = await scene.chat("second", words(9301, 60), stream=True, is_last_step=True)
            assert (second.status, (await first).status) == (200, 200)
            queued = await scene.until(TurnQueued, program_id="second")
            await scene.until(TurnEnded, program_id="second", turn_id=queued.turn_id)
            (begun,) = scene.heard(TurnSubmitted, program_id="second")
            assert place_of(begun.publisher) == f"{NODE}/engine-{rust_engine.port}", "nobody else tells of it"
            assert begun.at_ns > (await scene.until(TurnEnded, program_id="first")).at_ns, "it was held"


async def test_the_gate_outside_sends_programs_to_the_rank_that_has_their_context(
    rust_ranks: EngineServer, bus: Bus, tmp_path: Path
) -> None:
    """By the header that the front end takes: it would send each turn where least is to do."""
    daemon, log = bus.daemon(), tmp_path / "gate.log"
    write_endpoint(NODE, Endpoint(url=bus.server.url, pid=bus.server.pid), daemon.folder)
    async with playing(rust_ranks, bus) as scene:
        await heard_both(scene, rust_ranks)
        with gate_outside(rust_ranks.url, daemon.folder, log, "--node", NODE) as (scene.url, _):
            await knows_both(scene, log)
            names = [f"stays-{number}" for number in range(PROGRAMS)]
            found = await asyncio.gather(*(grow(scene, name, 9500 + 10 * n) for n, name in enumerate(names)))
            ran = await where_they_ran(scene, "stays")
        assert moved(ran) == (0, PROGRAMS * (TURNS - 1))
        assert {place for turns in ran.values() for place in turns} == set(places(rust_ranks)), "both have work"
        assert all(cached > 0 for each in found for cached in each[1:])
