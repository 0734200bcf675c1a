"""The gate: turns of granted programs pass, others wait for the daemon's grant. This module knows no HTTP."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING

from controlplane.core.estimators.prompt_size import SIZE_FIELDS
from controlplane.core.model.commands import Admit, Adopt, Command, Pause, Refuse, SetWindow
from controlplane.core.model.errors import LocalEventError
from controlplane.core.model.events import (
    CacheFlushed,
    Event,
    OpenTurn,
    ProgramArrived,
    ProgramEnded,
    PublisherState,
    TurnAbandoned,
    TurnQueued,
)
from controlplane.core.model.types import NANOSECONDS_PER_SECOND
from controlplane.gate.alarm import Alarm
from controlplane.gate.authority import Authority, Mode
from controlplane.gate.hints import ClientHints
from controlplane.gate.holds import Held, Holds
from controlplane.gate.limits import GateLimits
from controlplane.gate.places import Places
from controlplane.gate.programs import FOR_GOOD, ProgramTable, Proofs, RootProgram
from controlplane.gate.replies import Calls, said_by_reply
from controlplane.gate.tenants import Tenants
from controlplane.gate.tickets import REFUSED, Entered, GateCounters, Refusals, Refused, Ticket, refusal

if TYPE_CHECKING:
    from controlplane.wire.heartbeat import Heartbeat

Send = Callable[[Event, bool], None]

_LOST = "the daemon is lost: admitted here"
_CLOSED = "the server is shutting down"
_LONG_S = 50  # of the wall clock
_PLACE_S = 0.001  # how old an order may be, for each turn in it: to make it takes half a microsecond a turn


class Gate:
    """Holds turns until their program may run.

    ``send(event, urgent)`` publishes an event and must neither block nor raise. ``now_ns`` is the clock; it
    may run faster than the wall clock (``limits.time_scale``). Everything is called in one event loop's thread:
    an ``Inbox`` brings over what another thread receives. ``tenant_header``: who sends requests on here says in it
    whose they are, and clients cannot; empty: their API keys tell.

    **Paper**: MARS §4.2 (admission of sessions, not of requests); what happens without the daemon is ours.
    """

    def __init__(
        self,
        *,
        send: Send,
        now_ns: Callable[[], int],
        limits: GateLimits | None = None,
        tenant_header: str = "",
    ) -> None:
        self.limits = limits if limits is not None else GateLimits()
        self.counters = GateCounters()
        self._send = send
        self._now_ns = now_ns
        self._authority = Authority(self.limits)
        self._programs = ProgramTable(self.limits.max_programs)
        self._proofs = Proofs()
        self.tenants = Tenants(self.limits.max_programs, tenant_header, self._in_use)
        self.places = Places()
        self.hints = ClientHints(lambda: self._authority.bounds(self._now_ns()))
        self._holds = Holds()
        self._alarm = Alarm(self._on_alarm, wall_second_ns=self.limits.wall_second_ns)
        self._refusals = Refusals(self.counters)
        self._running: dict[str, str] = {}  # turn id -> root id
        self._served_ns = 0  # when a turn was let in last
        self._busy_programs = 0
        self._was_governed = False
        self._closed = False

    # -- turns ---------------------------------------------------------------------------------------------

    def try_enter(self, ticket: Ticket) -> Entered | None:
        """Let the turn in if that needs no waiting; None means that ``enter`` would hold it.

        Raises ``Refused`` once the gate is closed or a budget is spent, ``LocalEventError`` for a turn that is here
        already.
        """
        if self._closed:
            raise self._refused(ticket, "gate_closed", _CLOSED)
        if ticket.turn_id in self._running or ticket.turn_id in self._holds:
            raise LocalEventError(f"turn {ticket.turn_id!r} is already at the gate")
        now_ns = self._now_ns()
        mode = self._look(now_ns)
        self._link(ticket, now_ns)
        root_id = self._programs.root_id(ticket.program_id)
        program = self._programs.get(root_id)
        if program is not None and program.refused(now_ns, governed=mode is Mode.GOVERNED):
            raise self._sent_away(ticket, program, now_ns, 0)
        if mode is Mode.PASSIVE:
            self.counters.passed_unseen += 1
            reason = "no daemon was ever seen"
        elif program is not None and program.granted(now_ns):
            reason = "granted"
        elif mode is not Mode.GOVERNED and not self._holds and self._local_slots(now_ns) > 0:
            program = self._programs.use(root_id)
            program.grant(self.limits.grant_ttl_ns, now_ns, local=True)
            reason = _LOST
        else:
            return None
        self.counters.passed += 1
        self._run(ticket, self._programs.use(root_id), now_ns)
        return Entered(hold_ns=0, reason=reason)

    async def enter(self, ticket: Ticket) -> Entered:
        """Wait until the turn may run; pair it with ``leave``.

        Raises ``Refused``. A cancelled wait leaves the gate at once, and the daemon hears of it.
        """
        entered = self.try_enter(ticket)
        if entered is not None:
            return entered
        held = self._hold(ticket)
        try:
            outcome = await held.outcome
        except asyncio.CancelledError:
            if ticket.turn_id in self._holds:
                self._drop(held)
                self.counters.abandoned += 1
                self._abandon(ticket, "the client left while held")
                self._end_if_one_turn(ticket)
            elif ticket.turn_id in self._running:
                self.leave(ticket, abandoned="the client left as it was let in")
            raise
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    def leave(self, ticket: Ticket, *, abandoned: str = "") -> bool:
        """End a turn; False if it had left. ``abandoned`` says why, if it entered and then never ran."""
        root_id = self._running.pop(ticket.turn_id, None)
        if root_id is None:
            return False
        now_ns = self._now_ns()
        program = self._programs.use(root_id)
        program.turn(-1, now_ns)
        if program.running == 0:
            self._busy_programs -= 1
        if abandoned:
            self.counters.unserved += 1
            self._abandon(ticket, abandoned)
        self._end_if_one_turn(ticket)
        if self._holds and self._look(now_ns) is not Mode.GOVERNED:
            self._release_locally(now_ns)
        return True

    def knows(self, program_id: str, turn_id: str) -> bool:
        """Whether a turn of that name runs or is held here, or was one of the program's latest."""
        return turn_id in self._running or turn_id in self._holds or self._proofs.prove(program_id, turn_id)

    def place_of(self, ticket: Ticket) -> int:
        """The place of a turn's program among those held, the longest held first, from 1; 0: it is held no more."""
        if ticket.turn_id not in self._holds:
            return 0
        age_ns = round(_PLACE_S * self.limits.wall_second_ns)
        return self._holds.place_of(self._holds[ticket.turn_id], self._now_ns(), age_ns=age_ns)

    def expected_wait_s(self, ticket: Ticket) -> float | None:
        """For how many seconds of the wall clock a held turn is likely to wait yet; None: that is not known.

        Roughly: the daemon lets in by another order than the age that a gate knows.
        """
        each_ns = self._authority.end_interval_ns
        return self.place_of(ticket) * each_ns / self.limits.wall_second_ns if each_ns else None

    def parent_of(self, program_id: str) -> str:
        """The root on whose slot the program rides; empty for a root."""
        root_id = self._programs.root_id(program_id)
        return root_id if root_id != program_id else ""

    def reply_read(self, ticket: Ticket, tools: Sequence[str], calls: Calls = (), *, is_last: bool = False) -> None:
        """Report which tools the turn's reply calls. ``is_last``: the client declared this turn its last."""
        self._send(said_by_reply(ticket.program_id, ticket.turn_id, tools, calls, is_last=is_last), False)

    def client_ended(self, program_id: str) -> bool:
        """Report that the program's client says that it is over; False for one that is not known here."""
        if self._programs.get(program_id) is None:
            return False
        self._send(ProgramEnded(program_id=program_id, reason="its client ended it", frees=True), True)
        return True

    def cache_flushed(self, reason: str, replica: str = "") -> None:
        """Report that an engine, or each one behind here, has emptied its cache."""
        self._send(CacheFlushed(replica=replica, reason=reason), True)

    def end_program(self, program_id: str) -> None:
        """End a program: its grant goes. Running turns go on, and held turns stay held."""
        program = self._programs.get(program_id)
        if program is not None:
            program.revoke()
            program.known = False
        self._programs.drop(program_id)
        self._proofs.forget(program_id)
        self.places.forget(program_id)
        self.hints.forget(program_id)
        now_ns = self._now_ns()
        if self._holds and self._look(now_ns) is not Mode.GOVERNED:
            self._release_locally(now_ns)

    def close(self) -> None:
        """Refuse all held and future turns; running turns go on."""
        self._closed = True
        now_ns = self._now_ns()
        for held in list(self._holds):
            self._refuse_held(held, self._refused(held.ticket, "gate_closed", _CLOSED, now_ns - held.since_ns))
        self._refusals.tell(self._send)
        self._alarm.cancel()

    # -- the daemon ----------------------------------------------------------------------------------------

    def on_command(self, command: Command) -> bool:
        """Obey Admit, Adopt, Pause, Refuse and SetWindow; false for a command that is not the gate's."""
        now_ns = self._now_ns()
        match command:
            case Admit():
                root_id = self._programs.root_id(command.program_id)
                if not self._programs.expects(root_id):
                    return False  # another gate's, or it has left: nobody would ever give this grant back
                program = self._programs.use(root_id)
                ttl_ns = command.ttl_ns if command.ttl_ns > 0 else self.limits.grant_ttl_ns
                program.refused_until_ns = 0
                program.grant(ttl_ns, now_ns, local=False, command_id=command.command_id)
                self._release(program, now_ns, command.reason or "admitted")
            case Adopt():
                if self.tenants.share(command.tenant, command.program_id, command.parent_id):
                    self._adopt(command.program_id, command.parent_id, now_ns, command.reason)
            case Pause():
                program_or_none = self._programs.get(command.program_id)
                if program_or_none is not None:
                    program_or_none.revoke()
            case Refuse():
                self._refuse_program(command, now_ns)
            case SetWindow():
                self._authority.set_limit(command.limit)
            case _:
                return False
        return True

    def on_heartbeat(self, beat: "Heartbeat", received_ns: int | None = None) -> bool:
        """Obey a heartbeat. After a loss the daemon decides again: local grants end, and held turns are asked for.

        False means that a daemon that was replaced still speaks; nothing changes then.
        """
        now_ns = self._now_ns()
        received_ns = received_ns if received_ns is not None else now_ns
        self._look(now_ns)
        if self._authority.is_outdated(beat, received_ns):
            self.counters.outdated += 1
            return False
        self._refusals.tell(self._send)
        if not self._authority.renew(beat, received_ns):
            self._arm()
            return True
        self.counters.daemon_returned += 1
        self._was_governed = True
        for program in self._programs:
            if program.local_grant:
                program.revoke()
        for held in self._holds:
            self._ask(held, now_ns, urgent=True)
        self._arm()
        return True

    # -- what others may see -------------------------------------------------------------------------------

    def state(self) -> PublisherState:
        """The gate's state: held turns, oldest first, and the programs that a daemon granted a slot."""
        held = tuple(
            OpenTurn(program_id=one.ticket.program_id, turn_id=one.ticket.turn_id, parent_id=one.parent_id)
            for one in self._holds
        )
        return PublisherState(role="gate", held_turns=held, grants=self._programs.grants(self._now_ns()))

    @property
    def mode(self) -> Mode:
        return self._look(self._now_ns())

    @property
    def daemon(self) -> tuple[str, int | None]:
        """The boot id of the daemon that was heard last, and how long ago in nanoseconds; None: none ever was."""
        last_beat_ns = self._authority.last_beat_ns
        return self._authority.boot_id, None if last_beat_ns is None else self._now_ns() - last_beat_ns

    def health(self) -> dict[str, object]:
        """The health page's content, ready for JSON: mode, held and running turns, the daemon, counters."""
        now_ns = self._now_ns()
        mode = self._look(now_ns)
        boot_id, silent_ns = self.daemon
        first = self._holds.first
        lost = mode in (Mode.KEEPING, Mode.OPENING)
        self.counters.programs_forgotten = self._programs.forgotten
        self.counters.placeholders = self.tenants.placeholders
        return {
            "mode": str(mode),
            "closed": self._closed,
            "limit": self._authority.limit,
            "draining": self._authority.draining,
            "local_limit": self._authority.local_limit(now_ns) if lost else None,
            "held_turns": len(self._holds),
            "held_programs": len({held.root_id for held in self._holds}),
            "held_bytes": self._holds.size_bytes,
            "longest_hold_s": 0.0 if first is None else (now_ns - first.since_ns) / NANOSECONDS_PER_SECOND,
            "running_turns": len(self._running),
            "busy_programs": self._busy_programs,
            "granted_programs": sum(1 for program in self._programs if program.granted(now_ns)),
            "known_programs": len(self._programs),
            "daemon": {
                "boot_id": boot_id,
                "silent_s": None if silent_ns is None else silent_ns / NANOSECONDS_PER_SECOND,
            },
            "counters": asdict(self.counters),
        }

    # -- inside --------------------------------------------------------------------------------------------

    def _in_use(self, program_id: str) -> bool:
        """Whether turns of that program, or of its root, are here or may pass."""
        program = self._programs.get(self._programs.root_id(program_id))
        return program is not None and (not program.idle or program.granted(self._now_ns()))

    def _look(self, now_ns: int) -> Mode:
        """The current mode; a loss of the daemon is counted once."""
        mode = self._authority.mode(now_ns)
        if self._was_governed and mode is not Mode.GOVERNED:
            self.counters.daemon_lost += 1
        self._was_governed = mode is Mode.GOVERNED
        return mode

    def _link(self, ticket: Ticket, now_ns: int) -> None:
        """Report a child once: it passes on its root's grant without asking, and a TurnSubmitted names no parent.

        Where children have slots of their own it asks for one; whose it is matters to who looks at the tree.
        A request without a proof, which no agent has announced, is no child: anybody can name an active program.
        """
        child, parent_id = ticket.program_id, ticket.parent_id
        if not self._programs.may_link(child, parent_id, now_ns):
            return
        if not (ticket.within or self._proofs.prove(parent_id, ticket.parent_turn)):
            self.counters.unproven += 1
        elif self._authority.slots_for_children:
            if self._programs.get(child) is None:
                self._programs.use(child)
                self._send(
                    ProgramArrived(program_id=child, parent_id=parent_id, tenant=ticket.tenant, aside=ticket.aside),
                    False,
                )
        elif self._adopt(child, parent_id, now_ns, "its request proves whose child it is"):
            root_id = self._programs.root_id(child)
            self._send(
                ProgramArrived(program_id=child, parent_id=root_id, tenant=ticket.tenant, aside=ticket.aside), False
            )

    def _adopt(self, child: str, parent_id: str, now_ns: int, reason: str) -> bool:
        """Let the child ride its root's slot from now on, with its running and its held turns."""
        before = self._programs.get(self._programs.root_id(child))
        if not self._programs.link(child, parent_id, now_ns):
            return False
        root_id, held = self._programs.root_id(child), before.held if before is not None else {}
        for turn_id in [name for name in held if self._holds[name].ticket.program_id == child]:
            del held[turn_id]  # they were its old root's
            self._programs.use(root_id).held[turn_id] = None
        if (root := self._programs.get(root_id)) is not None:
            for turn_id in root.held:
                self._holds[turn_id].root_id = root.program_id
            if root.granted(now_ns):
                self._release(root, now_ns, reason)
        return True

    def _run(self, ticket: Ticket, program: RootProgram, now_ns: int) -> None:
        self.hints.tell(ticket, self._send)
        self._running[ticket.turn_id] = program.program_id
        self._served_ns = now_ns
        if not ticket.is_one_turn:
            self._proofs.remember(ticket.program_id, ticket.turn_id)
        if program.running == 0:
            self._busy_programs += 1
        program.turn(1, now_ns)
        program.known = True

    def _hold(self, ticket: Ticket) -> Held:
        root_id = self._programs.root_id(ticket.program_id)
        self._check_room(ticket, self._programs.get(root_id))
        now_ns = self._now_ns()
        program = self._programs.use(root_id)
        program.held[ticket.turn_id] = None
        since_ns = now_ns - ticket.waited_ns
        deadline_ns = since_ns + self.limits.hold_ns
        held = Held(ticket, root_id, since_ns, deadline_ns, asyncio.get_running_loop().create_future())
        self._holds.add(held, now_ns)
        self.counters.held += 1
        self.hints.tell(ticket, self._send)
        if self._look(now_ns) is Mode.GOVERNED:
            self._ask(held, now_ns, urgent=True)
        self._arm()
        return held

    def _check_room(self, ticket: Ticket, program: RootProgram | None) -> None:
        """Raise ``Refused`` when the queue is full: 429 for new programs, 503 for all at the hard bound.

        An account that holds less than its even part is not refused for another's flood: its new programs have half
        of what is left to the hard bound. While the node drains, new programs get a 503, too.
        """
        limits = self.limits
        known = program is not None and (program.known or bool(program.held))
        if not known and self._authority.draining and self._look(self._now_ns()) is Mode.GOVERNED:
            raise self._refused(ticket, "draining", "this node drains and takes no new programs")
        turns, size = len(self._holds) + 1, self._holds.size_bytes + ticket.held_bytes
        if turns <= limits.max_held and size <= limits.max_held_bytes:
            return
        if not known and not self._within_its_part(ticket, turns, size):
            message = f"{turns - 1} turns are already waiting; new programs are not taken now"
            raise self._refused(ticket, "queue_full", message)
        factor = limits.hard_factor
        if turns > limits.max_held * factor or size > limits.max_held_bytes * factor:
            raise self._refused(ticket, "overloaded", f"{turns - 1} turns are already waiting")

    def _within_its_part(self, ticket: Ticket, turns: int, size: int) -> bool:
        """Whether a new program may wait beyond the usual bounds, as its account holds little of them."""
        limits = self.limits
        most = (1 + limits.hard_factor) / 2
        if turns > limits.max_held * most or size > limits.max_held_bytes * most:
            return False
        all_turns, all_bytes = self._holds.share_of(ticket)
        return all_turns <= limits.max_held and all_bytes <= limits.max_held_bytes

    def _ask(self, held: Held, now_ns: int, *, urgent: bool) -> None:
        """Send TurnQueued; the same turn id again is a retry that keeps its place."""
        ticket, program = held.ticket, self._programs.get(held.root_id)
        waits_ns = self.limits.hold_ns
        if ticket.timeout_s:
            waits_ns = min(waits_ns, round(ticket.timeout_s * self.limits.wall_second_ns))
        has_begun = program is not None and program.known
        self._holds.asked(held, now_ns)
        self._send(
            TurnQueued(
                program_id=ticket.program_id,
                turn_id=ticket.turn_id,
                parent_id=held.parent_id,
                tenant=ticket.tenant,
                **{name: getattr(ticket.prompt, name) for name in SIZE_FIELDS},
                trace=ticket.trace,
                account=ticket.account,
                budget_turns=ticket.budget_turns,
                budget_kv_token_s=ticket.budget_kv_token_s,
                group_id=ticket.group_id,
                group_size=ticket.group_size,
                timeout_ns=0 if has_begun else max(1, held.since_ns + waits_ns - now_ns),
            ),
            urgent,
        )

    def _release(self, program: RootProgram, now_ns: int, reason: str) -> None:
        """Let all held turns of a granted program go, oldest first."""
        for turn_id in list(program.held):
            held = self._holds[turn_id]
            self._drop(held)
            self._run(held.ticket, program, now_ns)
            self.counters.released += 1
            held.settle(Entered(hold_ns=now_ns - held.since_ns, reason=reason))

    def _release_locally(self, now_ns: int) -> None:
        """While the daemon is lost, release the longest held program first, up to the local limit."""
        slots = self._local_slots(now_ns)
        while slots > 0 and (first := self._holds.first) is not None:
            slots -= 1
            program = self._programs.use(first.root_id)
            program.grant(self.limits.grant_ttl_ns, now_ns, local=True)
            self.counters.released_locally += len(program.held)
            self._release(program, now_ns, _LOST)

    def _local_slots(self, now_ns: int) -> float:
        """How many more programs the gate itself may let in; a program between two turns keeps its slot."""
        limit = self._authority.local_limit(now_ns)
        if limit is None:
            return inf
        return limit - self._programs.leases.count(now_ns)

    def _drop(self, held: Held) -> None:
        self._holds.remove(held)
        if self._now_ns() - held.since_ns >= _LONG_S * self.limits.wall_second_ns:
            self.counters.held_long += 1
        program = self._programs.get(held.root_id)
        if program is not None:
            program.held.pop(held.ticket.turn_id, None)

    def _refused(self, ticket: Ticket, code: str, message: str, hold_ns: int = 0) -> Refused:
        """Count a refusal by its code. A client takes a 503 for the server's state, a 429 for its own excess."""
        self._refusals.count(code)
        return refusal(self.limits, ticket, 429 if code == "queue_full" else 503, code, message, hold_ns)

    def _refuse_held(self, held: Held, refused: Refused) -> None:
        self._drop(held)
        self._abandon(held.ticket, refused.message)
        self._end_if_one_turn(held.ticket)
        held.settle(refused)

    def _refuse_program(self, command: Refuse, now_ns: int) -> None:
        """Its root's turns, held ones first; of a program that never was here none will come without asking."""
        program = self._programs.get(self._programs.root_id(command.program_id))
        if program is None:
            return
        program.refuse(command, now_ns)
        for held in [self._holds[turn_id] for turn_id in program.held]:
            self._refuse_held(held, self._sent_away(held.ticket, program, now_ns, now_ns - held.since_ns))

    def _sent_away(self, ticket: Ticket, program: RootProgram, now_ns: int, hold_ns: int) -> Refused:
        """A 429 with the daemon's reason, and when to come again if that is any use."""
        code = program.refusal_code if program.refusal_code in REFUSED else "budget_spent"  # of a later version
        self._refusals.count(code)
        left_ns = program.refused_until_ns - now_ns
        return Refused(
            status=429,
            retry_after_s=max(1, -(-left_ns // self.limits.wall_second_ns)),
            code=code,
            message=program.refusal or "a budget is spent",
            program_id=ticket.program_id,
            hold_ns=hold_ns,
            is_final=program.refused_until_ns == FOR_GOOD,
        )

    def _abandon(self, ticket: Ticket, reason: str) -> None:
        self._send(TurnAbandoned(program_id=ticket.program_id, turn_id=ticket.turn_id, reason=reason), False)

    def _end_if_one_turn(self, ticket: Ticket) -> None:
        """Free the slot of a program of one turn at once, since nobody will ever name it again."""
        if not ticket.is_one_turn:
            return
        self.end_program(ticket.program_id)
        why = "one turn beside its parent's" if ticket.aside else "one turn without an identity"
        self._send(ProgramEnded(program_id=ticket.program_id, reason=why), False)

    # -- time ----------------------------------------------------------------------------------------------

    def _next_deadline_ns(self, now_ns: int) -> int | None:
        """The next instant at which a held turn needs something done."""
        due, least = self._holds.next_due, self._holds.least_asked
        if due is None or least is None:
            return None
        deadlines = [due.deadline_ns]
        if self._authority.mode(now_ns) is Mode.GOVERNED:
            deadlines.append(least[1] + self._reask_ns)
        change_ns = self._authority.next_change_ns(now_ns)
        if change_ns is not None:
            deadlines.append(change_ns)
        return min(deadlines)

    def _may_wait_on(self, held: Held, now_ns: int) -> bool:
        """What has begun is finished: it is not refused for waiting while others are served."""
        program = self._programs.get(held.root_id)
        serves = bool(self._running) or now_ns - self._served_ns < self.limits.hold_ns
        return program is not None and program.known and serves

    @property
    def _reask_ns(self) -> int:
        return max(self.limits.reask_ns, self.limits.wall_second_ns)

    def _arm(self) -> None:
        now_ns = self._now_ns()
        self._alarm.set(self._next_deadline_ns(now_ns), now_ns)

    def _on_alarm(self) -> None:
        now_ns = self._now_ns()
        while (due := self._holds.next_due) is not None and now_ns >= due.deadline_ns:
            if self._may_wait_on(due, now_ns):
                self._holds.put_off(due, now_ns + self.limits.hold_ns)
                continue
            hold_ns = now_ns - due.since_ns
            message = f"no slot came free in {hold_ns / NANOSECONDS_PER_SECOND:.0f} s"
            self._refuse_held(due, self._refused(due.ticket, "hold_deadline", message, hold_ns))
        if self._look(now_ns) is Mode.GOVERNED:
            while (least := self._holds.least_asked) is not None and now_ns - least[1] >= self._reask_ns:
                self.counters.asked_again += 1
                self._ask(least[0], now_ns, urgent=False)
        else:
            self._release_locally(now_ns)
        self._arm()
