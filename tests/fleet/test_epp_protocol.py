"""Rules of the Endpoint Picker Protocol v1.0.0 (Gateway API Inference Extension), by which gateways ask a picker.

The sentences in quotation marks are the protocol's. Its rules of health, of followers and of requests that are shed
hold for any proxy: ``tests/unit/fleet/test_picker_streams.py`` has them.
"""

from collections.abc import Callable
from typing import Any

import pytest
from support.pickers import Asked, Mode, asking, chosen, picker, refused

from controlplane.core.model.commands import Place
from controlplane.fleet.messages import DESTINATION
from controlplane.fleet.roster import Engine, Standing

ENGINES = tuple(Engine(place=f"pod-{n}/engine-8000", address=f"10.0.0.{n}:8000") for n in range(3))
ADDRESSES = {engine.address for engine in ENGINES}
GONE = Engine(place=ENGINES[1].place, address=ENGINES[1].address, standing=Standing.GONE)
BODY = b'{"model": "m", "session_id": "s", "messages": [{"role": "user", "content": "%s"}]}' % (b"x" * 200_000)
MODES = {"none": Mode.NONE, "buffered": Mode.BUFFERED, "duplex": Mode.FULL_DUPLEX_STREAMED}
GET = {":method": "GET", ":path": "/v1/models"}


async def replied(ask: Callable[..., Asked], mode: int = MODES["duplex"], subset: object = None) -> Any:
    """A whole turn, and the message with the choice or the refusal."""
    asked = ask(request=mode)
    await asked.headers({"x-session-id": "s"}, metadata=hint(subset))
    if mode == Mode.BUFFERED:  # the body is sent once the headers are answered
        await asked.reply()
    if mode != Mode.NONE:
        await asked.body(BODY)
    return await asked.reply()


def hint(subset: object) -> Any:
    """The endpoints that the gateway allows; None: any."""
    return None if subset is None else {"envoy.lb.subset_hint": {f"{DESTINATION}-subset": subset}}


@pytest.mark.parametrize("mode", MODES)
async def test_the_choice_is_in_header_and_metadata_with_one_value(mode: str) -> None:
    """ "The EPP MUST not set two different values in the header and the inner response metadata value." """
    async with picker(*ENGINES, governed=False) as it, asking(it.port) as ask:
        headers, metadata = chosen(await replied(ask, MODES[mode]))
        found = headers[DESTINATION].split(",")
        assert metadata == headers[DESTINATION] and set(found) <= ADDRESSES and len(set(found)) == len(found) == 2


@pytest.mark.parametrize("trailers", [False, True])
async def test_bodies_stream_back_unchanged_after_the_headers(trailers: bool) -> None:
    """ "The EPP MUST support streaming mode for inference requests and responses." """
    duplex = MODES["duplex"]
    async with picker(*ENGINES, governed=False) as it, asking(it.port) as ask:
        asked = ask(request=duplex, response=duplex)
        await asked.headers({})
        for start in range(0, len(BODY), 50_000):
            await asked.body(BODY[start : start + 50_000], end=not trailers and start + 50_000 >= len(BODY))
        if trailers:
            await asked.send(request_trailers={})
        assert chosen(await asked.reply())[1]
        back, ends = b"", list[bool]()
        while len(back) < len(BODY):
            piece = (await asked.reply()).request_body.response.body_mutation.streamed_response
            assert len(piece.body) < 1 << 16  # Envoy takes no larger one
            back, ends = back + piece.body, [*ends, piece.end_of_stream]
        assert back == BODY and ends == [False] * (len(ends) - 1) + [not trailers]
        if trailers:
            assert (await asked.reply()).WhichOneof("response") == "request_trailers"
        await asked.answer_headers(200)
        assert (await asked.reply()).WhichOneof("response") == "response_headers"
        for token in (b"data: a\n\n", b"data: b\n\n", b""):  # each comes back before the next is said
            await asked.send(response_body={"body": token, "end_of_stream": not token})
            piece = (await asked.reply()).response_body.response.body_mutation.streamed_response
            assert (piece.body, piece.end_of_stream) == (token, not token)


@pytest.mark.parametrize("form", [list, ",".join], ids=["list", "text"])
async def test_only_endpoints_of_the_subset_are_chosen(form: Any) -> None:
    """ "the EPP MUST only select endpoints from the specified list" """
    async with picker(*ENGINES, governed=False) as it, asking(it.port) as ask:
        it.gate.on_command(Place(command_id=1, program_id="s", replica=ENGINES[0].place, moves=False))
        for address in ADDRESSES:
            headers, metadata = chosen(await replied(ask, subset=form([address, "192.0.2.1:1"])))
            assert headers[DESTINATION] == metadata == address


@pytest.mark.parametrize("subset", [[], ["192.0.2.1:1"], [GONE.address]], ids=["empty", "unknown", "gone"])
async def test_where_none_of_the_subset_is_eligible_the_answer_is_503(subset: list[str]) -> None:
    """ "If none of the endpoints in the list is eligible or the list is empty, [...] 503 (Service Unavailable)" """
    async with picker(ENGINES[0], GONE, ENGINES[2], governed=False) as it, asking(it.port) as ask:
        status, told, headers = refused(await replied(ask, subset=subset))
        assert (status, told["error"]["code"], headers["retry-after"]) == (503, "no_engine", "5")
        asked = ask()
        await asked.headers(GET, end=True, metadata=hint(subset))
        assert refused(await asked.reply())[0] == 503


@pytest.mark.parametrize("engines", [(), (GONE,)], ids=["none", "gone"])
async def test_without_a_ready_endpoint_the_answer_is_503(engines: tuple[Engine, ...]) -> None:
    """ "503 (Service Unavailable) HTTP status code if there are no ready endpoints" """
    async with picker(*engines, governed=False) as it, asking(it.port) as ask:
        for mode in MODES.values():
            assert refused(await replied(ask, mode))[0] == 503
        it.roster.put(ENGINES[1])
        assert chosen(await replied(ask))[1] == ENGINES[1].address
