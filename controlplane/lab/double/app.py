"""The double's HTTP interface: what an OpenAI-compatible server offers, as far as agents use it."""

import itertools
import json
import time
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from controlplane.eventloop import task_group
from controlplane.gate import GatedRequest
from controlplane.lab.double.chat_request import BadRequest, ChatRequest, parse_chat
from controlplane.lab.double.conversations import Conversations, Prompt
from controlplane.lab.double.driver import Driver, RunningTurn
from controlplane.lab.double.replies import ReplyFormat, Usage, error_json, reply_text
from controlplane.lab.sim.engine_model import Call, ContextTooLong

_LEAST_CHUNKS_APART_S = 0.02
_MOST_CHUNKS_A_SECOND = 1000  # of all streams together: what one core writes with ease


class ChatService:
    """Answers chat completions from the driver's engine."""

    def __init__(self, driver: Driver, conversations: Conversations, model: str) -> None:
        self._driver = driver
        self._conversations = conversations
        self._model = model
        self._serials = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            gated = _gated(scope)
            request = parse_chat(gated.body)
            turn, prompt = self._submit(gated, request)
        except (BadRequest, ContextTooLong) as problem:
            await _bad_request(str(problem))(scope, receive, send)
            return
        reply = _Reply(self._driver, self._conversations, turn, request, prompt, next(self._serials))
        async with task_group() as beside:
            beside.start_soon(self._abort_when_disconnected, receive, turn.turn_id)
            try:
                frame = ReplyFormat(turn_id=turn.turn_id, model=self._model, created_s=int(time.time()))
                await (reply.stream(frame, send) if request.stream else reply.whole(frame, send))
                if turn.ended is not None and turn.ended.ok:
                    reply.remember()
            finally:
                self._driver.abort(turn.turn_id)  # where it has not ended
                beside.cancel_scope.cancel()

    async def _abort_when_disconnected(self, receive: Receive, turn_id: str) -> None:
        await _disconnected(receive)
        self._driver.abort(turn_id)

    def _submit(self, gated: GatedRequest, request: ChatRequest) -> tuple[RunningTurn, Prompt]:
        program_id = gated.identity.program_id
        prompt = self._conversations.take(program_id, request.messages)
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
        )
        return self._driver.submit(call), prompt


class _Reply:
    """One reply on its way to its client."""

    def __init__(
        self,
        driver: Driver,
        conversations: Conversations,
        turn: RunningTurn,
        request: ChatRequest,
        prompt: Prompt,
        serial: int,
    ) -> None:
        self._driver = driver
        self._conversations = conversations
        self._turn = turn
        self._request = request
        self._prompt = prompt
        self._serial = serial
        self._all_words = conversations.words(request.output_tokens)

    def remember(self) -> None:
        """The reply is part of the context from now on."""
        text = reply_text(self._serial, 0, self._all_words)
        self._conversations.add_reply(self._prompt.context, len(self._request.messages), text)

    async def whole(self, frame: ReplyFormat, send: Send) -> None:
        while self._turn.ended is None:
            await self._turn.news()
        body = frame.whole(reply_text(self._serial, 0, self._words()), self._finish_reason(), self._usage())
        await _start(send, b"application/json", len(body))
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def stream(self, frame: ReplyFormat, send: Send) -> None:
        while self._turn.first_token is None and self._turn.ended is None:
            await self._turn.news()
        await _start(send, b"text/event-stream; charset=utf-8", None)
        head, sent = frame.first_chunk(), 0
        while True:
            words = self._words()
            text = frame.chunk(reply_text(self._serial, sent, words)) if words > sent else ""
            sent = max(sent, words)
            if self._turn.ended is not None:
                break
            if head or text:
                await _body(send, head + text)
                head = ""
            open_turns = self._driver.open_turns
            await self._turn.news(max(_LEAST_CHUNKS_APART_S, open_turns / _MOST_CHUNKS_A_SECOND))
        usage = self._usage() if self._request.include_usage else None
        await _body(send, head + text + frame.last_chunks(self._finish_reason(), usage), more=False)

    def _words(self) -> int:
        """Words produced so far: all of them at the end, at least one after the first token."""
        produced_tokens = self._driver.produced_tokens(self._turn)
        if self._turn.ended is not None and self._turn.ended.ok:
            return self._all_words
        ratio = produced_tokens / self._request.output_tokens
        return min(self._all_words, max(1 if produced_tokens else 0, int(self._all_words * ratio)))

    def _finish_reason(self) -> str:
        return "length" if self._turn.ended is not None and self._turn.ended.ok else "abort"

    def _usage(self) -> Usage:
        first, ended = self._turn.first_token, self._turn.ended
        return Usage(
            prompt_tokens=self._prompt.tokens,
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


def build_app(
    driver: Driver, conversations: Conversations, *, model: str, health: Callable[[], object]
) -> Starlette:
    """The application behind the gate. ``health`` gives what ``GET /penstock/double`` shows."""

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

    async def not_found(request: Request, _error: Exception) -> Response:
        text = error_json(f"the engine double has no {request.url.path}", kind="NotFoundError", code=404)
        return Response(text, status_code=404, media_type="application/json")

    return Starlette(
        routes=[
            Route("/v1/chat/completions", ChatService(driver, conversations, model), methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", alive),
            Route("/penstock/double", account),
        ],
        exception_handlers={404: not_found},
    )
