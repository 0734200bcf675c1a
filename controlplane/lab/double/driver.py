"""Drives the engine model in scaled real time: wakes it, wakes those who wait for it, publishes, obeys.

Everything runs in one event loop's thread.
"""

import logging
from collections.abc import Callable

import anyio

from controlplane import clocks
from controlplane.core.model.commands import Admit, Command, Pause
from controlplane.core.model.errors import RemoteEventError
from controlplane.core.model.events import Event, FirstToken, OpenTurn, Pin, PoolSampled, PublisherState, TurnEnded
from controlplane.core.model.types import seconds
from controlplane.core.policies.engine_policies import STOCK, loads
from controlplane.gate import Gate, GateLink
from controlplane.gate.alarm import Alarm
from controlplane.lab.sim.engine_model import Call, EngineModel
from controlplane.wire.heartbeat import Heartbeat

_log = logging.getLogger("penstock")
_SAMPLE_EVERY_NS = seconds(1)
_LEAST_SAMPLES_APART_WALL_S = 0.05


class EngineClock:
    """The time in which this process ran, from 0, in integer ns ``time_scale`` times as fast. For any thread."""

    def __init__(self, time_scale: float) -> None:
        self.time_scale = time_scale
        self._start_ns = clocks.awake_ns()

    def now_ns(self) -> int:
        return int((clocks.awake_ns() - self._start_ns) * self.time_scale)


class RunningTurn:
    """A turn in the engine, as the request that waits for it sees it."""

    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        self.first_token: FirstToken | None = None
        self.ended: TurnEnded | None = None
        self._news: anyio.Event | None = None

    async def news(self, timeout_s: float | None = None) -> None:
        """Wait for the first token or the end, for ``timeout_s`` at most. One waiter at a time."""
        if self.ended is not None:
            return
        self._news = anyio.Event()
        with anyio.move_on_after(timeout_s):
            await self._news.wait()

    def wake(self) -> None:
        if self._news is not None:
            self._news.set()


class Driver:
    """The engine model, its clock, and all who have a say. ``publisher`` tells the emitter's name."""

    def __init__(
        self,
        *,
        engine: EngineModel,
        gate: Gate,
        send: Callable[[Event, bool], None],
        now_ns: Callable[[], int],
        publisher: Callable[[], str] = lambda: "",
    ) -> None:
        self.engine = engine
        self.gate = gate
        self.prompt_tokens = self.cached_tokens = 0  # of all turns that have a first token
        self._send = send
        self._now_ns = now_ns
        self._link = GateLink(gate, send=send, publisher=publisher, state=self.state, obey=self._obey)
        wall_second_ns = gate.limits.wall_second_ns
        self._wake_alarm = Alarm(self._look, wall_second_ns=wall_second_ns)
        self._sample_alarm = Alarm(self._sample, wall_second_ns=wall_second_ns)
        self._sample_every_ns = max(_SAMPLE_EVERY_NS, round(_LEAST_SAMPLES_APART_WALL_S * wall_second_ns))
        self._policies = ""  # the engine policies in force, as text
        self._policies_until_ns = 0
        self._turns: dict[str, RunningTurn] = {}
        self._all_ended: anyio.Event | None = None

    def pool(self) -> PoolSampled:
        """The allocator's state now."""
        return self.engine.pool_sample(self._now_ns())

    def start(self) -> None:
        """Begin to sample the pool."""
        self._sample()

    def abort_all(self) -> None:
        """End every open turn; one in a prefill step ends with the step."""
        for turn_id in list(self._turns):
            self.abort(turn_id)

    def stop(self) -> None:
        """Stop every timer: nothing happens any more."""
        self._wake_alarm.cancel()
        self._sample_alarm.cancel()

    @property
    def open_turns(self) -> int:
        return len(self._turns)

    def submit(self, call: Call) -> RunningTurn:
        """Hand a call to the engine. Raises ``ContextTooLong``."""
        self._look()
        self.engine.submit(call, self._now_ns())
        turn = self._turns[call.turn_id] = RunningTurn(call.turn_id)
        self._look()
        return turn

    def abort(self, turn_id: str) -> None:
        """Its client left. Nothing happens to a turn that has ended."""
        if self.engine.abort(turn_id, self._now_ns()):
            self._look()

    def flush(self) -> None:
        """Forget what is cached; the gate, which sees who asks for it, tells."""
        self.engine.flush(self._now_ns())
        self._look()

    def produced_tokens(self, turn: RunningTurn) -> int:
        """Output so far."""
        if turn.ended is None:
            self._look()
        if turn.ended is not None:
            return turn.ended.output_tokens
        return self.engine.produced_tokens(turn.turn_id)

    async def idle(self) -> None:
        """Wait until no turn is open."""
        while self._turns:
            self._all_ended = anyio.Event()
            await self._all_ended.wait()

    def receive(self, item: Command | Heartbeat, received_ns: int) -> None:
        """A command or a heartbeat from the daemon."""
        if isinstance(item, Admit | Pause):
            self.engine.park(item.program_id, isinstance(item, Pause), self._now_ns())
            if not isinstance(item, Pause):
                self.engine.label(item.program_id, "", self._now_ns())
        elif isinstance(item, Heartbeat):
            self._policies_until_ns = received_ns + max(item.lease_ttl_ns, self.gate.limits.wall_second_ns)
            self._use(item.engine_policies)
        self._link.receive(item, received_ns)

    def _use(self, text: str) -> None:
        """The engine policies that the daemon asks for; the engine's own for an empty text or a wrong one."""
        if text == self._policies:
            return
        self._policies = text
        try:
            policies = loads(text)
        except RemoteEventError as error:  # of another version: told once, and the gate still hears the daemon
            _log.warning("penstock: the engine keeps its own policies: %s", error)
            policies = STOCK
        self.engine.use(policies, self._now_ns())
        self._look()

    def state(self) -> PublisherState:
        """All that the gate and the engine hold now."""
        self._look()
        now_ns, gate = self._now_ns(), self.gate.state()
        return PublisherState(
            role="engine",
            held_turns=gate.held_turns,
            grants=gate.grants,
            open_turns=tuple(
                OpenTurn(program_id=call.program_id, turn_id=call.turn_id, blocks=blocks)
                for call, blocks in self.engine.open_calls()
            ),
            pins=tuple(
                Pin(program_id=name, ttl_ns=until_ns - now_ns)
                for name, until_ns in self.engine.cache.pins().items()
                if until_ns > now_ns
            ),
        )

    def _obey(self, command: Command) -> str:
        """Obey, or say why not."""
        problem = self.engine.obey(command, self._now_ns())
        self._look()
        return problem

    def _look(self) -> None:
        """Bring the engine up to now, publish what happened, and set the alarm for what comes."""
        now_ns = self._now_ns()
        for event in self.engine.advance(now_ns):
            self._send(event, False)
            if isinstance(event, FirstToken):
                self.prompt_tokens += event.prompt_tokens
                self.cached_tokens += event.cached_tokens
                turn = self._turns.get(event.turn_id)
                if turn is not None:
                    turn.first_token = event
                    turn.wake()
            elif isinstance(event, TurnEnded):
                ended = self._turns.pop(event.turn_id, None)
                if ended is not None:
                    ended.ended = event
                    ended.wake()
        if not self._turns and self._all_ended is not None:
            self._all_ended.set()
        self._wake_alarm.set(self.engine.next_wake_ns(), now_ns)

    def _sample(self) -> None:
        self._look()
        now_ns = self._now_ns()
        if now_ns > self._policies_until_ns:
            self._use("")  # no daemon
        self._send(self.engine.pool_sample(now_ns), False)
        self._sample_alarm.set(now_ns + self._sample_every_ns, now_ns)
