"""What clients end a program by, where Envoy carries their requests."""

import json

import pytest
from support.pickers import asking, picker
from test_picker_streams import A, chat, reading_bodies

from controlplane.core.model.events import CacheFlushed, ProgramEnded
from controlplane.gate.endings import ENDING_PATHS
from controlplane.gate.flushes import WEIGHTS_UPDATED


@pytest.mark.parametrize("path", ENDING_PATHS)
async def test_a_program_that_the_gate_knows_is_ended(path: str) -> None:
    async with picker(A, governed=False) as it, asking(it.port) as ask:
        turn = await reading_bodies(ask)
        await turn.body(chat(session_id="s"))
        await turn.reply()
        asked = await reading_bodies(ask, {":path": path})
        await asked.body(json.dumps({"session_id": "s"}).encode())
        reply = await asked.reply()
        assert [event.program_id for event in it.of(ProgramEnded)] == ["s"]
        if ENDING_PATHS[path]:
            assert reply.WhichOneof("response") == "request_body", "it goes on to the engine"
        else:
            answer = reply.immediate_response
            assert (answer.status.code, json.loads(answer.body)) == (200, {"program_id": "s", "ended": True})


async def test_a_flushed_cache_is_told_of_the_engine_that_is_asked_and_new_weights_of_all() -> None:
    async with picker(A, governed=False) as it, asking(it.port) as ask:
        asked = await reading_bodies(ask, {":path": "/flush_cache"})
        await asked.body(b"{}")
        assert (await asked.reply()).WhichOneof("response") == "request_body", "it goes on to the engine"
        ours = ask()
        await ours.headers({":path": WEIGHTS_UPDATED})
        assert (await ours.reply()).immediate_response.status.code == 200
        assert [each.replica for each in it.of(CacheFlushed)] == [A.place, ""]


async def test_it_may_be_named_in_the_query_of_a_request_without_a_body() -> None:
    async with picker(A, governed=False) as it, asking(it.port) as ask:
        turn = await reading_bodies(ask)
        await turn.body(chat(session_id="s"))
        await turn.reply()
        asked = ask()
        await asked.headers({":path": "/finish_session?session_id=s"}, end=True)
        assert (await asked.reply()).immediate_response.status.code == 200
        assert [event.program_id for event in it.of(ProgramEnded)] == ["s"]
