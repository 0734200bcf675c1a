"""Disaggregated prefill: one engine is home and obeys, the other is counted, and a turn of both is one."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disaggregated import Apart, apart
from engine_scene import NODE, TIMEOUT_S, WINDOW_OF_ONE, Bus, Scene, playing
from engine_server import Launch
from engine_versions import KIND, on
from scheduler_alone import knows_both
from support.daemon_process import eventually
from support.outside_gates import gate_outside
from tiny_model import words

from controlplane.core.model.commands import Retain
from controlplane.core.model.events import (
    DECODES,
    CommandApplied,
    CommandRejected,
    FirstToken,
    PoolSampled,
    TurnDecoded,
    TurnEnded,
    TurnPrefilled,
    TurnQueued,
    TurnSubmitted,
)
from controlplane.core.model.places import place_of
from controlplane.core.model.types import seconds
from controlplane.transport.endpoint import Endpoint, write_endpoint

PROMPT_TOKENS, OUTPUT_TOKENS = 600, 8


@pytest.fixture(scope="module")
def engines(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    yield from apart(launch, tmp_path_factory.mktemp("handed-over"))


def place(engine: Any) -> str:
    return f"{NODE}/engine-{engine.port}"


async def heard_both(scene: Scene, engines: Apart) -> None:
    for at in (place(engines.prefill), place(engines.decode)):
        await scene.until(PoolSampled, where=lambda event, at=at: place_of(event.publisher) == at)


def rows(daemon: Any, what: str) -> dict[str, Any]:
    """Of the daemon's programs or engines, by name."""
    said = json.loads(daemon.penstock(what, "--json").stdout)
    return {row.get("program_id") or row["place"]: row for row in (said if isinstance(said, list) else said[what])}


async def test_a_turn_of_two_requests_is_one_turn(engines: Apart, bus: Bus) -> None:
    bus.announce(engines.decode)
    daemon = bus.daemon('preset = "penstock"\n')
    async with playing(engines.prefill, bus) as scene:
        await heard_both(scene, engines)
        replies = await engines.turn(scene, "apart", words(9600, PROMPT_TOKENS))
        assert [reply.status for reply in replies] == [200, 200]
        prefilled = await scene.until(TurnPrefilled, program_id="apart")
        decoded = await scene.until(TurnDecoded, handoff=prefilled.handoff)
        assert (place_of(prefilled.publisher), place_of(decoded.publisher)) == tuple(
            place(each) for each in (engines.prefill, engines.decode)
        )
        assert (prefilled.prompt_tokens, decoded.output_tokens) == (PROMPT_TOKENS, OUTPUT_TOKENS)
        assert decoded.ok and prefilled.service_ns > 0 < decoded.service_ns
        counts = [len(scene.heard(kind, program_id="apart")) for kind in (TurnSubmitted, FirstToken, TurnEnded)]
        assert counts == [1, 1, 0], "its end is the daemon's to make"

        async def one() -> bool:
            row = (await asyncio.to_thread(rows, daemon, "programs")).get("apart", {})
            return bool(row.get("turns") == 1 and row["context_tokens"] == PROMPT_TOKENS + OUTPUT_TOKENS)

        await eventually(one, what="a program of one turn", timeout_s=TIMEOUT_S)
        found = await asyncio.to_thread(rows, daemon, "engines")
        assert found[place(engines.prefill)]["passive"] == ""
        assert found[place(engines.decode)]["passive"] == DECODES


async def test_the_prefill_engine_keeps_what_it_is_told_to_and_the_other_answers_nothing(
    engines: Apart, bus: Bus
) -> None:
    bus.announce(engines.decode)
    async with playing(engines.prefill, bus, 'preset = "fcfs"\n') as scene:
        await heard_both(scene, engines)
        texts = {name: words(seed, PROMPT_TOKENS) for seed, name in enumerate(("kept", "left"), 9610)}
        for name, text in texts.items():
            await engines.turn(scene, name, text)
            await scene.until(TurnPrefilled, program_id=name)
        await scene.obeyed(Retain(program_id="kept", ttl_ns=seconds(600)))
        for number in range(8):
            await engines.turn(scene, f"filler-{number}", words(9620 + number, PROMPT_TOKENS))
        engines.forget_files()
        cached = {
            name: (await engines.turn(scene, name, f"{text} w1"))[0].cached_tokens for name, text in texts.items()
        }
        assert cached["kept"] >= engines.prefill.whole_blocks(PROMPT_TOKENS) > cached["left"] + PROMPT_TOKENS // 2
        answers = [*scene.heard(CommandApplied), *scene.heard(CommandRejected)]
        assert {place_of(answer.publisher) for answer in answers if "/engine-" in answer.publisher} == {
            place(engines.prefill)
        }


@on("sglang")
async def test_a_gate_before_the_router_finds_the_prefill_engine_and_holds_turns_until_others_are_decoded(
    engines: Apart, bus: Bus, tmp_path: Path
) -> None:
    """Before a daemon that gives out one slot."""
    bus.announce(engines.decode)
    daemon, log = bus.daemon(WINDOW_OF_ONE), tmp_path / "gate.log"
    write_endpoint(NODE, Endpoint(url=bus.server.url, pid=bus.server.pid), daemon.folder)
    async with playing(engines.prefill, bus) as scene:
        await heard_both(scene, engines)
        async with engines.router(scene._http) as url:
            with gate_outside(url, daemon.folder, log, "--node", NODE) as (scene.url, _):
                await knows_both(scene, log)
                asked = scene.chat("first", words(9640, 60), output_tokens=200, is_last_step=True)
                first = asyncio.ensure_future(asked)
                begun = await scene.until(TurnSubmitted, program_id="first")
                second = await scene.chat("second", words(9641, 60), is_last_step=True)
                assert (second.status, (await first).status) == (200, 200)
                queued = await scene.until(TurnQueued, program_id="second")
                later = await scene.until(TurnSubmitted, program_id="second")
                assert later.turn_id == queued.turn_id, "named through the router"
                handed_over = await scene.until(TurnPrefilled, turn_id=begun.turn_id)
                decoded = await scene.until(TurnDecoded, handoff=handed_over.handoff)
                assert later.at_ns > decoded.at_ns > handed_over.at_ns, "it was held"
                told = {place_of(event.publisher) for event in scene.heard(TurnSubmitted)}
                assert told == {place(engines.prefill)}, "nobody else tells of turns"


async def test_health_and_doctor_say_which_side_does_what(engines: Apart, bus: Bus) -> None:
    bus.announce(engines.decode)
    daemon = bus.daemon()

    def doctor(engine: Any) -> dict[str, dict[str, str]]:
        said = daemon.penstock("doctor", "--nats", bus.server.url, "--engine", engine.url, "--json")
        return {finding["what"]: finding for finding in json.loads(said.stdout)}

    async with playing(engines.prefill, bus) as scene:
        await heard_both(scene, engines)
        health = await scene.penstock()
        assert health["scheduler"]["passive_because"] == ""
        found = await asyncio.to_thread(doctor, engines.prefill)
        assert found["plugin"]["state"] == "ok"
        if KIND.name == "sglang":
            assert "before their router" in found["gate"]["found"]
        found = await asyncio.to_thread(doctor, engines.decode)
        assert (found["plugin"]["state"], found["plugin"]["found"]) == ("ok", DECODES)
