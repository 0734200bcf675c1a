"""Programs, engines and the controller, in virtual time.

A program's next turn begins when its last one has ended and its tool has returned (the turn barrier). The world
plays the gate, the engines' publishers and the tool runtime: it tells the controller what those would publish and
obeys the commands that come back, ``control_delay_ns`` later.

**Paper**: AgentServeSim §3.1 and §3.2 (program orchestrator, tool simulator).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from controlplane.core.estimators.prompt_size import SIZE_FIELDS
from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.errors import ControlPlaneError, LocalEventError
from controlplane.core.model.types import seconds
from controlplane.core.scheduling.controller import Controller
from controlplane.lab.sim.arriving import Arriving
from controlplane.lab.sim.changes import DIE, FLUSH, JOIN, Change
from controlplane.lab.sim.contention import Contention
from controlplane.lab.sim.deadlines import Deadlines
from controlplane.lab.sim.engine_model import ContextTooLong, EngineModel
from controlplane.lab.sim.fleet import Fleet, Move, Site
from controlplane.lab.sim.kernel import Handle, Kernel
from controlplane.lab.sim.session import Session
from controlplane.lab.sim.tool_host import ToolHost
from controlplane.lab.sim.tools import ToolRunner, never_begin
from controlplane.lab.sim.turn_events import Publisher
from controlplane.lab.workload.records import ProgramRecord, TurnRecord
from controlplane.lab.workload.series import Series
from controlplane.lab.workload.trace import gap_ns

# At one instant: first what changes the world, then the engine's step, then samples, then the decision.
_WORLD, _ENGINE, _SAMPLE, _TICK = range(4)
_SAMPLE_NS = seconds(1)
_ASK_AGAIN_NS = seconds(60)
_RETRY_NS = seconds(1)  # a client whose answer was cut off sends its turn again, as agents' SDKs do
_STUCK_NS = seconds(4 * 3600)


class Recorder(Protocol):
    """What writes down a run: ``wire.log.LogWriter`` is one."""

    def event(self, event: ev.Event, now_ns: int) -> None: ...
    def tick(self, now_ns: int) -> None: ...
    def command(self, command: cmd.Command, now_ns: int) -> None: ...


class World:
    """One run. ``sessions`` but sub-agents come as ``Arriving`` has them."""

    def __init__(
        self,
        kernel: Kernel,
        fleet: Fleet,
        control: Controller,
        sessions: Sequence[Session],
        *,
        arrivals_ns: Sequence[int] | None = None,
        at_once: int = 1,
        in_batches: bool = False,
        cpus: float = 8.0,
        tool_slots: int = 0,
        tools_ask: bool = False,
        contention: Contention | None = None,
        changes: Sequence[Change] = (),
        control_delay_ns: int = 1_000_000,
        timeout_ns: int = 0,
        host_samples: Sequence[tuple[int, ev.HostSampled]] = (),
        recorder: Recorder | None = None,
        progress: Callable[[int, int, int], None] | None = None,
    ) -> None:
        self.programs: list[ProgramRecord] = []
        self.turns: list[TurnRecord] = []
        self.series = Series()
        self.moves = 0  # contexts that the controller moved off the device
        self._kernel = kernel
        self._fleet = fleet
        self._single_site = fleet.sites[0] if len(fleet.sites) == 1 and not changes else None
        self._turn_overhead_ns = fleet.sites[0].engine.turn_overhead_ns  # the sites are alike
        self._control = control
        self._sessions = {session.program_id: session for session in sessions}
        if len(self._sessions) != len(sessions):
            raise LocalEventError("two sessions have one program_id")
        self._open = len(sessions)  # not ended
        self._gate_publisher = Publisher("sim/gate/1")
        self._fleet_publisher = Publisher("sim/fleet/1")
        host = None if contention is None else ToolHost(kernel, _WORLD, cpus, contention)
        then = (self._publish, self._arrive, self._next_turn)
        self.tools = ToolRunner(kernel, _WORLD, *then, slots=tool_slots, host=host, asks=tools_ask)
        self._deadlines = Deadlines(kernel, _WORLD, timeout_ns, self._leave_gate, self._enter, self._give_up)
        self._control_delay_ns, self._recorder, self._progress = control_delay_ns, recorder, progress
        self._tick_handle: Handle | None = None
        self._last_turn_ns = 0
        self._arriving = Arriving(sessions, arrivals_ns, at_once, in_batches=in_batches)
        for at_ns, session in self._arriving.at_first():
            kernel.schedule(at_ns, _WORLD, self._arrive, session)
        for at_ns, sample in host_samples:
            kernel.schedule(at_ns, _WORLD, self._publish_host, sample)
        if not host_samples:
            kernel.schedule(0, _WORLD, self._sample_host, cpus)
        kernel.schedule(0, _SAMPLE, self._sample)
        if changes:
            kernel.schedule(0, _WORLD, self._list_engines)
        for change in changes:
            kernel.schedule(change.at_ns, _WORLD, self._change, change)

    def run(self) -> int:
        """Run until every program has ended; the time of that. ``ControlPlaneError`` where nothing moves."""
        self._kernel.run(done=lambda: self._open == 0)
        if self._open:
            raise LocalEventError(f"nothing is scheduled and {self._open} programs have not ended")
        return self._kernel.now_ns

    # -- programs ---------------------------------------------------------------------------------------------

    def _arrive(self, session: Session) -> None:
        session.arrived_ns = now_ns = self._kernel.now_ns
        if session.reported.run:
            parent = session.parent.program_id if session.parent is not None and session.reported.parent else ""
            stamp = self.tools.publisher.stamp(now_ns)
            self._publish(ev.ProgramArrived(**stamp, program_id=session.program_id, parent_id=parent))
        self._begin_turn(session)

    def _begin_turn(self, session: Session) -> None:
        session.begin_turn(self._kernel.now_ns)
        self._enter(session)

    def _enter(self, session: Session) -> None:
        """The gate lets the turn pass, holds it, or refuses it."""
        if session.refusal:
            self._give_up(session, session.refusal)
        elif session.is_granted(self._kernel.now_ns):
            self._submit(session)
        else:
            session.held = True
            self._ask(session)

    def _ask(self, session: Session) -> None:
        """The gate asks for a slot, and again while it holds the turn: silent programs are forgotten."""
        now_ns, size = self._kernel.now_ns, session.prompt_size()
        self._publish(
            ev.TurnQueued(
                **self._gate_publisher.stamp(now_ns),
                program_id=session.program_id,
                turn_id=session.call.turn_id,
                account=session.account,
                timeout_ns=self._deadlines.held(session),
                group_id=session.group[0],
                group_size=session.group[1],
                **{name: getattr(size, name) for name in SIZE_FIELDS},
            )
        )
        session.ask = self._kernel.schedule(now_ns + _ASK_AGAIN_NS, _WORLD, self._ask, session)

    def _leave_gate(self, session: Session) -> None:
        """The gate holds its turn no more, and has not let it in."""
        self._forget_held(session)
        stamp = self._gate_publisher.stamp(self._kernel.now_ns)
        self._publish(ev.TurnAbandoned(**stamp, program_id=session.program_id, turn_id=session.call.turn_id))

    def _forget_held(self, session: Session) -> None:
        if session.ask is not None:
            Kernel.cancel(session.ask)
        self._deadlines.held_no_more(session)
        session.held = False

    def _submit(self, session: Session) -> None:
        self._forget_held(session)
        session.admitted_ns = self._last_turn_ns = now_ns = self._kernel.now_ns
        if self._turn_overhead_ns:
            self._kernel.schedule(now_ns + self._turn_overhead_ns, _WORLD, self._place, session)
        else:
            self._place(session)

    def _place(self, session: Session) -> None:
        """The engine's server has read the turn."""
        if self._single_site is not None:
            self._send(session, self._single_site)
            return
        site, move = self._fleet.route(session, self._kernel.now_ns)
        if move is None:
            self._send(session, site)
        else:
            self._kernel.schedule(move.ends_ns, _WORLD, self._land, session, move)
            self._go_on()

    def _land(self, session: Session, move: Move) -> None:
        if move.target.gone:
            self._place(session)
            return
        self._fleet.land(move, self._kernel.now_ns)
        self._send(session, move.target)

    def _send(self, session: Session, site: Site) -> None:
        now_ns = self._kernel.now_ns
        try:
            site.engine.submit(session.call, now_ns)
        except ContextTooLong as error:
            self.turns.append(session.turn_record(now_ns, error=str(error)))
            self._end_program(session, error=str(error))
            return
        self._fleet.touch(site)
        self._go_on()

    def _end_turn(self, session: Session, event: ev.TurnEnded) -> None:
        now_ns = self._kernel.now_ns
        self._last_turn_ns = session.turn_ended_ns = now_ns
        self.turns.append(
            session.turn_record(now_ns, output_tokens=event.output_tokens, cached_tokens=event.cached_tokens)
        )
        if session.is_last:
            self._end_program(session)
        elif session.turn.calls_tool or session.index in session.children:
            self.tools.run(session)
        else:
            self._kernel.schedule(now_ns + gap_ns(session.turn), _WORLD, self._next_turn, session)

    def _next_turn(self, session: Session) -> None:
        session.index += 1
        self._begin_turn(session)

    def _end_program(self, session: Session, error: str = "") -> None:
        now_ns = self._kernel.now_ns
        self._open -= 1
        session.ended = True
        if session.reported.run:
            stamp = self.tools.publisher.stamp(now_ns)
            self._publish(ev.ProgramEnded(**stamp, program_id=session.program_id, reason=error))
        self.programs.append(session.program_record(now_ns, error))
        del self._sessions[session.program_id]
        if self._progress is not None:
            self._progress(len(self.programs), len(self.turns), now_ns)
        for child in never_begin(session):
            self._open -= 1
            del self._sessions[child.program_id]
        if session.parent is not None:
            self.tools.join(session.parent)
        else:
            for following in self._arriving.as_one_ends():
                self._kernel.schedule(now_ns, _WORLD, self._arrive, following)

    # -- the engines ------------------------------------------------------------------------------------------

    def _change(self, change: Change) -> None:
        """An engine comes or goes; the controller is told which there are, as a fleet's roster tells it."""
        if change.kind == JOIN:
            self._fleet.join(change.engine)
        elif change.kind == FLUSH:
            self._publish(self._fleet.flush(change.engine, self._kernel.now_ns))
        elif change.kind == DIE:
            self._cut_off(self._fleet.lose(change.engine))
        else:
            self._fleet.drain(change.engine)
        self._list_engines()

    def _list_engines(self) -> None:
        now_ns, sites = self._kernel.now_ns, self._fleet.sites
        self._publish(
            ev.EnginesListed(
                **self._fleet_publisher.stamp(now_ns),
                serving=tuple(site.name for site in sites if not site.draining),
                draining=tuple(site.name for site in sites if site.draining),
            )
        )
        for site in sites:  # what one has that has just come is known with its name
            self._publish(site.engine.pool_sample(now_ns))
            self._wake(site)

    def _cut_off(self, site: Site) -> None:
        """Clients notice, and send their turns again."""
        if site.wake is not None:
            Kernel.cancel(site.wake)
        again_ns = self._kernel.now_ns + _RETRY_NS
        for call, _ in site.engine.open_calls():
            self._kernel.schedule(again_ns, _WORLD, self._begin_again, self._sessions[call.program_id])

    def _begin_again(self, session: Session) -> None:
        session.begin_again(self._kernel.now_ns)
        self._enter(session)

    def _wake(self, site: Site) -> None:
        wake_ns = site.engine.next_wake_ns()
        handle = site.wake
        if handle is not None:
            if handle[0] == wake_ns and handle[3] is not None:
                return
            Kernel.cancel(handle)
        site.wake = None if wake_ns is None else self._kernel.schedule(wake_ns, _ENGINE, self._advance, site)

    def _advance(self, site: Site) -> None:
        self._apply_events(site.engine.advance(self._kernel.now_ns))
        self._wake(site)

    def _go_on(self) -> None:
        """After commands: engines may have ended a step with them, and may have to begin another one sooner."""
        for site in self._fleet.take_touched():
            events = site.engine.drain()
            if events:
                self._apply_events(events)
            self._wake(site)

    def _apply_events(self, events: Sequence[ev.Event]) -> None:
        """What the engines did: a command finds out, too, if a step ends at the instant at which it comes."""
        for event in events:
            self._publish(event)
            if type(event) is ev.FirstToken:
                self._sessions[event.program_id].first_token_ns = event.at_ns
            elif type(event) is ev.TurnEnded:
                self._end_turn(self._sessions[event.program_id], event)

    # -- the controller ---------------------------------------------------------------------------------------

    def _publish(self, event: ev.Event) -> None:
        now_ns = self._kernel.now_ns
        if self._recorder is not None:
            self._recorder.event(event, now_ns)
        self._control.receive(event, now_ns)
        self._plan_tick()

    def _plan_tick(self) -> None:
        deadline_ns = self._control.next_deadline_ns()
        if deadline_ns is None:
            return
        at_ns, handle = max(deadline_ns, self._kernel.now_ns), self._tick_handle
        if handle is not None and handle[3] is not None:
            if handle[0] <= at_ns:
                return
            Kernel.cancel(handle)
        self._tick_handle = self._kernel.schedule(at_ns, _TICK, self._tick)

    def _tick(self) -> None:
        now_ns = self._kernel.now_ns
        if self._recorder is not None:
            self._recorder.tick(now_ns)
        commands = self._control.tick(now_ns)
        if self._fleet.use(self._control.preset, now_ns):
            self._go_on()
        if self._recorder is not None:
            for command in commands:
                self._recorder.command(command, now_ns)
        if commands:
            self._kernel.schedule(now_ns + self._control_delay_ns, _WORLD, self._obey, commands)
        self._plan_tick()

    def _obey(self, commands: Sequence[cmd.Command]) -> None:
        for command in commands:
            site = self._fleet.at(getattr(command, "program_id", ""))
            problem = self._apply(command, site.engine)
            self._fleet.touch(site)
            if site.gone:
                continue  # it does not answer
            if problem:
                self._answer(site, ev.CommandRejected, command, reason=problem)
            elif type(command) in cmd.MOVES:  # of nothing else does the controller need to know
                self.moves += 1
                self._answer(site, ev.CommandApplied, command)
        self._go_on()

    def _answer(
        self,
        site: Site,
        kind: type[ev.CommandApplied | ev.CommandRejected],
        command: cmd.Command,
        **fields: Any,
    ) -> None:
        self._publish(
            kind(
                **site.publisher.stamp(self._kernel.now_ns),
                command_id=command.command_id,
                program_id=getattr(command, "program_id", ""),
                **fields,
            )
        )

    def _apply(self, command: cmd.Command, engine: EngineModel) -> str:
        """Carry out a command on the engine that the program is on. Returns why not, or nothing."""
        now_ns = self._kernel.now_ns
        if isinstance(command, cmd.SetWindow | cmd.StateRequest):
            return "" if isinstance(command, cmd.SetWindow) else "the simulator loses no events"
        if not isinstance(command, cmd.ProgramCommand):
            return f"the simulator does not support {type(command).__name__}"
        session = self._sessions.get(command.program_id)
        if isinstance(command, cmd.Place | cmd.Adopt):
            return ""  # its router has heard the answer itself; whose child a program is the gate need not know
        if isinstance(command, cmd.StartTool):
            self.tools.let_start(command.call_id)
        elif isinstance(command, cmd.Admit):
            if session is None:
                return "the program has ended"
            session.grant(now_ns, command.ttl_ns)
            engine.park(command.program_id, False, now_ns)
            engine.label(command.program_id, "", now_ns)
            if session.held:
                self._submit(session)
        elif isinstance(command, cmd.Pause):
            engine.park(command.program_id, True, now_ns)
            if session is None:
                return "the program has ended"
            session.revoke()
        elif isinstance(command, cmd.Refuse) and command.code == "expected_wait":
            if session is not None:
                self._deadlines.refused(session, command.ttl_ns, command.reason)
        elif isinstance(command, cmd.Refuse):
            if session is not None and session.refuse(command.reason):
                self._give_up(session, session.refusal)
        else:
            return engine.obey(command, now_ns)
        return ""

    def _give_up(self, session: Session, why: str) -> None:
        """Its turn is refused, and its agent tries no more."""
        self._forget_held(session)
        self.turns.append(session.refused(self._kernel.now_ns, why))
        self._end_program(session, error=why)

    # -- samples ----------------------------------------------------------------------------------------------

    def _sample_host(self, cpus: float) -> None:
        self._publish(self.tools.sample(cpus))
        if self.tools.host is not None:
            self._kernel.schedule(self._kernel.now_ns + _SAMPLE_NS, _SAMPLE, self._sample_host, cpus)

    def _publish_host(self, sample: ev.HostSampled) -> None:
        """The host as it was seen at this time, whatever else ran on it."""
        self._publish(replace(sample, **self.tools.publisher.stamp(self._kernel.now_ns)))

    def _sample(self) -> None:
        now_ns = self._kernel.now_ns
        for site in self._fleet.sites:
            self._publish(site.engine.pool_sample(now_ns))
            self._wake(site)  # the sample may have found that a pin had ended
        window, pressure, apart = self._control.window, self._control.pressure, self._fleet.kv_imbalance_ratio
        self.series.sample(now_ns, pressure, window=window.window, limit=window.limit, imbalance_ratio=apart)
        self._check_stuck(now_ns)
        self._kernel.schedule(now_ns + _SAMPLE_NS, _SAMPLE, self._sample)

    def _check_stuck(self, now_ns: int) -> None:
        moves = now_ns - self._last_turn_ns < _STUCK_NS
        if moves or any(site.engine.next_wake_ns() is not None for site in self._fleet.sites):
            return
        held = sum(session.held for session in self._sessions.values())
        if held and all(s.held or s.waits_for or s.arrived_ns < 0 for s in self._sessions.values()):
            raise ControlPlaneError(
                f"the run is stuck: {held} programs are held, the engine is idle and the controller has admitted "
                f"nobody for {_STUCK_NS // seconds(3600)} h of virtual time"
            )
