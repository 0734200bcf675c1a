"""The picker asks an engine's API before it sends a turn on, and tells it of the end, whatever that is."""

import asyncio
import gzip
import json
from collections.abc import Mapping
from typing import Any

import pytest
from support.pickers import Asked, Mode, asking, chosen, picker, until

from controlplane.core.model.commands import Command
from controlplane.core.model.events import Pin, PoolSampled, TurnAbandoned
from controlplane.fleet import engine_turn
from controlplane.fleet.engine_apis import api_maker, has_api_alone
from controlplane.fleet.roster import Engine
from controlplane.gate.bodies import with_fields
from controlplane.gate.tickets import Ticket

A = Engine(place="node-a/engine-1", address="10.0.0.1:1", has_plugin=False)
BODY = b'{"messages": [{"role": "user", "content": "one two"}], "program_id": "p", "seed": 1.10 }\n'


class ApiDouble:
    """An ``EngineApi`` that gives each turn a number, once ``ready`` is set."""

    problem = ""
    yields_to = frozenset({"id_slot"})

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.told: list[tuple[str, str]] = []

    async def run(self) -> None: ...

    async def before_turn(self, ticket: Ticket, path: str) -> Mapping[str, object]:
        self.told.append(("begins", path))
        await self.ready.wait()
        return {"id_slot": 3} if path == "/v1/chat/completions" else {}

    def turn_ended(self, ticket: Ticket) -> None:
        self.told.append(("ended", ticket.program_id))

    def on_command(self, command: Command) -> None: ...

    async def sample(self) -> PoolSampled | None:
        return None

    def pins(self) -> tuple[Pin, ...]:
        return ()


async def asked_with(ask: Any, body: bytes, headers: Mapping[str, str] | None = None) -> Asked:
    asked: Asked = ask(request=Mode.BUFFERED)
    await asked.headers(headers or {})
    assert (await asked.reply()).WhichOneof("response") == "request_headers"
    await asked.body(body)
    return asked


@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_the_fields_go_into_the_body_and_nothing_else_changes(encoding: str) -> None:
    api = ApiDouble()
    api.ready.set()
    async with picker(A, governed=False, more={"engine_api": lambda engine: api}) as it, asking(it.port) as ask:
        headers = {"content-encoding": encoding} if encoding else {}
        asked = await asked_with(ask, gzip.compress(BODY) if encoding else BODY, headers)
        reply = await asked.reply()
        common = reply.request_body.response
        assert common.body_mutation.body == BODY.rstrip()[:-2] + b',"id_slot": 3}'
        assert chosen(reply)[0]["content-length"] == str(len(common.body_mutation.body))
        assert list(common.header_mutation.remove_headers) == ["content-encoding"]
        assert api.told == [("begins", "/v1/chat/completions")]
        await asked.answer_headers(200)
        await asked.finish()
        await until(lambda: ("ended", "p") in api.told, "it hears of the end")


async def test_a_turn_without_fields_goes_as_it_came_and_so_does_one_whose_client_does_it_itself() -> None:
    api = ApiDouble()
    api.ready.set()
    async with picker(A, governed=False, more={"engine_api": lambda engine: api}) as it, asking(it.port) as ask:
        for path, body in (("/v1/messages", BODY), ("/v1/chat/completions", b'{"id_slot": 1, "messages": []}')):
            asked = await asked_with(ask, body, {":path": path})
            assert not (await asked.reply()).request_body.response.HasField("body_mutation")
            await asked.finish()
        assert {path for _, path in api.told} == {"/v1/messages", "p"}, "of the other it hears nothing"


async def test_while_the_engine_is_not_ready_envoy_is_told_so_and_who_leaves_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_turn, "_PATIENCE_S", 0.0)
    api = ApiDouble()
    async with picker(A, governed=False, more={"engine_api": lambda engine: api}) as it, asking(it.port) as ask:
        leaves, stays = await asked_with(ask, BODY), await asked_with(ask, BODY)
        for asked in (leaves, stays):
            assert (await asked.reply()).override_message_timeout.seconds == 3600
        assert not it.turns.told, "no engine has it"
        leaves.call.cancel()
        await until(lambda: ("ended", "p") in api.told, "it hears that the first one left")
        await until(lambda: it.of(TurnAbandoned), "the daemon hears it")
        assert it.gate.health()["running_turns"] == 1
        api.ready.set()
        assert (await stays.reply()).request_body.response.body_mutation.body.endswith(b'"id_slot": 3}')
        await stays.finish()


async def test_fields_are_set_where_a_name_is_there_already_and_in_an_empty_object() -> None:
    for data in (b"{}", b' { "id_slot": 1 } \n', b'{"a": "}"}'):
        told = json.loads(with_fields(data, {"id_slot": 3}))
        assert told == json.loads(data) | {"id_slot": 3}


async def test_an_engines_folder_brings_its_api() -> None:
    for engine, found in (("llamacpp", (True, True)), ("sglang", (True, False)), ("vllm", (False, False))):
        assert (api_maker(engine) is not None, has_api_alone(engine)) == found
    for engine in ("", "nobody", "os.path", "../x"):
        assert api_maker(engine) is None
