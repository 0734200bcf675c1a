"""llama.cpp's server by its own HTTP API: the thin shell around ``slots`` and ``moves``."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from controlplane import clocks
from controlplane.core.model import commands as cmd
from controlplane.core.model.events import (
    ContextMoved,
    Pin,
    PinReclaimed,
    PoolSampled,
)
from controlplane.gate.engine_api import EngineAccess
from controlplane.gate.tickets import Ticket
from engine_hooks.guard import log
from engine_hooks.llamacpp.http_api import Props, Refused, SlotsHttp
from engine_hooks.llamacpp.moves import FILE_PREFIX, FILE_SUFFIX, Move, Moved, Moves, TierCommand
from engine_hooks.llamacpp.slots import SlotSeen, SlotTable

_SLOT_FIELD = "id_slot"
NAMES_SLOT = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses"),
    *("/chat/completions", "/completions", "/completion", "/responses"),
)
"""Where the server reads the field; of an Anthropic request it does not, and finds a slot by itself."""
_CLEARS = (
    "its slots are emptied while they are idle, as those are that share one memory: start it with -np N, which"
    " gives each its own"
)
_SILENT = "its /slots and /props do not answer yet"
_LOOK_AGAIN_S = 0.02


class LlamaCpp:
    """The ``EngineApi`` of one server. Its ``saved_path`` is the server's ``--slot-save-path``."""

    yields_to = frozenset[str]()

    def __init__(self, access: EngineAccess, *, now_ns: Callable[[], int] = clocks.awake_ns) -> None:
        self._address = access.address
        self._emit = access.emit
        self._folder = access.saved_path
        self._budget_bytes = access.saved_bytes if access.saved_path is not None else 0
        self._now_ns = now_ns
        self._server: SlotsHttp | None = None
        self._props: Props | None = None
        self._use(0)
        self._waiting: dict[str, asyncio.Future[None]] = {}  # by turn for which no slot was idle, first come first
        self._tasks: set[asyncio.Task[Any]] = set()

    def _use(self, slots: int) -> None:
        self._table = SlotTable.of(slots)
        self._moves = Moves(self._table, self._budget_bytes)

    async def run(self) -> None:
        """Until cancelled. Files that an earlier run left are deleted: nobody knows whose they are."""
        for path in self._files():
            self._delete(path.name)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            self._server = SlotsHttp(http, self._address)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._server = None
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def problem(self) -> str:
        """Why nothing obeys here; empty if it does."""
        if not self._table.slots:
            return _SILENT
        return _CLEARS if self._table.clears else ""

    # -- turns -----------------------------------------------------------------------------------------------

    async def before_turn(self, ticket: Ticket, path: str) -> Mapping[str, object]:
        """Find its slot, and load its context there; wait while every slot is busy.

        The server would queue it for a busy slot, and may load another context into that one meanwhile.
        """
        if self.problem or self._server is None:
            return {}
        try:
            if self._waiting:  # they go first
                await self._change(ticket)
            if path in NAMES_SLOT:
                return {_SLOT_FIELD: await self._slot_for(self._server, ticket)}
            await self._before_unplaced(self._server, ticket)
            return {}
        finally:
            self._waiting.pop(ticket.turn_id, None)

    async def _slot_for(self, server: SlotsHttp, ticket: Ticket) -> int:
        while (begun := self._table.begin(ticket, self._now_ns())) is None:
            await self._change(ticket)
        self._waiting.pop(ticket.turn_id, None)
        if begun.reclaimed:
            self._emit(PinReclaimed(program_id=begun.lost))
        if begun.lost:
            self._tell_lost((begun.lost,))
        await self._finish(server, self._moves.before_turn(ticket, begun))
        return begun.slot.slot_id

    async def _before_unplaced(self, server: SlotsHttp, ticket: Ticket) -> None:
        """The server finds the most similar context by itself, once that is in a slot."""
        if self._moves.is_saved(ticket):
            load = cmd.Prefetch(program_id=ticket.program_id)
            await self._finish(server, self._moves.due(load, self._now_ns()))
        while not self._table.begin_unplaced(ticket):
            await self._change(ticket)
        self._start(self._find(server, ticket.turn_id))

    async def _find(self, server: SlotsHttp, turn_id: str) -> None:
        """Look where the server runs the turn; until then no other begins."""
        while (turn := self._table.unplaced) is not None and turn.ticket.turn_id == turn_id:
            await asyncio.sleep(_LOOK_AGAIN_S)
            with suppress(Refused):
                await self._look(server)

    async def _finish(self, server: SlotsHttp, due: Move | Moved) -> None:
        """Wait for what is due; it is done to its end also where the turn's client leaves meanwhile."""
        await asyncio.shield(self._start(self._do(server, due)))

    async def _change(self, ticket: Ticket) -> None:
        """Wait until a slot may be idle; who waits again keeps its place."""
        changed = self._waiting[ticket.turn_id] = asyncio.get_running_loop().create_future()
        await changed

    def _changed(self) -> None:
        """Those who wait look again, in the order in which they came."""
        for each in self._waiting.values():
            if not each.done():
                each.set_result(None)

    def turn_ended(self, ticket: Ticket) -> None:
        """Its slot keeps its context."""
        if self._table.end(ticket.turn_id, self._now_ns()):
            self._changed()

    # -- the daemon's word -------------------------------------------------------------------------------------

    def on_command(self, command: cmd.Command) -> None:
        """Do it, or begin to."""
        table = self._table
        match command:
            case cmd.Pause():
                table.unwanted.add(command.program_id)
            case cmd.Admit():
                table.unwanted.discard(command.program_id)
            case cmd.Label():
                (table.unwanted.add if command.label == "inactive" else table.unwanted.discard)(command.program_id)
                self._answer(command, "")
            case cmd.Release():
                table.release(command.program_id)
                self._answer(command, "")
            case cmd.Retain():
                problem = self.problem or table.retain(command.program_id, command.ttl_ns, self._now_ns())
                self._answer(command, problem)
            case cmd.Demote() | cmd.Prefetch() | cmd.Discard():
                if self._server is None or self.problem:
                    self._answer(command, self.problem or _SILENT)
                else:
                    self._start(self._obey(self._server, command, self._moves.due(command, self._now_ns())))

    async def _obey(self, server: SlotsHttp, command: TierCommand, due: Move | Moved) -> None:
        self._answer(command, (await self._do(server, due)).problem)

    async def _do(self, server: SlotsHttp, due: Move | Moved) -> Moved:
        """Make the call, if one is due, and whatever it came to: delete, tell, and let others look again."""
        done = due if isinstance(due, Moved) else await self._call(server, due)
        for name in done.delete:
            self._delete(name)
        self._tell_lost(done.lost)
        self._changed()
        return done

    async def _call(self, server: SlotsHttp, move: Move) -> Moved:
        moves, problem, file_bytes = self._moves, "it was cut short", 0
        try:
            file_bytes = await server.act(move.call)
            problem = ""
        except Refused as refused:
            problem = str(refused)
        finally:
            if moves is not self._moves:
                problem = "the server is another one now"
            done = moves.end(move, problem, file_bytes, self._now_ns())
        return done

    def _answer(self, command: cmd.ProgramCommand, problem: str) -> None:
        self._emit(cmd.answer(command, problem))

    def _tell_lost(self, programs: Sequence[str]) -> None:
        for program_id in programs:
            self._emit(ContextMoved(program_id=program_id, below_tokens=0))

    # -- what the server says ------------------------------------------------------------------------------------

    async def sample(self) -> PoolSampled | None:
        """Slots are its blocks: a context takes a whole one, however short it is."""
        if self._server is None:
            return None
        try:
            props, asked_ns = await self._server.props(), self._now_ns()
            seen = await self._server.slots()
        except Refused as refused:
            log.debug("penstock: llama.cpp's server: %s", refused)
            return None
        self._take_up(props)
        self._observe(seen, asked_ns)
        now_ns, slots = self._now_ns(), self._table.slots
        retained = sum(1 for slot in slots if slot.is_retained(now_ns))
        idle = [slot for slot in slots if slot.is_idle and not slot.is_retained(now_ns)]
        free = sum(1 for slot in idle if slot.is_spare)
        saved = len(self._moves.saved)
        return PoolSampled(
            total_blocks=len(slots),
            free_blocks=free,
            evictable_blocks=len(idle) - free,
            retained_blocks=retained,
            block_tokens=props.slot_tokens,
            turns_running=sum(1 for slot in slots if slot.turn_id or slot.foreign),
            turns_waiting=len(self._waiting),
            host_total_blocks=saved + self._moves.room,
            host_used_blocks=saved,
            context_tokens=props.slot_tokens,
            reason=self.problem,
        )

    async def _look(self, server: SlotsHttp) -> None:
        """Compare with the server's slots. Raises ``Refused``."""
        asked_ns, table = self._now_ns(), self._table
        seen = await server.slots()
        if table is self._table:
            self._observe(seen, asked_ns)

    def _observe(self, seen: Sequence[SlotSeen], asked_ns: int) -> None:
        self._tell_lost(self._table.observe(seen, asked_ns))
        self._table.unwanted &= {slot.program_id for slot in self._table.slots}
        self._changed()

    def _take_up(self, props: Props) -> None:
        """It is there, for the first time or as another one, whose slots are empty."""
        if props == self._props:
            return
        self._props = props
        for program_id in list(self._moves.saved):
            for name in self._moves.drop(program_id):
                self._delete(name)
            self._tell_lost((program_id,))
        self._use(props.slots)
        self._changed()

    def pins(self) -> Sequence[Pin]:
        return tuple(self._table.pins(self._now_ns()))

    # -- files -----------------------------------------------------------------------------------------------------

    def _files(self) -> Sequence[Path]:
        with suppress(OSError):
            if self._folder is not None:
                return sorted(self._folder.glob(f"{FILE_PREFIX}*{FILE_SUFFIX}"))
        return ()

    def _delete(self, name: str) -> None:
        with suppress(OSError):
            if self._folder is not None:
                (self._folder / name).unlink()


def engine_api(access: EngineAccess) -> LlamaCpp:
    """The ``EngineApi`` of the server there."""
    return LlamaCpp(access)
