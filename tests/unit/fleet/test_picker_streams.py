"""The picker over a gRPC channel, message by message, without Envoy."""

import asyncio
import gzip
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.pickers import Asked, Mode, Picker, asking, chosen, picker, refused, until

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.events import ProgramEnded, ReplyRead, TurnAbandoned, TurnHinted, TurnQueued
from controlplane.core.model.types import seconds
from controlplane.fleet import active_turn
from controlplane.fleet.messages import DESTINATION, SERVICE
from controlplane.fleet.roster import Engine, Standing
from controlplane.gate.usage import Usage

A = Engine(place="node-a/engine-1", address="10.0.0.1:1")
B = Engine(place="node-b/engine-2", address="10.0.0.2:2")
C = Engine(place="node-c/engine-3", address="10.0.0.3:3")
OWN = {"x-penstock-program-id": "p"}


def chat(**more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "one two"}], **more}).encode()


async def has_passed(asked: Asked) -> dict[str, str]:
    """Ask by headers, and return those that come back with the choice."""
    await asked.headers(OWN)
    return await passed(asked)


async def passed(asked: Asked) -> dict[str, str]:
    """The headers that come with the choice, whether it had to wait or not."""
    reply = await asked.reply()
    if reply.HasField("override_message_timeout"):
        reply = await asked.reply()
    return chosen(reply)[0]


async def reading_bodies(ask: Callable[..., Asked], headers: Mapping[str, str] = MappingProxyType({})) -> Asked:
    """A stream whose body may come."""
    asked: Asked = ask(request=Mode.BUFFERED)
    await asked.headers(headers)
    assert (await asked.reply()).WhichOneof("response") == "request_headers"
    return asked


async def test_a_granted_program_goes_at_once_to_its_engine_and_then_to_another() -> None:
    async with picker(A, B) as it, asking(it.port) as ask:
        first = asyncio.ensure_future(has_passed(ask()))
        await until(lambda: it.of(TurnQueued), "it asks")
        it.admit("p", B.place)
        headers = await first
        assert headers[DESTINATION] == f"{B.address},{A.address}"
        asked = ask()
        await asked.headers(OWN)
        reply = await asked.reply()
        assert not reply.HasField("override_message_timeout")
        again, metadata = chosen(reply)
        assert again[DESTINATION] == metadata == f"{B.address},{A.address}"
        assert (
            len(again["x-penstock-turn-id"]) == 32 and again["x-penstock-turn-id"] != headers["x-penstock-turn-id"]
        )
        assert again["x-penstock-program-id"] == "p"
        await asked.answer_headers(200, {"x-penstock-hold-ms": "40"})
        told = chosen(await asked.reply())[0]
        assert told["x-penstock-turn-id"] == again["x-penstock-turn-id"] and told["x-penstock-hold-ms"] == "40"
        await asked.finish()
        await until(lambda: len(it.turns.told) >= 4, "its end is told")
        assert ("first_byte", "p", B.place, 200) in it.turns.told and ("ended", "p", B.place, 200) in it.turns.told


async def test_whoever_waits_tells_envoy_so_and_is_let_in_by_a_grant() -> None:
    async with picker(A, B, hold_ns=seconds(20)) as it, asking(it.port) as ask:
        asked = ask(request=Mode.BUFFERED)
        await asked.headers({"content-length": "99"})
        assert (await asked.reply()).WhichOneof("response") == "request_headers"
        body = chat(program_id="q")
        await asked.body(body)
        assert (await asked.reply()).override_message_timeout.seconds == 3600
        await until(lambda: it.of(TurnQueued), "it asks")
        queued = it.of(TurnQueued)[0]
        assert (queued.program_id, queued.prompt_bytes) == ("q", len("one two"))
        it.admit("q", A.place)
        reply = await asked.reply()
        assert reply.WhichOneof("response") == "request_body"
        headers, metadata = chosen(reply)
        assert headers[DESTINATION] == metadata == f"{A.address},{B.address}"
        assert headers["x-penstock-turn-id"] == queued.turn_id
        assert it.gate.health()["running_turns"] == 1
        await asked.finish()
        await until(lambda: it.gate.health()["running_turns"] == 0, "it has left")


@pytest.mark.parametrize(
    ("headers", "body", "program", "size"),
    [
        ({**OWN, "content-length": "100000"}, chat(), "p", len("one two")),  # measured by its body all the same
        ({"x-session-id": "s"}, chat(program_id="mine"), "mine", len("one two")),
        ({}, json.dumps({"prompt": "one two"}).encode(), "anonymous-", len("one two")),
    ],
)
async def test_a_body_names_and_measures_its_turn(
    headers: Mapping[str, str], body: bytes, program: str, size: int
) -> None:
    async with picker(A) as it, asking(it.port) as ask:
        asked = await reading_bodies(ask, headers)
        await asked.body(body)
        await until(lambda: it.of(TurnQueued), "it asks")
        queued = it.of(TurnQueued)[0]
        assert queued.program_id.startswith(program) and queued.prompt_bytes == size
        it.admit(queued.program_id, A.place)
        assert (await passed(asked))["x-penstock-program-id"] == queued.program_id
        await asked.finish()
        if program == "anonymous-":
            await until(lambda: it.of(ProgramEnded), "a program of its own has ended")


@pytest.mark.parametrize(
    ("body", "answer"),
    [(b"[1, 2", A.address), (chat(pad="x" * 1000), "body_too_large")],
    ids=["no object, as in the middleware", "too large"],
)
async def test_a_body_that_names_no_turn(body: bytes, answer: str) -> None:
    async with picker(A, max_body_bytes=1000) as it, asking(it.port) as ask:
        asked = await reading_bodies(ask)
        await asked.body(body)
        reply = await asked.reply()
        if reply.HasField("immediate_response"):
            status, told, _ = refused(reply)
            assert (status, told["error"]["code"]) == (413, answer)
        else:
            assert reply.WhichOneof("response") == "request_body" and chosen(reply)[0][DESTINATION] == answer


@pytest.mark.parametrize("mode", [Mode.BUFFERED, Mode.FULL_DUPLEX_STREAMED])
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({":path": "/v1/chat/completions/"}, ""),
        ({":path": "/v1/chat/completion%73?a=b"}, ""),
        ({"content-encoding": "gzip"}, ""),
        ({"content-encoding": "zstd"}, "unsupported_encoding"),
        ({"x-penstock-program-id": "{{session_id}}"}, ""),
    ],
)
async def test_a_turn_is_one_however_it_is_written(mode: int, headers: dict[str, str], code: str) -> None:
    """It is sized as it is read, and goes on to the engine as it came."""
    async with picker(A) as it, asking(it.port) as ask:
        asked = ask(request=mode)
        await asked.headers(headers)
        if code:
            status, told, _ = refused(await asked.reply())
            assert (status, told["error"]["code"]) == (415, code)
            return
        if mode == Mode.BUFFERED:
            await asked.reply()
        body = chat(program_id="p")
        sent = gzip.compress(body) if "content-encoding" in headers else body
        await asked.body(sent[:20], end=False)
        await asked.body(sent[20:])
        await until(lambda: it.of(TurnQueued), "it asks")
        queued = it.of(TurnQueued)[0]
        assert (queued.program_id, queued.prompt_bytes) == ("p", len("one two"))
        it.admit("p", A.place)
        assert (await passed(asked))[DESTINATION] == A.address
        if mode != Mode.BUFFERED:
            assert (await asked.reply()).request_body.response.body_mutation.streamed_response.body == sent
        await asked.finish()


@pytest.mark.parametrize("headers", [{":method": "GET", ":path": "/v1/models?x=1"}, {":path": "/tokenize"}])
async def test_what_is_no_turn_passes_at_once_to_any_engine(headers: Mapping[str, str]) -> None:
    async with picker(A, B) as it, asking(it.port) as ask:
        firsts = set()
        for _ in range(4):
            asked = ask(request=Mode.BUFFERED)
            await asked.headers(headers, end=":method" in headers)
            own, metadata = chosen(await asked.reply())
            assert own[DESTINATION] == metadata and "x-penstock-turn-id" not in own
            firsts.add(metadata.partition(",")[0])
            await asked.answer_headers(200)
            assert chosen(await asked.reply())[0] == {}
            await asked.finish()
        assert firsts == {A.address, B.address}
        assert it.server.counters.passed == 4 and not it.turns.told


async def test_refusals_have_the_gates_words() -> None:
    async with picker(A, B, max_held=1) as it, asking(it.port) as ask:
        waiting = ask()
        await waiting.headers(OWN)
        await until(lambda: it.of(TurnQueued), "one waits")
        asked = ask()
        await asked.headers({"x-penstock-program-id": "other"})
        reply = await asked.reply()
        while not reply.HasField("immediate_response"):
            reply = await asked.reply()
        status, told, headers = refused(reply)
        assert (status, told["error"]["code"], told["error"]["program_id"]) == (429, "queue_full", "other")
        assert (headers["retry-after"], headers["content-type"]) == ("5", "application/json")
        asked = ask()
        await asked.headers({"x-penstock-program-id": "p" * 300, ":path": "/v1/messages"})
        status, told, headers = refused(await asked.reply())
        assert (status, told["type"], told["error"]["code"]) == (400, "error", "bad_identity")
        it.gate.close()
        assert (await waiting.reply()).HasField("override_message_timeout")
        assert refused(await waiting.reply())[0] == 503


async def test_engines_that_were_all_lost_in_the_hold_refuse_the_turn_and_give_its_slot_back() -> None:
    async with picker(A, B) as it, asking(it.port) as ask:
        asked = ask()
        await asked.headers(OWN)
        await until(lambda: it.of(TurnQueued), "it waits")
        for engine in (A, B):
            it.roster.remove(engine.place)
        it.admit("p")
        assert (await asked.reply()).HasField("override_message_timeout")
        assert refused(await asked.reply())[0] == 503
        await until(lambda: it.of(TurnAbandoned), "it is told")
        assert it.gate.health()["running_turns"] == 0


async def test_a_client_that_leaves_is_out_of_the_queue_and_ends_its_turn() -> None:
    async with picker(A, B) as it, asking(it.port) as ask:
        asked = ask()
        await asked.headers(OWN)
        await until(lambda: it.of(TurnQueued), "it waits")
        asked.call.cancel()
        await until(lambda: it.of(TurnAbandoned), "it has left")
        assert it.gate.health()["held_turns"] == 0
        it.admit("p", A.place)
        asked = ask()
        await has_passed(asked)
        asked.call.cancel()
        await until(lambda: it.gate.health()["running_turns"] == 0, "it is over")
        assert it.turns.told[-1] in {("cut", "p", A.place), ("ended", "p", A.place, 0)}


async def test_ids_and_contexts_are_compared_as_by_a_gate_in_the_engine() -> None:
    async with picker(A, governed=False) as it, asking(it.port) as ask:
        names = []
        for words in (["one"], ["one", "two"]):
            asked = await reading_bodies(ask)
            messages = [{"role": "user", "content": each} for each in words]
            await asked.body(json.dumps({"messages": messages}).encode())
            names.append(chosen(await asked.reply())[0]["x-penstock-program-id"])
            await asked.finish()
        assert names[0] == names[1] and names[0].startswith("continued-")
        names = []
        for words in (["one"], ["another"], ["one", "two"]):  # the second while the first runs
            asked = await reading_bodies(ask)
            messages = [{"role": "user", "content": each} for each in words]
            await asked.body(json.dumps({"messages": messages, "session_id": "s", "tools": [{}]}).encode())
            names.append(chosen(await asked.reply())[0]["x-penstock-program-id"])
        assert (names[0], names[2]) == ("s", "s") and names[1].startswith("s~")


async def test_what_a_client_asks_for_is_told_and_answered() -> None:
    """As in the engine's process (``tests/unit/gate/test_client_hints.py``)."""
    async with picker(A, governed=False) as it, asking(it.port) as ask:
        asked = await reading_bodies(ask)
        await asked.body(chat(program_id="p", service_tier="flex", kv_hints={"message_id": "m", "actions": [{}]}))
        await asked.reply()
        await asked.answer_headers(200)
        told = json.loads(chosen(await asked.reply())[0]["x-penstock-kv-hints"])
        assert (told["message_id"], told["actions"][0]["outcome"]) == ("m", "rejected")
        assert [(event.program_id, event.service_tier) for event in it.of(TurnHinted)] == [("p", "flex")]


@pytest.mark.parametrize(("status", "is_last"), [(200, True), (400, True), (503, False)])
async def test_the_last_step_is_told_once_it_was_answered_for_good(status: int, is_last: bool) -> None:
    async with picker(A, governed=False) as it, asking(it.port) as ask:
        asked = await reading_bodies(ask)
        await asked.body(chat(job_id="j", is_last_step=True))
        await asked.reply()
        await asked.answer_headers(status)
        await asked.reply()
        await asked.finish()
        await until(lambda: it.of(ReplyRead if is_last else TurnAbandoned), "it is told")
        assert [event.is_last for event in it.of(ReplyRead)] == [True] * is_last
        assert len(it.of(TurnAbandoned)) == (status >= 400)


async def test_what_another_picker_held_counts() -> None:
    async with picker(A, B, hold_ns=seconds(600)) as it, asking(it.port) as ask:
        proxy_s = time.time() + 3600  # its clock is an hour ahead of ours
        asked = {"x-penstock-asked": f"{proxy_s:.3f}"}
        arrived = {"x-penstock-arrived": f"{proxy_s - 100:.3f}", **asked}
        forged = {"x-penstock-arrived": "1.0", **asked}
        for name, headers in (
            ("first", {}),
            ("again", {"x-envoy-attempt-count": "2", **arrived}),
            ("not-again", {"x-envoy-attempt-count": "1", **arrived}),
            ("forged", {"x-envoy-attempt-count": "2", **forged}),
            ("odd", {"x-envoy-attempt-count": "2", "x-penstock-arrived": "yesterday", **asked}),
            ("unstamped", {"x-envoy-attempt-count": "2", "x-penstock-arrived": arrived["x-penstock-arrived"]}),
        ):
            await ask().headers({"x-penstock-program-id": name, **headers})
            await until(lambda name=name: name in [each.program_id for each in it.of(TurnQueued)], "it waits")
        held = it.gate.state().held_turns
        assert [each.program_id for each in held] == ["again", "first", "not-again", "forged", "odd", "unstamped"]
        assert 99 < it.gate.health()["longest_hold_s"] < 140
        assert it.server.counters.asked_again == 4


async def shown(ask: Callable[..., Asked], turn_id: str, **answer: Any) -> Asked:
    """A stream that observes: the turn is on its way, and is answered."""
    watching: Asked = ask("watching")
    await watching.headers({"x-penstock-turn-id": turn_id}, observability_mode=True)
    await watching.answer_headers(200, observability_mode=True, **answer)
    return watching


@pytest.mark.parametrize("splits", [False, True])
async def test_a_turn_that_another_engine_answered_is_told_as_that_ones(splits: bool) -> None:
    async with picker(A, B, governed=False) as it, asking(it.port) as ask:
        asked = ask("asking" if splits else "")
        headers = await has_passed(asked)
        home, other = (A, B) if headers[DESTINATION].startswith(A.address) else (B, A)
        fields = {"upstream.address": {"string_value": other.address}}
        answer = {"attributes": {"envoy.filters.http.ext_proc": {"fields": fields}}}
        if splits:
            asked = await shown(ask, headers["x-penstock-turn-id"], **answer)
        else:
            await asked.answer_headers(200, **answer)
            await asked.reply()
        await asked.finish()
        await until(lambda: it.turns.told[-1][0] == "ended", "it has ended")
        assert it.turns.told == [
            ("began", "p", home.place),
            ("cut", "p", home.place),
            ("began", "p", other.place),
            ("first_byte", "p", other.place, 200),
            ("ended", "p", other.place, 200),
        ]


async def test_whoever_only_asks_gets_an_end_with_its_answer_and_another_stream_shows_the_rest() -> None:
    async with picker(A, governed=False) as it, asking(it.port) as ask:
        asked = ask("asking", request=Mode.BUFFERED)
        await asked.headers(OWN)
        await asked.reply()
        await asked.body(chat())
        reply = await asked.reply()
        own, _ = chosen(reply)
        assert own["x-penstock-hold-ms"] == "0"
        assert await asked.reply() is None and await asked.call.code() is grpc.StatusCode.OK
        assert it.gate.health()["running_turns"] == 1 and it.turns.told == [("began", "p", A.place)]
        watching = await shown(ask, own["x-penstock-turn-id"])
        size = b'{"usage": {"prompt_tokens": 7, "completion_tokens": 2}}'
        last = {"body": size, "end_of_stream": True}
        await watching.send(response_body=last, observability_mode=True)
        await until(lambda: it.turns.told[-1][0] == "ended", "its end is told, though Envoy keeps the stream open")
        await watching.finish()
        assert it.turns.told[1:] == [
            ("first_byte", "p", A.place, 200),
            ("ended", "p", A.place, 200, Usage(prompt_tokens=7, output_tokens=2)),
        ]
        assert it.gate.health()["running_turns"] == 0


@pytest.mark.parametrize("whole", ["body", "trailers", ""])
async def test_where_bytes_are_observed_an_answer_without_its_last_was_cut(whole: str) -> None:
    async with picker(A, governed=False) as it, asking(it.port) as ask:
        asked = ask("asking")
        turn_id = (await has_passed(asked))["x-penstock-turn-id"]
        watching = await shown(ask, turn_id)
        await watching.send(response_body={"body": b"1"}, observability_mode=True)
        if whole == "trailers":
            await watching.send(response_trailers={}, observability_mode=True)
        elif whole:
            await watching.send(response_body={"body": b"2", "end_of_stream": True}, observability_mode=True)
        await watching.finish()
        assert it.turns.told[-1] == (("ended", "p", A.place, 200) if whole else ("cut", "p", A.place))


async def test_a_turn_that_is_not_shown_as_its_client_left_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_turn, "_COMES_WITHIN_S", 0.05)
    async with picker(A, governed=False) as it, asking(it.port) as ask:
        asked = ask("asking")
        turn_id = (await has_passed(asked))["x-penstock-turn-id"]
        await until(lambda: ("cut", "p", A.place) in it.turns.told, "it is over")
        assert it.gate.health()["running_turns"] == 0
        await (await shown(ask, turn_id)).finish()
        assert it.turns.told == [("began", "p", A.place), ("cut", "p", A.place)]


async def test_messages_that_make_no_sense_end_nothing() -> None:
    async with picker(A, governed=False) as it, asking(it.port) as ask:
        first = ask()
        await first.body(b"no headers came before")
        assert (await first.reply()).WhichOneof("response") == "request_body"
        await first.send()
        await first.finish()
        asked = ask()
        await asked.headers({":method": "\x00", ":path": "", "content-length": "many"})
        assert chosen(await asked.reply())[0][DESTINATION] == A.address
        for number in ("many", "9" * 9000, "-1"):
            asked = ask()
            odd = {"content-length": number, "x-envoy-attempt-count": number, "x-penstock-arrived": number}
            await asked.headers({**OWN, **odd})
            assert chosen(await asked.reply())[0][DESTINATION] == A.address
            await asked.answer_headers(200, {":status": number, "x-penstock-hold-ms": number})
            assert (await asked.reply()).WhichOneof("response") == "response_headers"
        assert it.server.counters.malformed >= 2


async def test_who_serves_no_more_sends_what_it_holds_to_another() -> None:
    async with picker(A, B) as it, asking(it.port) as ask:
        asked = ask()
        await asked.headers(OWN)
        await until(lambda: it.of(TurnQueued), "it waits")
        assert await healths(it) == [1, 1, 1, 1]
        it.server.set_serving(False)
        assert (await asked.reply()).HasField("override_message_timeout")
        assert await asked.call.code() is grpc.StatusCode.UNAVAILABLE
        assert it.gate.health()["held_turns"] == 0
        asked = ask()
        assert await asked.call.code() is grpc.StatusCode.UNAVAILABLE
        assert await healths(it) == [2, 2, 2, 1]
        it.server.set_serving(True)
        it.admit("p")
        assert await healths(it) == [1, 1, 1, 1]


async def healths(it: Picker) -> list[int]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{it.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return [
            (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status
            for name in ("", SERVICE, "readiness", "liveness")
        ]


async def test_with_credentials_it_speaks_tls() -> None:
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    pair = (made.private_key_pem.bytes(), made.cert_chain_pems[0].bytes())
    async with picker(A, governed=False, more={"credentials": grpc.ssl_server_credentials([pair])}) as it:
        trusted = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{it.port}", trusted) as channel:
            asked = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
            assert asked.status == health_pb2.HealthCheckResponse.SERVING


async def test_where_it_cannot_listen_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot listen at unix:"):
        async with picker(listen=f"unix:{tmp_path}/no/such/folder/socket"):
            pass


async def test_an_error_of_ours_ends_one_stream_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with picker(A, governed=False) as it, asking(it.port) as ask:
        with monkeypatch.context() as patched:
            patched.setattr(it.gate, "try_enter", lambda ticket: 1 // 0)
            asked = ask()
            await asked.headers(OWN)
            assert await asked.call.code() is grpc.StatusCode.INTERNAL
        assert (await has_passed(ask()))[DESTINATION] == A.address


async def test_a_draining_engine_keeps_what_it_has_and_gets_nothing_new() -> None:
    async with picker(A, B) as it, asking(it.port) as ask:
        first = asyncio.ensure_future(has_passed(ask()))
        await until(lambda: it.of(TurnQueued), "it waits")
        it.admit("p", A.place)
        assert (await first)[DESTINATION] == f"{A.address},{B.address}"
        it.roster.put(Engine(place=A.place, address=A.address, standing=Standing.DRAINING))
        assert (await has_passed(ask()))[DESTINATION] == f"{A.address},{B.address}"
        for number in range(3):
            asked = ask()
            await asked.headers({":method": "GET", ":path": f"/{number}"}, end=True)
            assert chosen(await asked.reply())[0][DESTINATION] == B.address
        it.roster.put(Engine(place=A.place, address=A.address, standing=Standing.GONE))
        assert (await has_passed(ask()))[DESTINATION] == B.address


async def test_of_many_turns_at_once_it_says_that_it_has_them_before_it_reads_their_bodies() -> None:
    """Envoy waits seconds for a word. Bodies cost far more than a word, and the last one's turn comes late."""
    async with picker(A) as it, asking(it.port) as ask:
        alone, crowd = ask(request=Mode.BUFFERED), [ask(request=Mode.BUFFERED) for _ in range(100)]
        for asked in (alone, *crowd):
            await asked.headers({})
            assert (await asked.reply()).WhichOneof("response") == "request_headers"
        assert (await crowd[-1].reply()).HasField("override_message_timeout")
        await alone.body(chat(program_id="p"))
        await until(lambda: it.of(TurnQueued), "it asks")
        it.admit("p", A.place)
        reply = await alone.reply()
        assert reply.HasField("override_message_timeout"), "as it was held"
        assert chosen(await alone.reply())[0][DESTINATION] == A.address
