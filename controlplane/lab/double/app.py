"""The double's HTTP interface: what an OpenAI-compatible server offers, as far as agents use it."""

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from controlplane.core.model.events import PoolSampled
from controlplane.eventloop import task_group
from controlplane.gate import GatedRequest
from controlplane.lab.double.chat_request import BadRequest, ChatRequest, parse_chat, with_calls
from controlplane.lab.double.conversations import Conversations, Prompt
from controlplane.lab.double.driver import Driver, RunningTurn
from controlplane.lab.double.replies import ReplyFormat, Usage, error_json, reply_text
from controlplane.lab.double.responses_api import ResponsesFormat, parse_responses
from controlplane.lab.double.script import Script, scripted
from controlplane.lab.double.tokens_api import TokensFormat, parse_tokens
from controlplane.lab.sim.engine_model import Call, ContextTooLong

_LEAST_CHUNKS_APART_S = 0.02
_MOST_CHUNKS_A_SECOND = 1000  # of all streams together: what one core writes with ease


class Frame(Protocol):
    """Writes one reply in the words of its API."""

    def first_chunk(self) -> str: ...
    def chunk(self, text: str) -> str: ...
    def last_chunks(self, finish_reason: str, usage: Usage | None) -> str: ...
    def whole(self, text: str, finish_reason: str, usage: Usage) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Api:
    """How requests are read, and what writes their replies: of both, a turn's id, a model and a time."""

    parse: Callable[[Mapping[str, Any]], ChatRequest]
    frame: Callable[[Mapping[str, Any], ChatRequest, str, str, int], Frame]


CHAT = Api(
    parse_chat,
    lambda _, request, turn, model, at_s: ReplyFormat(
        turn_id=turn, model=model, created_s=at_s, calls=request.calls
    ),
)
APIS: Mapping[str, Api] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": Api(
        parse_responses,
        lambda body, _, turn, model, at_s: ResponsesFormat(body, turn_id=turn, model=model, created_s=at_s),
    ),
    "/inference/v1/generate": Api(
        parse_tokens,
        lambda body, _, turn, model, at_s: TokensFormat(body, turn_id=turn, model=model, created_s=at_s),
    ),
}
"""By path: what the double answers."""


@dataclass(slots=True, eq=False)
class TurnService:
    """Answers one API's requests from the driver's engine. ``named``: turns in it by the name that clients gave."""

    api: Api
    driver: Driver
    conversations: Conversations
    model: str
    named: dict[str, str]
    script: Script
    serials: Iterator[int] = field(default_factory=itertools.count)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            gated = _gated(scope)
            request = scripted(self.script, self.api.parse(gated.body), gated.ticket.turn_id)
            turn, prompt = self._submit(gated, request)
        except (BadRequest, ContextTooLong) as problem:
            await _bad_request(str(problem))(scope, receive, send)
            return
        reply = _Reply(self.driver, self.conversations, turn, request, prompt, next(self.serials))
        name = str(gated.body.get("rid") or gated.body.get("request_id") or turn.turn_id)
        self.named[name] = turn.turn_id
        async with task_group() as group:
            group.start_soon(self._abort_when_disconnected, receive, turn.turn_id)
            try:
                frame = self.api.frame(gated.body, request, turn.turn_id, self.model, int(time.time()))
                await (reply.stream(frame, send) if request.stream else reply.whole(frame, send))
                if turn.ended is not None and turn.ended.ok:
                    reply.remember()
            finally:
                self.driver.abort(turn.turn_id)  # where it has not ended
                self.named.pop(name, None)
                group.cancel_scope.cancel()

    async def _abort_when_disconnected(self, receive: Receive, turn_id: str) -> None:
        await _disconnected(receive)
        self.driver.abort(turn_id)

    def _submit(self, gated: GatedRequest, request: ChatRequest) -> tuple[RunningTurn, Prompt]:
        program_id = gated.identity.program_id
        prompt = self.conversations.take(program_id, request.messages)
        call = Call(
            turn_id=gated.ticket.turn_id,
            program_id=program_id,
            prompt_tokens=prompt.tokens,
            output_tokens=request.output_tokens,
            reusable_tokens=prompt.reusable_tokens,
            prefix_group=prompt.prefix_group,
            prefix_tokens=prompt.prefix_tokens,
            context=prompt.context,
            trace=gated.ticket.trace,
            change=gated.ticket.change,
        )
        return self.driver.submit(call), prompt


@dataclass(slots=True)
class _Reply:
    """One reply on its way to its client."""

    driver: Driver
    conversations: Conversations
    turn: RunningTurn
    request: ChatRequest
    prompt: Prompt
    serial: int

    @property
    def all_words(self) -> int:
        return self.conversations.words(self.request.output_tokens)

    def remember(self) -> None:
        """The reply is part of the context from now on."""
        text = with_calls(reply_text(self.serial, 0, self.all_words), self.request.calls)
        self.conversations.add_reply(self.prompt.context, len(self.request.messages), text)

    async def whole(self, frame: Frame, send: Send) -> None:
        while self.turn.ended is None:
            await self.turn.news()
        body = frame.whole(reply_text(self.serial, 0, self._words()), self._finish_reason(), self._usage())
        await _start(send, b"application/json", len(body))
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def stream(self, frame: Frame, send: Send) -> None:
        while self.turn.first_token is None and self.turn.ended is None:
            await self.turn.news()
        await _start(send, b"text/event-stream; charset=utf-8", None)
        head, sent = frame.first_chunk(), 0
        while True:
            words = self._words()
            text = frame.chunk(reply_text(self.serial, sent, words)) if words > sent else ""
            sent = max(sent, words)
            if self.turn.ended is not None:
                break
            if head or text:
                await _body(send, head + text)
                head = ""
            open_turns = self.driver.open_turns
            await self.turn.news(max(_LEAST_CHUNKS_APART_S, open_turns / _MOST_CHUNKS_A_SECOND))
        usage = self._usage() if self.request.include_usage else None
        await _body(send, head + text + frame.last_chunks(self._finish_reason(), usage), more=False)

    def _words(self) -> int:
        """Words produced so far: all of them at the end, at least one after the first token."""
        produced_tokens = self.driver.produced_tokens(self.turn)
        if self.turn.ended is not None and self.turn.ended.ok:
            return self.all_words
        ratio = produced_tokens / self.request.output_tokens
        return min(self.all_words, max(1 if produced_tokens else 0, int(self.all_words * ratio)))

    def _finish_reason(self) -> str:
        return self.request.stops if self.turn.ended is not None and self.turn.ended.ok else "abort"

    def _usage(self) -> Usage:
        first, ended = self.turn.first_token, self.turn.ended
        return Usage(
            prompt_tokens=self.prompt.tokens,
            output_tokens=ended.output_tokens if ended is not None else 0,
            cached_tokens=first.cached_tokens if first is not None else 0,
        )


def _gated(scope: Scope) -> GatedRequest:
    """What the gate left; without it the body was no JSON object."""
    gated = scope.get("penstock")
    if not isinstance(gated, GatedRequest):
        raise BadRequest("the request body is not a JSON object")
    return gated


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _start(send: Send, content_type: bytes, length: int | None) -> None:
    headers = [(b"content-type", content_type)]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _body(send: Send, text: str, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": more})


def _bad_request(message: str) -> Response:
    return Response(error_json(message), status_code=400, media_type="application/json")


def _as_vllm_tells(pool: PoolSampled, driver: Driver) -> str:
    """A page for Prometheus with what ``fleet.metrics_page`` reads of vLLM's; cached blocks count as free."""
    free = pool.free_blocks + pool.evictable_blocks
    return "".join(
        f"{line}\n"
        for line in (
            f'vllm:cache_config_info{{block_size="{pool.block_tokens}",num_gpu_blocks="{pool.total_blocks}"}} 1',
            f"vllm:kv_cache_usage_perc {1 - free / max(1, pool.total_blocks):.6f}",
            f"vllm:num_requests_running {pool.turns_running}",
            f"vllm:num_requests_waiting {pool.turns_waiting}",
            f"vllm:num_preemptions_total {pool.retractions}",
            f"vllm:prefix_cache_queries_total {driver.prompt_tokens}",
            f"vllm:prefix_cache_hits_total {driver.cached_tokens}",
        )
    )


def build_app(
    driver: Driver, conversations: Conversations, *, model: str, script: Script, health: Callable[[], object]
) -> Starlette:
    """The application behind the gate. ``health`` gives what ``GET /penstock/double`` shows."""
    named: dict[str, str] = {}

    async def models(_request: Request) -> Response:
        entry = {
            "id": model,
            "object": "model",
            "owned_by": "penstock-engine-double",
            "max_model_len": driver.engine.max_context_tokens,
        }
        return JSONResponse({"object": "list", "data": [entry]})

    async def alive(_request: Request) -> Response:
        return Response()

    async def account(_request: Request) -> Response:
        return Response(json.dumps(health()), media_type="application/json")

    async def metrics(_request: Request) -> Response:
        return Response(_as_vllm_tells(driver.pool(), driver), media_type="text/plain")

    async def abort(request: Request) -> Response:
        """As SGLang's: the stream that its client named so ends there."""
        try:
            driver.abort(named.get(str((await request.json())["rid"]), ""))
        except (ValueError, TypeError, KeyError):
            return _bad_request("expected a JSON object with rid")
        return Response()

    async def flush(_request: Request) -> Response:
        """As SGLang's, which also flushes with new weights; but what runs goes on here."""
        driver.flush()
        return Response("Cache flushed.\n")

    async def not_found(request: Request, _error: Exception) -> Response:
        text = error_json(f"the engine double has no {request.url.path}", kind="NotFoundError", code=404)
        return Response(text, status_code=404, media_type="application/json")

    return Starlette(
        routes=[
            *(
                Route(
                    path,
                    TurnService(api, driver, conversations, model, named, script if api is CHAT else {}),
                    methods=["POST"],
                )
                for path, api in APIS.items()
            ),
            Route("/abort_request", abort, methods=["POST"]),
            Route("/flush_cache", flush, methods=["GET", "POST"]),
            Route("/v1/models", models),
            Route("/health", alive),
            Route("/metrics", metrics),
            Route("/penstock/double", account),
        ],
        exception_handlers={404: not_found},
    )
