"""Disaggregated prefill: one engine is home and obeys, the other is counted, and a turn of both is one."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from disaggregated import Apart, apart
from engine_scene import NODE, TIMEOUT_S, Bus, Scene, play
from engine_server import Launch
from engine_versions import KIND
from support.daemon_process import eventually
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
    TurnSubmitted,
)
from controlplane.core.model.places import place_of
from controlplane.core.model.types import seconds

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


def test_a_turn_of_two_requests_is_one_turn(engines: Apart, bus: Bus) -> None:
    bus.announce(engines.decode)
    daemon = bus.daemon('preset = "penstock"\n')

    async def story(scene: Scene) -> None:
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

    play(story, engines.prefill, bus)


def test_the_prefill_engine_keeps_what_it_is_told_to_and_the_other_answers_nothing(
    engines: Apart, bus: Bus
) -> None:
    bus.announce(engines.decode)

    async def story(scene: Scene) -> None:
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

    play(story, engines.prefill, bus, 'preset = "fcfs"\n')


def test_health_and_doctor_say_which_side_does_what(engines: Apart, bus: Bus) -> None:
    bus.announce(engines.decode)
    daemon = bus.daemon()

    def doctor(engine: Any) -> dict[str, dict[str, str]]:
        said = daemon.penstock("doctor", "--nats", bus.server.url, "--engine", engine.url, "--json")
        return {finding["what"]: finding for finding in json.loads(said.stdout)}

    async def story(scene: Scene) -> None:
        await heard_both(scene, engines)
        health = await scene.penstock()
        assert health["scheduler"]["passive_because"] == ""
        found = await asyncio.to_thread(doctor, engines.prefill)
        assert found["plugin"]["state"] == "ok"
        if KIND.name == "sglang":
            assert "before their router" in found["gate"]["found"]
        found = await asyncio.to_thread(doctor, engines.decode)
        assert (found["plugin"]["state"], found["plugin"]["found"]) == ("ok", DECODES)

    play(story, engines.prefill, bus)
