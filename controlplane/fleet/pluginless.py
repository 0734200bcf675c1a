"""Engines without a plugin: the fleet tells of them what they do not tell themselves, as if they did.

What passes through Envoy tells when a turn began, answered and ended. How long it was its answer's ``usage`` says,
where the proxy lets it be seen; else its bytes do, at the rate of tokens per byte that is learned. The engine's
metrics page tells its pool (``checkup.py``). So admission and placement work as for any engine. Retention does
where the engine has an API of its own for it (``gate/engine_api.py``); order does not.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

from controlplane import clocks
from controlplane.core.estimators.moving_average import MovingAverage
from controlplane.core.estimators.prompt_size import PromptSizes, sender_of
from controlplane.core.model.causes import CHANGE_FIELDS
from controlplane.core.model.events import (
    BY_API,
    NO_PLUGIN,
    Event,
    FirstToken,
    OpenTurn,
    PoolSampled,
    PublisherState,
    TurnEnded,
    TurnSubmitted,
)
from controlplane.core.model.types import seconds
from controlplane.emit.emitter import Emitter
from controlplane.fleet.metrics_page import PoolPage
from controlplane.fleet.roster import Engine, Roster
from controlplane.gate.engine_api import EngineApi
from controlplane.gate.tickets import Ticket
from controlplane.gate.usage import Usage

_RESTATE_NS = seconds(10)
_CLOSE_S = 2.0
_DEFAULT_OUTPUT_TOKENS = 256.0
_MOST_COUNTED = 4096  # turns of an engine whose prompts are remembered


@dataclass(slots=True, kw_only=True)
class _Turn:
    ticket: Ticket
    place: str
    began_ns: int
    prompt_tokens: int  # estimated
    blocks: int
    answered: bool = False
    status: int = 0


@dataclass(slots=True, kw_only=True)
class _EngineState:
    """What is known of one engine without a plugin."""

    publisher: Emitter
    prompts: PromptSizes = field(default_factory=PromptSizes)
    # By turn: what its answer said of its prompt.
    counted: OrderedDict[str, int] = field(default_factory=OrderedDict)
    output: MovingAverage = field(default_factory=lambda: MovingAverage(value=_DEFAULT_OUTPUT_TOKENS))
    block_tokens: int = 1
    api: EngineApi | None = None  # by which it obeys
    pool: str = ""  # where its pool's size is known from; empty: it is not known
    restated_ns: int = 0

    def tokens(self, ticket: Ticket) -> int:
        """About how many its prompt has."""
        size = ticket.prompt
        sender = sender_of(ticket.program_id, ticket.account)
        return ceil(self.prompts.estimate(size, sender, self.counted.get(size.continues, 0)).tokens)

    def learn(self, ticket: Ticket, usage: Usage) -> None:
        """So many it had, as its answer says."""
        self.output.add(usage.output_tokens)
        size, sender = ticket.prompt, sender_of(ticket.program_id, ticket.account)
        self.prompts.learn(size, sender, usage.prompt_tokens, self.counted.get(size.continues, 0))
        self.counted[ticket.turn_id] = usage.prompt_tokens
        if len(self.counted) > _MOST_COUNTED:
            self.counted.popitem(last=False)


class PluginlessEngines:
    """Publishes for the roster's engines without a plugin, while it leads; the picker tells it of all turns.

    It is the picker's ``Turns``. ``publisher`` makes the emitter of a node and a role. Everything is called in one
    event loop's thread, but for the publishers' own.
    """

    def __init__(
        self,
        roster: Roster,
        publisher: Callable[[str, str], Emitter],
        *,
        now_ns: Callable[[], int] = clocks.awake_ns,
    ) -> None:
        self._roster = roster
        self._make = publisher
        self._now_ns = now_ns
        self._states: dict[str, _EngineState] = {}  # by place
        self._turns: dict[str, _Turn] = {}  # by turn id
        self._leads = False
        self._has_status = False
        self._closing: set[asyncio.Future[None]] = set()
        self.answers: Counter[str] = Counter()  # by place, of all engines: turns that it began to answer
        roster.on_change.append(self._look)

    # -- leading -------------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Publish from now on."""
        self._leads = True
        self._look()

    async def stop(self) -> None:
        """Publish no more: another one does, who knows nothing of the turns that are open here."""
        self._leads = False
        self._turns.clear()
        for place in list(self._states):
            self._close(place)
        if self._closing:
            await asyncio.wait(self._closing)

    def _look(self) -> None:
        """The roster has changed, or we lead."""
        if not self._leads:
            return
        there = {engine.place for engine in self._roster if not engine.has_plugin}
        for place in [place for place in self._states if place not in there]:
            self._close(place)
        for place in there - self._states.keys():
            node, _, role = place.rpartition("/")
            publisher = self._make(node, role)
            publisher.start()
            self._states[place] = _EngineState(publisher=publisher)
        for gone in self.answers.keys() - {engine.place for engine in self._roster}:
            del self.answers[gone]

    def _close(self, place: str) -> None:
        """In another thread: it sends what it has yet to send."""
        publisher = self._states.pop(place).publisher
        closing = asyncio.ensure_future(asyncio.to_thread(publisher.close, _CLOSE_S))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def obey_by(self, place: str, api: EngineApi | None) -> None:
        """From now on the engine there obeys by that; None: by nothing."""
        if (engine_state := self._states.get(place)) is not None:
            engine_state.api = api

    def tell(self, place: str, event: Event) -> None:
        """What its API tells of the engine there; nobody hears it where nobody publishes for that one."""
        if (engine_state := self._states.get(place)) is not None:
            engine_state.publisher.emit(event)

    def api_of(self, engine: Engine) -> EngineApi | None:
        """By which it obeys; None: it does not."""
        engine_state = self._states.get(engine.place)
        return engine_state.api if engine_state is not None else None

    # -- the picker's ``Turns`` ------------------------------------------------------------------------------

    def began(self, ticket: Ticket, engine: Engine, now_ns: int) -> None:
        """The turn is on its way to that engine."""
        engine_state = self._states.get(engine.place)
        if engine_state is None or ticket.turn_id in self._turns:
            return
        tokens = engine_state.tokens(ticket)
        blocks = ceil((tokens + engine_state.output.value) / engine_state.block_tokens)
        turn = self._turns[ticket.turn_id] = _Turn(
            ticket=ticket, place=engine.place, began_ns=now_ns, prompt_tokens=tokens, blocks=blocks
        )
        self._emit(
            turn,
            TurnSubmitted(
                program_id=ticket.program_id,
                turn_id=ticket.turn_id,
                projected_blocks=blocks,
                prompt_tokens=ticket.prompt.prompt_tokens,
                trace=ticket.trace,
                **{name: getattr(ticket.change, name) for name in CHANGE_FIELDS},
            ),
        )

    def first_byte(self, ticket: Ticket, engine: Engine, status: int, now_ns: int) -> None:
        """The engine answers. Of a stream it is about the first token, of a whole answer the last one."""
        self.answers[engine.place] += 1
        self._has_status = True
        turn = self._turns.get(ticket.turn_id)
        if turn is None or turn.answered:
            return
        turn.answered, turn.status = True, status
        if _is_ok(status):
            self._emit(turn, FirstToken(program_id=ticket.program_id, turn_id=ticket.turn_id))

    def ended(self, ticket: Ticket, engine: Engine, status: int, now_ns: int, usage: Usage | None = None) -> None:
        """The answer is over. ``status`` 0: there was none, unless the proxy never tells any."""
        turn = self._turns.pop(ticket.turn_id, None)
        if turn is None:
            return
        status = status or turn.status
        engine_state, ok = self._states.get(turn.place), _is_ok(status) or (status == 0 and not self._has_status)
        if usage is None or not ok:
            output = round(engine_state.output.value) if engine_state is not None and ok else 0
            told = Usage(prompt_tokens=turn.prompt_tokens, output_tokens=output)
            self._emit_end(turn, told, now_ns, ok=ok)
            return
        if engine_state is not None:
            engine_state.learn(ticket, usage)
        if usage.cached_tokens is not None:  # told late, and it is what thrashing is known by
            self._emit(
                turn,
                FirstToken(
                    program_id=ticket.program_id,
                    turn_id=ticket.turn_id,
                    prompt_tokens=usage.prompt_tokens,
                    cached_tokens=usage.cached_tokens,
                ),
            )
        self._emit_end(turn, usage, now_ns, ok=True, estimated=False)

    def cut(self, ticket: Ticket, engine: Engine, now_ns: int) -> None:
        """The client left, or the engine was lost, before there was an answer."""
        turn = self._turns.pop(ticket.turn_id, None)
        if turn is not None:
            self._emit_end(turn, Usage(prompt_tokens=turn.prompt_tokens, output_tokens=0), now_ns, ok=False)

    def _emit_end(self, turn: _Turn, usage: Usage, now_ns: int, *, ok: bool, estimated: bool = True) -> None:
        self._emit(
            turn,
            TurnEnded(
                program_id=turn.ticket.program_id,
                turn_id=turn.ticket.turn_id,
                prompt_tokens=usage.prompt_tokens,
                output_tokens=usage.output_tokens,
                cached_tokens=usage.cached_tokens or 0,
                service_ns=max(0, now_ns - turn.began_ns),
                ok=ok,
                estimated=estimated,
            ),
        )

    def _emit(self, turn: _Turn, event: Event) -> None:
        self.tell(turn.place, event)

    # -- what its page tells -----------------------------------------------------------------------------------

    def sampled(self, engine: Engine, page: PoolPage, sample: PoolSampled | None = None) -> None:
        """Publish what its API said, or its page, or what the roster has of its pool, less what its turns need."""
        engine_state = self._states.get(engine.place)
        if engine_state is None:
            return
        self._restate(engine.place, engine_state)
        if sample is not None:
            engine_state.pool, engine_state.block_tokens = "its API", sample.block_tokens
            engine_state.publisher.emit(sample)
            return
        open_turns = [turn for turn in self._turns.values() if turn.place == engine.place]
        if page.total_tokens:
            engine_state.pool = f"the metrics page of {page.engine}"
        elif engine.pool_tokens:
            engine_state.pool = "the roster"
            used = sum(turn.blocks * engine_state.block_tokens for turn in open_turns)
            page = PoolPage(
                engine=page.engine,
                total_tokens=engine.pool_tokens,
                free_tokens=max(0, engine.pool_tokens - used),
                turns_running=page.turns_running if page.engine else len(open_turns),
                turns_waiting=page.turns_waiting,
                retractions=page.retractions,
            )
        else:
            engine_state.pool = ""
            return
        size = engine_state.block_tokens = page.block_tokens
        engine_state.publisher.emit(
            PoolSampled(
                total_blocks=page.total_tokens // size,
                free_blocks=page.free_tokens // size,
                evictable_blocks=page.evictable_tokens // size,
                block_tokens=size,
                turns_running=page.turns_running,
                turns_waiting=page.turns_waiting,
                retractions=page.retractions,
                host_total_blocks=page.host_total_tokens // size,
                host_used_blocks=page.host_used_tokens // size,
                reason=NO_PLUGIN if engine_state.api is None or engine_state.api.problem else BY_API,
            )
        )

    def _restate(self, place: str, engine_state: _EngineState) -> None:
        """What is open there, now and then: nobody can ask for it, since the engine's node hears no fleet."""
        now_ns = self._now_ns()
        if now_ns - engine_state.restated_ns < _RESTATE_NS:
            return
        engine_state.restated_ns = now_ns
        engine_state.publisher.emit(
            PublisherState(
                role="engine",
                open_turns=tuple(
                    OpenTurn(program_id=turn.ticket.program_id, turn_id=turn_id, blocks=turn.blocks)
                    for turn_id, turn in self._turns.items()
                    if turn.place == place
                ),
                pins=engine_state.api.pins() if engine_state.api is not None else (),
            )
        )

    # -- what others may see -------------------------------------------------------------------------------------

    def health(self) -> dict[str, object]:
        """By place: what is known of each engine without a plugin, and what it is not good for."""
        counts: dict[str, int] = dict.fromkeys(self._states, 0)
        for turn in self._turns.values():
            counts[turn.place] = counts.get(turn.place, 0) + 1
        return {
            place: {
                "retention": _retention(engine_state.api),
                "pool": engine_state.pool
                or "unknown: its page tells none, so set pool_tokens for it; nothing is placed there",
                "open_turns": counts[place],
                "sizes": "from answers' usage" if engine_state.output.count else "estimated from bytes",
            }
            for place, engine_state in self._states.items()
        }


def _retention(api: EngineApi | None) -> str:
    problem = NO_PLUGIN if api is None else api.problem
    return f"none: {problem}" if problem else "by the engine's API"


def _is_ok(status: int) -> bool:
    return 200 <= status < 300
