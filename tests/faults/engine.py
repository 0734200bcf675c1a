"""A server: the real gate and emitters around a modelled engine."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.emit.emitter import Emitter
from controlplane.gate import Gate, GateLink, Inbox, Refused, Ticket

from .processes import NODE, URL, Process

if TYPE_CHECKING:
    from .world import World

_AT_ONCE = 8  # turns that run together
_POOL_BLOCKS = 100_000
_BLOCK_TOKENS = 16
_SAMPLE_S = 1.0
_MOVES = (cmd.Retain, cmd.Release, cmd.Discard, cmd.Demote, cmd.Prefetch, cmd.Label)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One turn as its client sends it. ``tools``: what its reply will call; None: nobody can tell."""

    ticket: Ticket
    service_s: float
    tokens: int
    tools: tuple[str, ...] | None
    answer: Callable[[str], None]  # with "" or what went wrong


class EngineServer(Process):
    """A gate's thread, an engine's thread, and an emitter's thread for each."""

    def __init__(self, world: "World", name: str, port: int, boot: int) -> None:
        super().__init__(world, name)
        now_ns = self._now_ns = lambda: world.scheduler.now_ns
        self.http, self.engine = self.thread("http"), self.thread("engine")
        self.gate = Gate(send=self._tell_of_the_gate, now_ns=now_ns)
        link = GateLink(self.gate, send=self._tell_of_the_gate, publisher=lambda: self.gate_emitter.publisher)
        inbox = Inbox(self._hear(link.receive), now_ns=now_ns)
        self.gate_emitter = Emitter(
            url=URL,
            node=NODE,
            role=f"gate-{port}",
            on_command=inbox.post,
            on_heartbeat=inbox.post,
            runtime=self.runtime(f"{name} gate"),
        )
        self.engine_emitter = Emitter(
            url=URL,
            node=NODE,
            role=f"engine-{port}",
            on_command=lambda command: self.engine.call_soon_threadsafe(self._obey, command),
            state=self._state,
            runtime=self.runtime(f"{name} engine"),
        )
        for emitter, role in ((self.gate_emitter, f"gate-{port}"), (self.engine_emitter, f"engine-{port}")):
            emitter.publisher = f"{NODE}/{role}/{boot:012x}"
        self.open: dict[str, Request] = {}  # requests whose clients wait
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.running: dict[str, tuple[Request, int]] = {}  # by turn, with the blocks that it holds
        self._waiting: OrderedDict[str, tuple[Request, asyncio.Future[None]]] = OrderedDict()
        inbox.attach(self.http)
        for emitter in (self.gate_emitter, self.engine_emitter):
            emitter.start()
        self.engine.call_soon(self._sample)

    def _tell_of_the_gate(self, event: ev.Event, urgent: bool) -> None:
        self.gate_emitter.emit(event, urgent)

    def _hear(self, receive: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        def heard(item: Any, received_ns: int) -> None:
            self.world.auditor.reached_gate(self, item)
            receive(item, received_ns)

        return heard

    # Requests

    def take(self, request: Request) -> None:
        """A client's request arrives."""
        if not self.is_alive:
            request.answer("connection refused")
            return
        turn_id = request.ticket.turn_id
        self.open[turn_id] = request
        self.http.call_soon_threadsafe(self._begin, request)

    def _begin(self, request: Request) -> None:
        turn_id = request.ticket.turn_id
        if turn_id in self.open:  # else its client has left already
            self._tasks[turn_id] = self.http.create_task(self._serve(request))

    def hang_up(self, turn_id: str) -> None:
        """The client leaves."""
        self.open.pop(turn_id, None)
        self.http.call_soon_threadsafe(self._cancel, turn_id)

    def _cancel(self, turn_id: str) -> None:
        task = self._tasks.pop(turn_id, None)
        if task is not None:
            task.cancel()

    async def _serve(self, request: Request) -> None:
        """What the gate's middleware does with a request."""
        auditor, ticket = self.world.auditor, request.ticket
        auditor.asks(self, ticket)
        problem = ""
        try:
            await self.gate.enter(ticket)
            auditor.entered(self, ticket)
            try:
                await self._generate(request)
            finally:
                self.gate.leave(ticket)
            if request.tools is not None:
                self.gate.reply_read(ticket, request.tools)
        except Refused as error:
            problem = error.code
            auditor.refused(self, ticket, error.code)
        finally:
            auditor.left(self, ticket)
            self._tasks.pop(ticket.turn_id, None)
        if self.open.pop(ticket.turn_id, None) is not None:
            request.answer(problem)

    async def _generate(self, request: Request) -> None:
        done = self.http.create_future()

        def ended() -> None:
            if not done.done():
                done.set_result(None)

        def begin() -> None:
            self.engine.create_task(self._run(request)).add_done_callback(
                lambda _: self.http.is_closed() or self.http.call_soon_threadsafe(ended)
            )

        self.engine.call_soon_threadsafe(begin)
        await done

    # The engine

    async def _run(self, request: Request) -> None:
        ticket, emit = request.ticket, self.engine_emitter.emit
        blocks = -(-request.tokens // _BLOCK_TOKENS)
        turn = {"program_id": ticket.program_id, "turn_id": ticket.turn_id}
        self.running[ticket.turn_id] = (request, blocks)
        emit(ev.TurnSubmitted(**turn, projected_blocks=blocks, prompt_tokens=request.tokens))
        if len(self.running) > _AT_ONCE:
            free = self.engine.create_future()
            self._waiting[ticket.turn_id] = (request, free)
            await free
        await asyncio.sleep(request.service_s / 4)
        emit(ev.FirstToken(**turn, prefill_ns=round(request.service_s / 4 * 1e9), prompt_tokens=request.tokens))
        await asyncio.sleep(request.service_s * 3 / 4)
        del self.running[ticket.turn_id]
        if self._waiting:
            self._waiting.popitem(last=False)[1][1].set_result(None)
        service_ns = round(request.service_s * 1e9)
        emit(
            ev.TurnEnded(
                **turn,
                prompt_tokens=request.tokens,
                output_tokens=50,
                service_ns=service_ns,
            )
        )

    def _sample(self) -> None:
        used = sum(blocks for _, blocks in self.running.values())
        self.engine_emitter.emit(
            ev.PoolSampled(
                total_blocks=_POOL_BLOCKS,
                free_blocks=_POOL_BLOCKS - used,
                block_tokens=_BLOCK_TOKENS,
                turns_running=len(self.running),
            )
        )
        self.engine.call_later(_SAMPLE_S, self._sample)

    def _obey(self, command: cmd.Command) -> None:
        if isinstance(command, _MOVES):
            self.engine_emitter.emit(
                ev.CommandApplied(command_id=command.command_id, program_id=command.program_id)
            )

    def _state(self) -> ev.PublisherState:
        turns = tuple(
            ev.OpenTurn(program_id=request.ticket.program_id, turn_id=turn_id, blocks=blocks)
            for turn_id, (request, blocks) in list(self.running.items())
        )
        return ev.PublisherState(role="engine", open_turns=turns)

    # Its end

    def kill(self) -> None:
        super().kill()
        self.world.auditor.server_died(self)
        for emitter in (self.gate_emitter, self.engine_emitter):
            emitter.close(0.0)
        for request in list(self.open.values()):
            request.answer("connection reset")
        self.open.clear()
