"""The gate as a plain ASGI middleware, for the engine's own HTTP process or in front of any other server."""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from controlplane.gate.asgi import App, ClientGone, Message, Receive, Replay, Scope, SendMessage, send_json
from controlplane.gate.bodies import Bodies, BodyRefused, json_object
from controlplane.gate.contexts import Contexts, measured
from controlplane.gate.continuity import Continuity, TurnOfContext
from controlplane.gate.diagnostics import Answered, Question, question_in
from controlplane.gate.early_stream import COMMENT_EVERY_S, EarlyStream, asks_for_stream, needs_events, waiting
from controlplane.gate.encodings import CONTENT_ENCODING, CONTENT_LENGTH, UnknownEncoding, encoding_of
from controlplane.gate.endings import ENDING_PATHS, ended, is_last, with_query
from controlplane.gate.flushes import CONTEXTS_ENDED, FLUSHING_PATHS, WEIGHTS_UPDATED, where_taken
from controlplane.gate.gate import Gate
from controlplane.gate.identity import BadIdentity, Headers, Identity
from controlplane.gate.problems import problem
from controlplane.gate.repairs import Repairer
from controlplane.gate.replies import ReplyReader, ReplyTape
from controlplane.gate.requests import (
    GATED_METHODS,
    GATED_PATHS,
    HEALTH_PATH,
    HOLD_HEADER,
    TURN_HEADER,
    hold_ms,
    is_retried,
    new_turn_id,
    refusal_headers,
    refusal_problem,
    ticket_of,
    timeout_from,
    told_headers,
    turn_id_from,
    turn_path,
)
from controlplane.gate.sizing import Prompt
from controlplane.gate.tickets import Entered, Refused, Ticket

_CLIENT_CLOSED_REQUEST = 499  # as nginx counts it
_READ_AT_ONCE = 1 << 14  # bytes of a reply: a millisecond


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedRequest:
    """What the gate leaves for the application in ``scope["penstock"]`` and ``scope["state"]["penstock"]``.

    The identity's parent is the root on whose slot the program rides, whatever the request claimed. ``place`` is
    the engine that the turn is to run on, ``node/role``, where several are behind the gate; else empty.
    """

    identity: Identity
    ticket: Ticket
    body: dict[str, Any]  # parsed once; not to be changed
    entered: Entered
    place: str = ""


class GateMiddleware:
    """Holds POSTs and PUTs to ``paths`` at ``gate``; serves ``GET /penstock/health``; the rest passes untouched.

    It tells where a cache is emptied (``flushes``).
    A body that is not a JSON object passes, too: refusing it is up to the application. ``on_loop`` is called with
    the event loop at the first request or lifespan message (the place to attach an ``Inbox``). ``health`` returns
    what the health page shows; the default is the gate's own state. Without ``continuity`` ids are believed, and
    each request that names nobody is a program of its own. ``repairs``: which of ``REPAIRS`` are made. A turn that
    a gate before this one named in ``x-penstock-turn-id`` keeps its name (``turn_id_from`` says who may forge what
    by it).
    """

    def __init__(
        self,
        app: App,
        gate: Gate,
        *,
        paths: Iterable[str] = GATED_PATHS,
        on_loop: Callable[[asyncio.AbstractEventLoop], None] | None = None,
        health: Callable[[], object] | None = None,
        continuity: bool = True,
        repairs: frozenset[str] = frozenset(),
    ) -> None:
        self._app = app
        self._repairer = Repairer(repairs)
        self._continuity = Continuity() if continuity else Continuity(most=0)
        self._gate = gate
        self._paths = frozenset(map(turn_path, paths))
        self._on_loop = on_loop
        self._health = health if health is not None else gate.health
        self._bodies = Bodies(gate.limits)
        self._named: set[str] = set()  # names of turns that came with them, on their way to the gate or behind it
        self._reader = ReplyReader()
        self._contexts = Contexts()
        self._early_s = gate.limits.early_headers_ns / gate.limits.wall_second_ns  # 0: never
        self._comment_s = max(1.0, COMMENT_EVERY_S / gate.limits.time_scale)

    async def __call__(self, scope: Scope, receive: Receive, send: SendMessage) -> None:
        if self._on_loop is not None:
            on_loop, self._on_loop = self._on_loop, None
            on_loop(asyncio.get_running_loop())
        path = turn_path(_path(scope)) if scope["type"] == "http" else None
        if path is None:
            await self._app(scope, receive, send)
        elif _asks_for_health(scope):
            await send_json(send, HTTPStatus.OK, self._health())
        elif (path in self._paths or path in ENDING_PATHS) and scope["method"] in GATED_METHODS:
            _without_slash(scope)
            await self._turn(path, scope, receive, send)
        elif path == WEIGHTS_UPDATED and scope["method"] in GATED_METHODS:
            self._gate.cache_flushed(path)
            await send_json(send, HTTPStatus.OK, CONTEXTS_ENDED)
        else:
            if path in FLUSHING_PATHS:
                send = where_taken(send, functools.partial(self._gate.cache_flushed, path))
            await self._app(scope, receive, send)

    async def _turn(self, path: str, scope: Scope, receive: Receive, send: SendMessage) -> None:
        try:
            encoding = encoding_of(scope["headers"])
            data = await self._bodies.read(receive, encoding)
            if not data:
                _refuse_if_lost(scope)
            body = await json_object(data)
            if path in ENDING_PATHS:
                body = with_query(scope.get("query_string", b"").decode("latin-1"), body)
        except ClientGone:
            await _send_gone(path, send)
            return
        except (BodyRefused, UnknownEncoding) as refused:
            content = problem(path, refused.status, refused.code, str(refused))
            await send_json(send, refused.status, content, [(b"connection", b"close")])  # the rest is not read
            return
        if encoding:
            scope["headers"] = _as_plain(scope["headers"], len(data))
        replay = Replay(data, receive)
        try:
            if body is None:
                await self._app(scope, replay.receive, send)
            else:
                await self._gated(path, scope, body, data, replay, send)
        finally:
            replay.close()

    async def _gated(
        self, path: str, scope: Scope, body: dict[str, Any], data: bytes, replay: Replay, send: SendMessage
    ) -> None:
        try:
            identity = self._gate.tenants.identify(scope["headers"], body)
        except BadIdentity as bad:
            status = HTTPStatus.BAD_REQUEST
            await send_json(send, status, problem(path, status, "bad_identity", str(bad)))
            return
        if path in ENDING_PATHS:
            answer = ended(self._gate, identity, path, body)
            if answer is None:
                await self._app(scope, replay.receive, send)
            else:
                await send_json(send, HTTPStatus.OK, answer)
            return
        body, repaired = self._repairer.sent_on(identity.program_id, body, data)
        body_bytes = len(repaired or data)
        if repaired:
            scope["headers"] = _as_plain(scope["headers"], body_bytes)
            replay.put(repaired)
        prompt = await measured(body, body_bytes)
        identity, turn = self._continuity.name(identity, body, prompt)
        identity = self._gate.tenants.scope(identity)
        ticket = self._ticket(identity, scope["headers"], body, prompt, body_bytes)
        try:
            await self._entered(path, scope, identity, ticket, body, prompt, turn, replay, send)
        finally:
            self._named.discard(ticket.turn_id)
            turn.over()

    async def _entered(
        self,
        path: str,
        scope: Scope,
        identity: Identity,
        ticket: Ticket,
        body: dict[str, Any],
        prompt: Prompt,
        turn: TurnOfContext,
        replay: Replay,
        send: SendMessage,
    ) -> None:
        early = EarlyStream(path, send, ticket.turn_id, needs_events=needs_events(path, scope["headers"]))
        streams = self._early_s > 0 and asks_for_stream(path, body)
        try:
            entered = self._gate.try_enter(ticket) or await self._wait(ticket, replay, early if streams else None)
        except Refused as refused:
            await (early.refuse(refused) if early.begun else _send_refusal(path, send, refused))
            return
        if entered is None:
            await _send_gone(path, send, early)
            return
        if early.begun:
            scope["headers"] = [each for each in scope["headers"] if each[0].lower() != b"accept-encoding"]
            send = early.pass_on
        identity = replace(identity, parent_id=self._gate.parent_of(identity.program_id))  # claimed, it proved none
        place = self._gate.places.of(identity.program_id)
        request = GatedRequest(identity=identity, ticket=ticket, body=body, entered=entered, place=place)
        try:
            scope["penstock"] = request
            scope.setdefault("state", {})["penstock"] = request
            is_final = is_last(scope["headers"], body)
            tape = ReplyTape(path, None if identity.is_one_turn or is_final else body)
            over = functools.partial(self._ended, request, tape, prompt, turn, is_final=is_final)
            if (question := question_in(path, body)) is not None:
                compare = functools.partial(self._compared, identity.program_id, prompt, question)
                send = Answered(send, question, compare)
            try:
                await self._app(scope, replay.receive, _watched(scope, send, request, tape, over))
            except Exception:
                if not tape.status:  # the server around us answers so
                    tape.begin(HTTPStatus.INTERNAL_SERVER_ERROR, ())
                    if early.begun:
                        with contextlib.suppress(OSError):  # of who left meanwhile: the application's own says more
                            await early.fail()
                raise
            finally:
                over()
        finally:
            self._gate.leave(ticket)

    def _compared(self, program_id: str, prompt: Prompt, question: Question) -> dict[str, Any] | None:
        found = self._contexts.compared(program_id, prompt, question.previous) if question.previous else None
        return question.answer(found)

    def _ended(
        self, request: GatedRequest, tape: ReplyTape, prompt: Prompt, turn: TurnOfContext, *, is_final: bool
    ) -> None:
        """Report what became of the turn: once, whether its reply is complete, was cut or never began."""
        ticket, body = request.ticket, request.body
        turn.over(tape.reply_id)
        was_refused = tape.status >= HTTPStatus.BAD_REQUEST  # then it is nowhere's context
        if not (ticket.is_one_turn or was_refused):
            tokens = tape.usage.prompt_tokens if tape.usage is not None else 0
            name, turn_id = ticket.program_id, ticket.turn_id
            self._contexts.remember(name, turn_id, prompt, reply_id=tape.reply_id, tokens=tokens)
        if not self._gate.leave(ticket, abandoned=tape.refusal) or ticket.is_one_turn:
            return
        if is_final:
            if not is_retried(tape.status):
                self._gate.reply_read(ticket, (), is_last=True)
        elif (tools := self._reader.called(ticket.program_id, body, tape)) is not None:
            self._gate.reply_read(ticket, tools, tape.calls)

    def _ticket(
        self, identity: Identity, headers: Headers, body: dict[str, Any], prompt: Prompt, body_bytes: int
    ) -> Ticket:
        received_id = turn_id_from(headers)
        if received_id in self._named or self._gate.knows(identity.program_id, received_id):
            received_id = ""
        elif received_id:
            self._named.add(received_id)
        return ticket_of(
            identity,
            received_id or new_turn_id(),
            prompt=self._contexts.size(identity, prompt),
            change=self._contexts.change(identity.program_id, prompt, headers),
            held_bytes=body_bytes,
            timeout_s=timeout_from(headers),
            asked=self._gate.hints.asked(identity, headers, body),
        )

    async def _wait(self, ticket: Ticket, replay: Replay, early: EarlyStream | None) -> Entered | None:
        """Hold the turn while watching its client; None when the client left. Raises ``Refused``.

        ``early``: where the client is told now and then that it waits.
        """
        waiter = asyncio.ensure_future(self._gate.enter(ticket))
        listener = replay.listen()
        silence_s = self._early_s if early is not None else None
        try:
            while not (has_left := _has_left(listener)) and not waiter.done():
                if listener.done():
                    listener = replay.listen()
                both = (waiter, listener)
                done, _ = await asyncio.wait(both, timeout=silence_s, return_when=asyncio.FIRST_COMPLETED)
                if early is not None and not done and (place := self._gate.place_of(ticket)):
                    silence_s = self._comment_s
                    with contextlib.suppress(OSError):  # of who left; the listener hears of that
                        await early.comment(waiting(place, self._gate.expected_wait_s(ticket)))
        except BaseException:
            await self._leave_queue(waiter, ticket)
            raise
        if not has_left:
            return await waiter
        await self._leave_queue(waiter, ticket)
        return None

    async def _leave_queue(self, waiter: "asyncio.Future[Entered]", ticket: Ticket) -> None:
        waiter.cancel()
        await asyncio.wait((waiter,))
        if not waiter.cancelled() and waiter.exception() is None:
            self._gate.leave(ticket, abandoned="the client left as it was let in")


class HealthPage:
    """Serves ``GET /penstock/health`` and nothing else, for an application without a gate."""

    def __init__(self, app: App, health: Callable[[], object]) -> None:
        self._app = app
        self._health = health

    async def __call__(self, scope: Scope, receive: Receive, send: SendMessage) -> None:
        if scope["type"] == "http" and _asks_for_health(scope):
            await send_json(send, HTTPStatus.OK, self._health())
        else:
            await self._app(scope, receive, send)


async def _send_refusal(path: str, send: SendMessage, refused: Refused) -> None:
    content = refusal_problem(path, refused)
    await send_json(send, refused.status, content, _encoded(refusal_headers(refused)))


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def _send_gone(path: str, send: SendMessage, early: EarlyStream | None = None) -> None:
    """Answer a client that left: the server drops it, and a middleware around us sees a request that ended."""
    content = problem(path, _CLIENT_CLOSED_REQUEST, "client_gone", "the client left")
    with contextlib.suppress(OSError):  # what a server may raise instead of dropping it
        if early is not None and early.begun:
            await early.end()
        else:
            await send_json(send, _CLIENT_CLOSED_REQUEST, content)


def _has_left(listener: "asyncio.Future[Message]") -> bool:
    """Whether the client has left, as far as was heard."""
    return listener.done() and listener.result()["type"] == "http.disconnect"


def _asks_for_health(scope: Scope) -> bool:
    return turn_path(_path(scope)) == HEALTH_PATH and scope["method"] in ("GET", "HEAD")


def _path(scope: Scope) -> str:
    """The path below the one that the application is mounted at."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _refuse_if_lost(scope: Scope) -> None:
    """Raise ``BodyRefused`` where the server dropped the body, as uvicorn does if it is asked for an upgrade."""
    if any(name.lower() == b"upgrade" for name, _ in scope["headers"]):
        why = "the server lost the body, as it was asked for an upgrade: have the client speak HTTP/1.1 without one"
        raise BodyRefused(HTTPStatus.BAD_REQUEST, "body_lost", why)


def _without_slash(scope: Scope) -> None:
    """A path is served as its own without the slash at its end, where a server would answer with a redirect."""
    scope["path"] = scope["path"].rstrip("/")
    if scope.get("raw_path"):
        scope["raw_path"] = scope["raw_path"].rstrip(b"/")


def _as_plain(headers: Iterable[tuple[bytes, bytes]], size: int) -> list[tuple[bytes, bytes]]:
    """The headers of a request whose body is handed on as it was before it was compressed."""
    left = [each for each in headers if each[0].lower() not in (CONTENT_ENCODING, CONTENT_LENGTH)]
    return [*left, (CONTENT_LENGTH, str(size).encode())]


def _watched(
    scope: Scope, send: SendMessage, request: GatedRequest, tape: ReplyTape, ended: Callable[[], None]
) -> SendMessage:
    """Tell the client the turn's id and how long it was held, read the reply, and call ``ended`` at its end.

    A gate before this one says in the request for how long it has held it. The application may run on for a while
    after that end: SGLang waits two seconds after every stream.
    """
    held_before = (value for name, value in scope["headers"] if name == HOLD_HEADER.encode())
    before = next(held_before, b"").decode("latin-1")
    headers = (
        (HOLD_HEADER.encode(), hold_ms(request.entered.hold_ns, before).encode()),
        (TURN_HEADER.encode(), request.ticket.turn_id.encode()),
        *_encoded(told_headers(request.ticket)),
    )

    async def send_watched(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *headers]
            tape.begin(message["status"], message["headers"])
        await send(message)
        if message["type"] == "http.response.body":
            body, ends = message.get("body", b""), not message.get("more_body", False)
            start = 0
            while len(body) - start > _READ_AT_ONCE:
                tape.add(body[start : start + _READ_AT_ONCE])
                start += _READ_AT_ONCE
                await asyncio.sleep(0)  # others have their turn in the loop
            tape.add(body[start:], is_last=ends)
            if ends:
                ended()

    return send_watched
