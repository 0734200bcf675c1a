"""One request of Envoy's, from its headers to the end of its answer: a stream of ``ext_proc`` is a turn."""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NoReturn

import grpc

from controlplane.core.estimators.prompt_size import PromptSize
from controlplane.core.model.places import rank_of
from controlplane.fleet import messages
from controlplane.fleet.active_turn import ActiveTurn
from controlplane.fleet.engine_turn import EngineTurn
from controlplane.fleet.messages import BUFFERED, DUPLEX, NONE, Request
from controlplane.fleet.picker_context import PickerContext
from controlplane.fleet.roster import Engine
from controlplane.fleet.watched_reply import WatchedReply
from controlplane.gate.asgi import ClientGone, Message
from controlplane.gate.bodies import BodyRefused, json_object, with_fields
from controlplane.gate.contexts import measured
from controlplane.gate.continuity import TurnOfContext
from controlplane.gate.encodings import UnknownEncoding, encoding_of
from controlplane.gate.endings import ENDING_PATHS, ended, is_last, with_query
from controlplane.gate.engine_api import EngineApi
from controlplane.gate.flushes import CONTEXTS_ENDED, FLUSHING_PATHS, WEIGHTS_UPDATED
from controlplane.gate.identity import PROGRAM_HEADER, BadIdentity, Identity
from controlplane.gate.problems import problem
from controlplane.gate.request_ids import ID_HEADERS, RANK_HEADER, REQUEST_ID_HEADER, carried_of, request_id_with
from controlplane.gate.requests import (
    GATED_METHODS,
    HEALTH_PATH,
    HOLD_HEADER,
    TURN_HEADER,
    count_of,
    hold_ms,
    new_turn_id,
    refusal_headers,
    refusal_problem,
    ticket_of,
    timeout_from,
)
from controlplane.gate.sizing import Prompt
from controlplane.gate.tickets import Entered, Refused, Ticket, refusal

_ASKING = "asking"  # of the roles in a stream's metadata
# Seconds of the proxy's wall clock, stamped by its first hop, and by the one that asks us now.
_ARRIVED, _ASKED = b"x-penstock-arrived", b"x-penstock-asked"
_ATTEMPT = b"x-envoy-attempt-count"
_REFUSED = "penstock_refused"  # in Envoy's access log; asked again is only what begins with ext_proc_error
_NO_ENGINE = "no engine serves now"
# What Envoy is configured to grant; it ignores whoever asks for more. The gate decides before that, and what has
# begun waits for as long. Envoy takes one such word for a message: in a crowd it is said before the body is read.
_LONGEST_HOLD_MS = 3_600_000


class _Answered(Exception):
    """The client has its answer, and the stream is over."""


class RequestStream:
    """Reads what Envoy says of one request and answers it, over one stream.

    Where Envoy fails closed, so that a lost picker is asked for again, a stream that stayed open would cut its turn
    with the picker. So one that says it is ``asking`` ends with its answer, and another, which only observes, shows
    the rest. Of Envoys with one filter the same stream does.
    """

    def __init__(self, picker: PickerContext, context: Any, role: str) -> None:
        self._picker = picker
        self._context = context
        self._only_asks = role == _ASKING
        self._turn: ActiveTurn | None = None
        self._is_awaiting = False
        self._is_last = False
        self._prompt: Prompt | None = None  # of a program with a name
        self._reply: WatchedReply  # from when it is known to be a turn
        self._in_context: TurnOfContext | None = None
        self._body_read = False
        self._repaired = b""  # what goes in the body's place
        self._body = b""  # a body that is to be sent back, or that fields may be set in
        self._at_engine: EngineTurn | None = None
        self._pieces: list[bytes] | None = None  # of one that is sent back as it came, compressed
        self._has_trailers = False
        self._task: asyncio.Task[Any] | None = None
        self._moves_on = False

    async def run(self) -> None:
        """Serve the stream to its end. Whatever happens, its turn has left the gate afterwards, or is watched."""
        try:
            first = await self._context.read()
            if first is grpc.aio.EOF:
                return
            if first.observability_mode:
                await self._observe(first)
                return
            if first.WhichOneof("request") != "request_headers":
                self._picker.counters.malformed += 1
                await self._rest(NONE, NONE, first)
                return
            request = messages.request_of(first)
            del first
            self._picker.undecided += 1
            try:
                await self._decide(request)
            finally:
                self._picker.undecided -= 1
            if self._only_asks and request.body_mode != DUPLEX:
                return
            await self._rest(request.body_mode, request.answer_mode)
            if self._turn is not None:
                self._turn.over()
        except (_Answered, ClientGone):  # the latter closed its side within its request
            pass
        except asyncio.CancelledError:
            if not self._moves_on:
                raise
            await self._context.abort(grpc.StatusCode.UNAVAILABLE, "this picker serves no more: ask another")
        finally:
            if self._turn is not None:
                self._turn.over(cut=True)
            elif not self._is_awaiting:
                self._leave_context()

    def move_on(self) -> None:
        """End a held stream so that Envoy asks another picker."""
        if self._task is not None and not self._moves_on:
            self._moves_on = True
            self._task.cancel()

    # -- the request ---------------------------------------------------------------------------------------

    async def _decide(self, request: Request) -> None:
        """Say where the request goes, once it may. Raises ``_Answered`` if it goes nowhere."""
        if self._picker.health is not None and request.method == "GET" and request.path == HEALTH_PATH:
            await self._answer(HTTPStatus.OK, self._picker.health(), {})
        if request.method in GATED_METHODS and request.turn_path == WEIGHTS_UPDATED:
            self._picker.gate.cache_flushed(request.path)
            await self._answer(HTTPStatus.OK, CONTEXTS_ENDED, {})
        try:
            ticket = await self._ticket_of(request)
        except BadIdentity as bad:
            await self._problem(request, HTTPStatus.BAD_REQUEST, "bad_identity", str(bad))
        except (BodyRefused, UnknownEncoding) as refused:
            await self._problem(request, refused.status, refused.code, str(refused))
        if ticket is None:
            self._picker.counters.passed += 1
            engines = self._picker.choice.any(request.subset)
            if not engines:
                await self._problem(request, HTTPStatus.SERVICE_UNAVAILABLE, "no_engine", _NO_ENGINE)
            if request.turn_path in FLUSHING_PATHS:  # its answer is shown to nobody here
                self._picker.gate.cache_flushed(request.path, engines[0].place)
            await self._send_on(request, engines, {})
            return
        try:
            entered = await self._enter(request, ticket)
            await self._make_ready(request, ticket)
            engines = self._start(request, ticket, entered)
        except Refused as refused:
            await self._refuse(request, refused)
        # A gate at the engine's node is to call the turn and its program as this one does.
        own = {
            TURN_HEADER: ticket.turn_id,
            PROGRAM_HEADER: ticket.program_id,
            HOLD_HEADER: hold_ms(entered.hold_ns),
        }
        if self._picker.names_in_request_id():
            carried = carried_of(ticket)
            client_own = request.header(REQUEST_ID_HEADER.encode())
            own |= dict.fromkeys(ID_HEADERS, request_id_with(carried, client_own))
            rank = rank_of(engines[0].place)
            if rank is not None and not request.header(RANK_HEADER.encode()):  # whose client says where has its way
                own[RANK_HEADER] = str(rank)
        await self._send_on(request, engines, own)

    async def _ticket_of(self, request: Request) -> Ticket | None:
        """The ticket of a turn; None for what is no turn. Raises ``BadIdentity`` and ``BodyRefused``."""
        path, is_sent = request.turn_path, request.method in GATED_METHODS
        if is_sent and path in ENDING_PATHS:
            await self._end_program(request, path)
        if not (is_sent and request.has_body and path in self._picker.paths):
            return None
        self._reply = WatchedReply(self._picker.replies, path)
        if request.body_mode in (BUFFERED, DUPLEX):
            return await self._ticket_of_body(request, encoding_of(request.headers))
        identity = self._picker.gate.tenants.identify(request.headers, None)
        size = count_of(request.header(b"content-length"))  # which says nothing of what is in it
        return self._ticket_for(request, identity, None, prompt=PromptSize(agent=identity.agent), held_bytes=size)

    async def _end_program(self, request: Request, path: str) -> None:
        """Whoever asks for it is answered here, or by the engine where that has such a path."""
        is_shown = request.has_body and request.body_mode in (BUFFERED, DUPLEX)
        found = await self._body_of(request, encoding_of(request.headers)) if is_shown else None
        body = with_query(request.query, found[0] if found else None)
        identity = self._picker.gate.tenants.identify(request.headers, body)
        answer = ended(self._picker.gate, identity, path, body)
        if answer is not None:
            await self._answer(HTTPStatus.OK, answer, {})

    async def _body_of(self, request: Request, encoding: str) -> tuple[dict[str, Any], bytes] | None:
        """The request's body, parsed and as it is; None for what is no JSON object."""
        if request.body_mode == BUFFERED:
            await self._context.write(messages.go_on("request_headers"))
            if self._picker.is_crowded:  # say so before the body, which costs far more, has its turn in the loop
                await self._context.write(messages.more_time(_LONGEST_HOLD_MS))
        self._pieces = [] if encoding and request.body_mode == DUPLEX else None
        data = await self._picker.bodies.read(self._piece, encoding)
        self._body_read = True
        body = await json_object(data)
        api = self._api_of(self._picker.choice.any(request.subset))
        if request.body_mode == DUPLEX:
            self._body = data if self._pieces is None else b"".join(self._pieces)
        elif api is not None and api.yields_to.isdisjoint(body or ()):
            self._body = data
        return None if body is None else (body, data)

    async def _ticket_of_body(self, request: Request, encoding: str) -> Ticket | None:
        """As ``_ticket_of``; nothing of the body is kept but what has to be sent back."""
        if (found := await self._body_of(request, encoding)) is None:
            return None
        body, data = found
        identity = self._picker.gate.tenants.identify(request.headers, body)
        if request.body_mode == BUFFERED:
            body, self._repaired = self._picker.repairer.sent_on(identity.program_id, body, data)
        prompt = await measured(body, len(data))
        identity, self._in_context = self._picker.continuity.name(identity, body, prompt)
        identity = self._picker.gate.tenants.scope(identity)
        self._is_last = is_last(request.headers, body)
        if not (self._is_last or identity.is_one_turn):
            self._reply = WatchedReply(self._picker.replies, request.turn_path, body)
        change = self._picker.contexts.change(identity.program_id, prompt, request.headers)
        told = {"prompt": self._picker.contexts.size(identity, prompt), "change": change, "held_bytes": len(data)}
        ticket = self._ticket_for(request, identity, body, **told)
        if not identity.is_one_turn:
            self._prompt = prompt
        return ticket

    def _ticket_for(self, request: Request, identity: Identity, body: dict[str, Any] | None, **told: Any) -> Ticket:
        return ticket_of(
            identity,
            new_turn_id(),
            waited_ns=self._waited_ns(request),
            timeout_s=timeout_from(request.headers),
            asked=self._picker.gate.hints.asked(identity, request.headers, body),
            **told,
        )

    def _waited_ns(self, request: Request) -> int:
        """How long pickers before this one held the request, in the gate's time; 0 where that makes no sense.

        Both instants are by the proxy's clock: ours may differ.
        """
        if count_of(request.header(_ATTEMPT)) < 2:
            return 0
        self._picker.counters.asked_again += 1
        try:
            waited_s = float(request.header(_ASKED)) - float(request.header(_ARRIVED))
        except ValueError:
            return 0
        limits = self._picker.gate.limits
        waited_ns = waited_s * limits.wall_second_ns
        return int(waited_ns) if 0 < waited_ns < limits.hold_ns else 0

    async def _piece(self) -> Message:
        """The next piece of the request's body, as the reader of bodies wants it."""
        message = await self._context.read()
        if message is grpc.aio.EOF:
            return {"type": "http.disconnect"}
        kind = message.WhichOneof("request")
        if kind == "request_body":
            body = message.request_body
            if self._pieces is not None:
                self._pieces.append(body.body)
            return {"type": "http.request", "body": body.body, "more_body": not body.end_of_stream}
        self._has_trailers = kind == "request_trailers"
        if not self._has_trailers:
            self._picker.counters.malformed += 1
        return {"type": "http.request", "body": b"", "more_body": not self._has_trailers}

    # -- the gate ------------------------------------------------------------------------------------------

    async def _enter(self, request: Request, ticket: Ticket) -> Entered:
        """Wait until the turn may run. Raises ``Refused``."""
        gate = self._picker.gate
        if not self._picker.choice.is_there_any(request.subset):
            raise self._no_engine(ticket, 0)
        entered = gate.try_enter(ticket)
        if entered is not None:
            return entered
        self._picker.counters.held += 1
        if request.body_mode != DUPLEX:  # there Envoy waits without a limit
            await self._context.write(messages.more_time(_LONGEST_HOLD_MS))
        self._task = asyncio.current_task()
        self._picker.holding.add(self)
        try:
            return await gate.enter(ticket)
        finally:
            self._picker.holding.discard(self)

    async def _make_ready(self, request: Request, ticket: Ticket) -> None:
        """Have its engine do first what it has to, which may take as long as the engine has no room."""
        api = self._api_of(self._picker.choice.of_program(ticket.program_id, request.subset))
        if api is None or not self._body or request.body_mode != BUFFERED:
            return

        async def is_held() -> None:
            await self._context.write(messages.more_time(_LONGEST_HOLD_MS))

        self._at_engine = EngineTurn(api, ticket)
        try:
            await self._at_engine.begin(request.turn_path, is_held)
        except BaseException:
            self._picker.gate.leave(ticket, abandoned="the client left before the engine was ready")
            raise

    def _api_of(self, engines: tuple[Engine, ...]) -> EngineApi | None:
        return self._picker.engine_api(engines[0]) if engines else None

    def _start(self, request: Request, ticket: Ticket, entered: Entered) -> tuple[Engine, ...]:
        """The turn runs from now on. Raises ``Refused`` where no engine is left."""
        picker = self._picker
        engines = picker.choice.of_program(ticket.program_id, request.subset)
        if not engines:
            picker.gate.leave(ticket, abandoned=_NO_ENGINE)
            self._afterwards()
            raise self._no_engine(ticket, entered.hold_ns)
        picker.counters.turns += 1
        if self._prompt is not None:
            picker.contexts.remember(ticket.program_id, ticket.turn_id, self._prompt)
            self._prompt = None
        turn = ActiveTurn(
            ticket,
            engines[0],
            hold_ns=entered.hold_ns,
            is_last=self._is_last,
            gate=picker.gate,
            turns=picker.turns,
            now_ns=picker.now_ns,
            afterwards=self._afterwards,
            reply=self._reply,
        )
        if self._only_asks and request.body_mode != DUPLEX:
            # From here, not from when it was sent: Envoy ends the stream as soon as it has the choice, which may
            # cancel this task while it still waits for the sending.
            self._is_awaiting = True
            picker.awaiting.expect(turn)
        else:
            self._turn = turn
        return engines

    def _afterwards(self) -> None:
        if self._at_engine is not None:
            self._at_engine.end()
        self._leave_context()

    def _leave_context(self) -> None:
        if self._in_context is not None:
            self._in_context.over(self._reply.reply_id)

    def _no_engine(self, ticket: Ticket, hold_ns: int) -> Refused:
        status = HTTPStatus.SERVICE_UNAVAILABLE
        return refusal(self._picker.gate.limits, ticket, status, "no_engine", _NO_ENGINE, hold_ns)

    # -- answers -------------------------------------------------------------------------------------------

    async def _send_on(self, request: Request, engines: tuple[Engine, ...], own: Mapping[str, str]) -> None:
        addresses = ",".join(engine.address for engine in engines)
        common = messages.choice(addresses, own)
        if self._body_read and request.body_mode == BUFFERED:
            fields = self._at_engine.fields if self._at_engine is not None else {}
            data, self._body = self._repaired or self._body, b""
            body = with_fields(data, fields) if fields and data else self._repaired or None
            await self._context.write(messages.on_body(common, addresses, body))
            return
        then = None
        if request.has_body and request.body_mode not in (NONE, DUPLEX):
            # With nothing to come Envoy itself ends the stream: were it open when the picker dies, a turn on
            # its way would be asked for again, and run twice.
            then = messages.NOTHING if self._only_asks else messages.ONLY_THE_ANSWER
        await self._context.write(messages.on_headers(common, addresses, then=then))
        if self._body_read:
            body, self._body = self._body, b""
            for piece in messages.bodies_back("request_body", body, last=not self._has_trailers):
                await self._context.write(piece)
            if self._has_trailers:
                await self._context.write(messages.go_on("request_trailers"))

    async def _refuse(self, request: Request, refused: Refused) -> NoReturn:
        await self._answer(refused.status, refusal_problem(request.path, refused), refusal_headers(refused))

    async def _problem(self, request: Request, status: int, code: str, message: str) -> NoReturn:
        headers = {}
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            limits = self._picker.gate.limits
            headers["retry-after"] = str(max(1, limits.retry_after_ns // limits.wall_second_ns))
        await self._answer(status, problem(request.path, status, code, message), headers)

    async def _answer(self, status: int, content: object, headers: Mapping[str, str]) -> NoReturn:
        self._picker.counters.refused += status >= HTTPStatus.BAD_REQUEST
        await self._context.write(messages.answer_at_once(status, content, headers, _REFUSED))
        raise _Answered

    async def _rest(self, body_mode: int, answer_mode: int, message: Any = None) -> None:
        """Follow the answer to its end, and let all pass that Envoy shows meanwhile."""
        message = message if message is not None else await self._context.read()
        while message is not grpc.aio.EOF:
            kind = message.WhichOneof("request") or ""
            if kind == "response_headers":
                await self._context.write(messages.with_answer_headers(self._follow(message, self._turn)))
            elif (kind, DUPLEX) in (("request_body", body_mode), ("response_body", answer_mode)):
                self._follow(message, self._turn)
                body = getattr(message, kind)
                for piece in messages.bodies_back(kind, body.body, last=body.end_of_stream):
                    await self._context.write(piece)
            elif (reply := messages.go_on(kind)) is not None:
                if kind == "response_trailers":
                    self._follow(message, self._turn)
                await self._context.write(reply)
            else:
                self._picker.counters.malformed += 1
            message = await self._context.read()

    async def _observe(self, message: Any) -> None:
        """Follow a turn that was sent on, by what a filter behind the asking one shows; it waits for no reply."""
        turn: ActiveTurn | None = None
        try:
            while message is not grpc.aio.EOF:
                if message.WhichOneof("request") == "request_headers":
                    turn = self._picker.awaiting.take(messages.turn_named(message))
                else:
                    self._follow(message, turn)
                if turn is not None and turn.is_complete:
                    return  # Envoy's filter goes later: nothing is worth waiting for
                message = await self._context.read()
        finally:
            if turn is not None:
                turn.over(cut=True)

    def _follow(self, message: Any, turn: ActiveTurn | None) -> Mapping[str, str]:
        """Take note of what a message shows of the turn's answer. Return what its client is told beside."""
        kind = message.WhichOneof("request")
        if turn is not None and kind == "response_headers":
            status, address, headers = messages.answer_of(message)
            self._picker.counters.elsewhere += turn.answered(status, self._picker.choice.at(address), headers)
            return turn.response_headers(headers)
        if turn is not None and kind == "response_body":
            turn.passed(message.response_body.body, is_last=message.response_body.end_of_stream)
        elif turn is not None and kind == "response_trailers":
            turn.passed(b"", is_last=True)
        return {}
