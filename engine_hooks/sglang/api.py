"""SGLang without the plugin, by its own HTTP API: the thin shell around ``sessions``."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import aiohttp

from controlplane import clocks
from controlplane.core.model import commands as cmd
from controlplane.core.model.events import Pin, PoolSampled
from controlplane.core.model.types import seconds
from controlplane.gate.endings import OURS
from controlplane.gate.engine_api import EngineAccess
from controlplane.gate.tickets import Ticket
from engine_hooks.guard import log
from engine_hooks.sglang.sessions import Sessions

NAMES_SESSION = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate", "/invocations")
"""Where SGLang reads the field; of Anthropic's and Ollama's requests it hands none on."""
_FIELD = "session_id"
_OF_THE_CLIENT = frozenset({"session_params"})  # SGLang refuses a request with both
_OFF = "it was started without --enable-session-radix-cache, so that its sessions keep nothing"
_SILENT = "its /server_info does not answer yet"
_NO_TIER = "its sessions move nothing: that takes the plugin"
_LOOK_NS = seconds(30)  # it asks the schedulers
_TURN_S = 1.0
_ANSWERS_WITHIN_S = 5.0


class SglangSessions:
    """The ``EngineApi`` of one server."""

    yields_to = _OF_THE_CLIENT

    def __init__(self, access: EngineAccess, *, now_ns: Callable[[], int] = clocks.awake_ns) -> None:
        self._url = f"http://{access.address}"
        self._emit = access.emit
        self._now_ns = now_ns
        self._problem = _SILENT
        self._sessions = Sessions()
        self._life: object = None  # what of the server changes with each start of it
        self._looked_ns: int | None = None
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled. What an earlier run left open is closed first, or turns would go on without."""
        timeout = aiohttp.ClientTimeout(total=_ANSWERS_WITHIN_S)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            while True:
                self._changed.clear()
                try:
                    await self._look(http)
                    if not self._problem:
                        await self._close_due(http)
                except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                    log.debug("penstock: SGLang at %s: %s", self._url, error or type(error).__name__)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_TURN_S):
                        await self._changed.wait()

    async def _look(self, http: aiohttp.ClientSession) -> None:
        """Whether it has such sessions, and is the same server as before: another one has none of them open."""
        is_old = self._looked_ns is None or self._now_ns() - self._looked_ns >= _LOOK_NS
        if not (is_old or self._problem == _SILENT):
            return
        self._looked_ns = self._now_ns()
        async with http.get(f"{self._url}/server_info") as answer:
            if answer.status != 200:
                self._problem = f"its /server_info answers {answer.status}"
                return
            said = await answer.json(content_type=None)
        said = said if isinstance(said, dict) else {}
        self._problem = "" if said.get("enable_session_radix_cache") is True else _OFF
        if self._life != (life := said.get("startup_time")):
            self._life, self._sessions = life, Sessions()

    async def _close_due(self, http: aiohttp.ClientSession) -> None:
        sessions = self._sessions
        for number in sessions.due(self._now_ns()):
            async with http.post(f"{self._url}/close_session", json={_FIELD: _name(number)}) as answer:
                if answer.status != 200:  # it is tried again after the next look
                    self._problem = f"its /close_session answers {answer.status}"
                    return
            sessions.closed(number)

    @property
    def problem(self) -> str:
        """Why nothing obeys here; empty if it does."""
        return self._problem

    # -- turns -----------------------------------------------------------------------------------------------

    async def before_turn(self, ticket: Ticket, path: str) -> Mapping[str, object]:
        """Name its program's session. Nobody goes on with the context of a program of one turn."""
        if self._problem or ticket.is_one_turn or path not in NAMES_SESSION:
            return {}
        number = self._sessions.begin(ticket, self._now_ns())
        return {} if number is None else {_FIELD: _name(number)}

    def turn_ended(self, ticket: Ticket) -> None:
        """SGLang holds its context by now: it does so before it answers the last of the turn."""
        self._sessions.end(ticket, self._now_ns())
        self._changed.set()

    # -- the daemon's word -------------------------------------------------------------------------------------

    def on_command(self, command: cmd.Command) -> None:
        """Do it. To be closed is to be the first that SGLang evicts, and so what a discard comes to here."""
        sessions = self._sessions
        match command:
            case cmd.Pause():
                sessions.park(command.program_id)
            case cmd.Admit():
                sessions.want(command.program_id)
            case cmd.Label():
                if command.label == "inactive":
                    sessions.park(command.program_id)
                self._answer(command, "")
            case cmd.Retain():
                problem = self._problem or sessions.retain(command.program_id, command.ttl_ns, self._now_ns())
                self._answer(command, problem)
            case cmd.Release():
                sessions.let_go(command.program_id)
                self._answer(command, "")
            case cmd.Discard():
                self._answer(command, self._problem or sessions.let_go(command.program_id))
            case cmd.Demote():
                sessions.let_go(command.program_id)
                self._answer(command, _NO_TIER)
            case cmd.Prefetch():
                self._answer(command, _NO_TIER)
        self._changed.set()

    def _answer(self, command: cmd.ProgramCommand, problem: str) -> None:
        self._emit(cmd.answer(command, problem))

    # -- what it says --------------------------------------------------------------------------------------------

    async def sample(self) -> PoolSampled | None:
        """Its metrics page tells its pool."""
        return None

    def pins(self) -> Sequence[Pin]:
        return tuple(self._sessions.pins(self._now_ns()))


def _name(number: int) -> str:
    return f"{OURS}{number}"


def engine_api(access: EngineAccess) -> SglangSessions:
    """The ``EngineApi`` of the server there."""
    return SglangSessions(access)
