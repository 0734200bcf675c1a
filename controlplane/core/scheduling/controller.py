"""The sans-IO pump: events in, commands out, time as an argument.

    controller.receive(event, now_ns)      as often as events come
    controller.next_deadline_ns()          when ``tick`` has something to do; ``now`` or earlier: at once
    controller.tick(now_ns) -> commands

The daemon, the simulator and the replay of a log drive the same three calls, so they decide alike.

**Paper**: MARS Algorithm 1 (BalanceAndAdmit) and §4.1 (backfill at once when blocks return, decide retention at
tool boundaries).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice

from controlplane.core.estimators.demand_curve import needs
from controlplane.core.estimators.program_forecast import ProgramForecaster
from controlplane.core.ledger import Ledger
from controlplane.core.ledger.apply_command import apply_command
from controlplane.core.ledger.repair import mend
from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.errors import RemoteEventError
from controlplane.core.model.steps import Steps, run
from controlplane.core.model.types import Pressure, Program, QueuedProgram, Status, seconds
from controlplane.core.policies.presets import Preset
from controlplane.core.policies.protocols import Window, Windowed
from controlplane.core.policies.retention.hinted import as_clients_ask, fetched_as_asked
from controlplane.core.scheduling.budgets import refusals
from controlplane.core.scheduling.fairness import InTurn, in_turn, share_reclaims
from controlplane.core.scheduling.freezing import fit_in_memory, freezes_due, wake_ahead
from controlplane.core.scheduling.groups import in_groups, prompt_pins
from controlplane.core.scheduling.hold_reasons import Binding, HoldReasons, Reason, own_bindings
from controlplane.core.scheduling.liveness import ask_again, check_liveness, weigh_begun
from controlplane.core.scheduling.placing import ended_a_turn, place
from controlplane.core.scheduling.room import MOST_PASSED_OVER, Fitting, fitting_in
from controlplane.core.scheduling.rules_and_state import ControllerState, ControlRules
from controlplane.core.scheduling.sensing import observe, sense
from controlplane.core.scheduling.service_tiers import gives_way, in_tiers
from controlplane.core.scheduling.shedding import is_overdue, shed
from controlplane.core.scheduling.slots import (
    MOST_TAKEN_BACK,
    first_admissible,
    gathering,
    holds_back,
    takes_back,
    takes_slot,
)
from controlplane.core.scheduling.subagents import adoptions, unpinned_parents, update_parent_etas
from controlplane.core.scheduling.tool_slots import starts_due

_CROWDED_STALL = 2.0  # so many times as long the engine idles before the valve opens while CPUs are overloaded
_AT_ONCE = 256  # commands between two pauses
_MOST_WEIGHED = 1024  # programs a tick whose context may be pinned; the next follows at once
_MOST_ADOPTED = 256  # children a tick that gates are told of; the next follows at once
_AT_ONCE_EVENTS = ev.deciding_events(ev.Decide.AT_ONCE)
_WITH_TOOLS_EVENTS = ev.deciding_events(ev.Decide.AT_ONCE, ev.Decide.WHERE_TOOLS_WAIT)


class Controller:
    """Decides for one node. All state is in ``state``; the policies are pure."""

    def __init__(
        self, preset: Preset, rules: ControlRules | None = None, state: ControllerState | None = None
    ) -> None:
        self.preset = preset
        self.rules = rules or ControlRules()
        self.state = state or ControllerState(
            admission=preset.admission.initial(),
            retention=preset.retention.initial(),
            placement=preset.placement.initial(),
        )
        self._take(self.state.ledger)
        self.pressure = Pressure()
        self.considered: Sequence[QueuedProgram] = ()  # who could be let in at the last tick, in packing's order
        self.holds = HoldReasons()
        self._fitting = Fitting()  # of this tick
        self._behind_siblings: set[str] = set()  # likewise: rollouts that wait for their group's prompt
        self._urgent = True
        self._out: list[cmd.Command] = []
        self._applying = ""  # the program of the command that is being enacted

    def _take(self, ledger: Ledger, now_ns: int = 0) -> None:
        self.ledger = self.state.ledger = ledger
        ledger.turns.cold_return_ratio = self.rules.overload.kv_cold_return
        ledger.programs.set_tenancy(self.rules.tenancy, now_ns)
        ledger.programs.slots_for_children = self.preset.retention.slots_for_children

    @property
    def window(self) -> Window:
        return self.state.window

    def receive(self, event: ev.Event, now_ns: int) -> None:
        run(self.receiving(event, now_ns))

    def receiving(self, event: ev.Event, now_ns: int) -> Steps[None]:
        """``receive``, with pauses where it may take long."""
        if isinstance(event, ev.TurnAbandoned):
            self.holds.leave(event, self.ledger, now_ns)
        try:
            fresh = yield from self.ledger.applying(event, now_ns)
        except RemoteEventError:
            fresh = True
            self.ledger.publishers.counts.contradictions += 1
            self.quarantine(event)
        decisive = _WITH_TOOLS_EVENTS if self.ledger.tools.queue else _AT_ONCE_EVENTS
        if fresh and (isinstance(event, decisive) or self.ledger.turns.group_opened):
            self._urgent, self.ledger.turns.group_opened = True, False
            self.holds.note(event)

    def quarantine(self, event: ev.Event) -> None:
        """Make no decision from its program's figures until its publisher has restated what it holds."""
        program = self.ledger.programs.by_name.get(getattr(event, "program_id", ""))
        if program is not None:
            self.ledger.programs.quarantine(program, event.publisher)
        self.ledger.publishers.resync[event.publisher] = 0

    def mend(self, now_ns: int, *, suspects: bool = False) -> None:
        """Go on after an error, without the program whose command raised; ``suspects``: without the quarantined."""
        self._take(mend(self.ledger, now_ns, without=self._applying, suspects=suspects))
        self.state.forecast_key, self._urgent, self._applying = (-1, -1), True, ""

    def abort_tick(self) -> list[cmd.Command]:
        """What a tick that raised had decided by then: it holds, and is to be sent. The whole tick is due again."""
        self.state.interval_ends_ns, self._urgent = 0, True
        decided, self._out = self._out, []
        return decided

    def reconfigure(self, preset: Preset, rules: ControlRules, now_ns: int) -> None:
        """Decide by other policies and rules from the next tick on, which is due at once.

        Programs, queue and window stay, and so does what a policy remembers where one of its kind follows it.
        """
        for kind in ("admission", "retention", "placement"):
            policy = getattr(preset, kind)
            if type(policy) is not type(getattr(self.preset, kind)):
                setattr(self.state, kind, policy.initial())
        self.preset, self.rules = preset, rules
        self._take(self.ledger, now_ns)
        self._urgent = True

    def replay_command(self, command: cmd.Command, now_ns: int) -> None:
        """Believe a command that was sent before a restart: what was said holds, it is not decided again."""
        if command.command_id <= self.numbering.sent:
            return  # the snapshot holds it
        self.numbering.sent = command.command_id
        if isinstance(command, cmd.ProgramCommand):
            apply_command(self.ledger, command, now_ns)
        elif isinstance(command, cmd.SetWindow):
            state, window = self.state, command.window
            state.announced = (command.limit, window)
            state.window = replace(state.window, limit=command.limit, window=window, reason=command.reason)
            if isinstance(state.admission, Windowed):
                state.admission = state.admission.at(window)

    def follow(self, now_ns: int) -> None:
        """What time does while another daemon decides: load is sensed and silence is judged, but nobody is told.

        With the events received and that daemon's commands recalled, the state is about the one that it has.
        """
        run(self.following(now_ns))

    def following(self, now_ns: int) -> Steps[None]:
        """``follow``, with pauses where it may take long."""
        if now_ns < self.state.interval_ends_ns:
            return
        ledger = self.ledger
        self.state.interval_ends_ns = now_ns + seconds(self.rules.interval_s)
        self.holds.begin_tick()
        sense(self.state, self.rules, self.preset.retention.decay, now_ns)
        for _ in check_liveness(ledger, self.rules.silence, now_ns, lends=self.preset.retention.lends):
            yield  # it is for the other one to say, and is recalled once it is said
        _ = list(ledger.releases_due())
        ledger.accounts.overspent.clear()
        ledger.accounts.unanswered.clear()
        ledger.gates.newcomers.clear()
        yield from ledger.forgetting_ended(now_ns)
        ledger.programs.take_changed(len(ledger.programs.changed))
        ledger.publishers.resync.clear()
        self._observe(now_ns)

    def take_over(self) -> None:
        """Decide from now on, after having followed: who holds a slot is looked at once, as was not told to us."""
        self.ledger.programs.changed |= dict.fromkeys(self.ledger.programs.active)
        self._urgent = True

    @property
    def numbering(self) -> cmd.Numbering:
        return self.ledger.commands

    def next_deadline_ns(self) -> int:
        """When ``tick`` is due. 0: at once."""
        return 0 if self._urgent else self.state.interval_ends_ns

    def tick(self, now_ns: int) -> list[cmd.Command]:
        return run(self.ticking(now_ns))

    def ticking(self, now_ns: int) -> Steps[list[cmd.Command]]:
        """``tick``, with pauses where it may take long."""
        self._urgent = False
        self.holds.begin_tick()
        interval_ended = now_ns >= self.state.interval_ends_ns
        if interval_ended:
            self.state.interval_ends_ns = now_ns + seconds(self.rules.interval_s)
            sense(self.state, self.rules, self.preset.retention.decay, now_ns)
            if self.rules.trees.keep:
                yield from update_parent_etas(self.ledger, now_ns)
            yield
            lends = self.preset.retention.lends
            yield from self._issuing(check_liveness(self.ledger, self.rules.silence, now_ns, lends=lends), now_ns)
        yield from self._issuing(refusals(self.ledger, now_ns, interval_ended=interval_ended), now_ns)
        yield from self._issuing(self.ledger.releases_due(), now_ns)
        if interval_ended:
            yield from self.ledger.forgetting_ended(now_ns)
            self.holds.forget(self.ledger.programs.queue)
        if self.preset.retention.lends:
            weigh_begun(self.ledger, self.rules.silence, now_ns)
        self._observe(now_ns)
        yield
        adopted = list(islice(adoptions(self.ledger), _MOST_ADOPTED))
        self._urgent = self._urgent or len(adopted) == _MOST_ADOPTED
        yield from self._issuing(adopted, now_ns)
        yield from self._balance_and_admit(self.state.window, now_ns)
        going = yield from self._take_back(now_ns)
        yield from self._let_in_active(going, now_ns)
        yield from self._reclaim_shares(now_ns)
        yield from self._rescue(now_ns)
        self._note_holds(now_ns)
        yield
        yield from self._issuing(starts_due(self.state, self.rules.tool_slots, self.pressure), now_ns)
        yield from self._prepare(now_ns, interval_ended=interval_ended)
        if interval_ended:
            yield from self._issuing(shed(self.ledger, now_ns), now_ns)
            self._announce()
        self._retain(now_ns)
        asked = ask_again(self.ledger, self.rules.silence, seconds(self.rules.resync_s), now_ns)
        yield from self._issuing(asked, now_ns)
        decided, self._out = self._out, []
        return decided

    # Deciding

    def _observe(self, now_ns: int) -> None:
        """How things stand, and how many may be active then."""
        state, admission = self.state, self.preset.admission
        self.pressure = observe(state, self.rules, self.preset.retention.decay, now_ns)
        state.admission, state.window = admission.update(
            state.admission, self.ledger.estimates, self.pressure, now_ns
        )

    def _balance_and_admit(self, window: Window, now_ns: int) -> Steps[None]:
        """MARS Algorithm 1, BalanceAndAdmit, in the room of ``window``."""
        self.considered, self._behind_siblings = (), set()
        queued = len(self.ledger.programs.queue)
        slots = window.limit - self.pressure.programs_active if window.limit else queued  # line 23
        none_fits = slots > 0 and self._none_fits(window)
        self._fitting = Fitting(binding=Binding(Reason.ROOM_NOW if none_fits else Reason.SLOTS))
        if slots <= 0 or not queued or none_fits:
            return
        turns = yield from self._in_order(slots, now_ns)
        self.considered = turns.order
        overdue_ns, empty = now_ns - seconds(self.rules.overdue_s), not self.pressure.programs_active
        programs, forecaster = self.ledger.programs.by_name, ProgramForecaster(self.ledger.estimates)

        def ahead(queued: QueuedProgram) -> Sequence[float]:
            return needs(forecaster.waiting(programs[queued.program_id]))

        self._fitting = fitting_in(
            self.considered, slots, window, ahead, overdue_ns, empty=empty, first=turns.first
        )
        fit_in_memory(self._fitting, self.ledger, self.rules.sandboxes, empty=empty)
        if self.ledger.programs.charges.several:  # they get their engines largest first (MORI §4.3.1)
            self._fitting.chosen.sort(key=lambda each: -each.blocks)
        for number, chosen in enumerate(self._fitting.chosen):
            if not number % _AT_ONCE:
                yield
            slot = f"slot {self.ledger.programs.charges.active_roots + 1} of {window.limit or 'any'}"
            turn = f"; {turns.why[chosen.program_id]}" if chosen.program_id in turns.why else ""
            guessed = self.ledger.gates.guessed(chosen.program_id)
            guess = f" ({' and '.join(guessed)} guessed)" if guessed else ""
            self._admit(chosen.program_id, f"{slot}; {chosen.blocks} blocks{guess}{turn}", now_ns)

    def _note_holds(self, now_ns: int) -> None:
        """What binds those that wait on, and those among them whom something else holds back."""
        binding = Binding(Reason.DRAIN) if self.ledger.programs.draining else self._fitting.binding
        own = own_bindings(self.ledger, self._fitting.passed_over, self._behind_siblings)
        self.holds.tick(now_ns, binding, own, seconds(self.rules.interval_s))

    def _in_order(self, slots: int, now_ns: int) -> Steps[InTurn]:
        """Who may get the next ``slots``: the preset's order, in which tenants take turns.

        Whoever is overdue goes first, what has begun before all; where the order brings everybody to its front in
        time, only newcomers whose deadline is near.
        """
        packing, facts = self.preset.packing, self.ledger.estimates
        waiting = yield from gathering(self.ledger, ProgramForecaster(facts).left if packing.looks_ahead else None)
        order = packing.order(waiting, facts, self.pressure, now_ns)
        if packing.groups and any(each.group for each in order):
            order, self._behind_siblings = in_groups(order, self.ledger, now_ns)
        yield
        order, asked = in_tiers(order, self.ledger, self.rules.hints, self.pressure.kv_total_blocks)
        horizon_ns = now_ns - seconds(self.rules.overdue_s)
        overdue = [each for each in order if is_overdue(each, horizon_ns, now_ns, ages=packing.ages)]
        if overdue:  # what has begun goes before newcomers that are
            gone = {each.program_id for each in overdue} | {each.program_id for each in order if each.turn_index}
            first = [each for each in order if each.program_id in gone]
            first.sort(key=lambda each: (not each.turn_index, each.queued_at_ns))
            order = first + [each for each in order if each.program_id not in gone]
        turns = self._in_turn(order, slots)
        return replace(turns, why={**asked, **turns.why}) if asked else turns

    def _in_turn(self, order: Sequence[QueuedProgram], slots: int) -> InTurn:
        return in_turn(list(order), self.ledger, self.pressure.kv_total_blocks, slots + MOST_PASSED_OVER)

    def _none_fits(self, window: Window) -> bool:
        """Whether each program that waits asks for more than any engine has left: their order is of no use then."""
        if not window.room_blocks or not self.pressure.programs_active:
            return False  # nothing bounds them, or the first one goes in whatever it asks for
        programs, most = self.ledger.programs, max(window.room_blocks) + window.returning_blocks
        return all(programs.by_name[name].needed_blocks > most for name in programs.queue)

    def _admit(self, root_id: str, reason: str, now_ns: int) -> None:
        root = self.ledger.programs.by_name[root_id]
        if root.queued_at_ns:
            self.holds.end(root_id, root.queued_at_ns, now_ns)
        if not root.turn_index and root.queued_turns:  # remembered, to see how good the forecast was
            root.expected_tokens = ProgramForecaster(self.ledger.estimates).expected_tokens(root)
        for name in self.ledger.gates.waiting_family(root_id):
            why = reason if name == root_id else f"child of {root_id}: {reason}"
            self._place(self.ledger.programs.by_name[name], now_ns)  # said before the gate lets the turn go
            self._issue(cmd.Admit(program_id=name, ttl_ns=seconds(self.rules.grant_s), reason=why), now_ns)
        self.ledger.programs.askers.pop(root_id, None)

    def _rescue(self, now_ns: int) -> Steps[None]:
        """Safety valve: whoever has waited longest while nothing runs is let in, whatever the window says.

        While crowded CPUs hold those up that are in, that is a sign of less, and takes twice as long (ADR 0014).
        The engine idles often then, and the valve is the door: an order by what is left holds there too (ADR 0014).
        """
        turns, pressure = self.ledger.turns, self.pressure
        crowded = pressure.cpu_overloaded and pressure.tools_active > 0
        stall_s = self.rules.stall_s * (_CROWDED_STALL if crowded else 1.0)
        first = None if turns.running or self.window.strict else first_admissible(self.ledger)
        if first is None:
            return
        if now_ns - max(turns.engine_idle_since_ns, first.queued_at_ns) >= seconds(stall_s):
            if crowded and self.preset.packing.looks_ahead:
                order = (yield from self._in_order(1, now_ns)).order
            else:
                order = self._in_turn((yield from gathering(self.ledger)), 1).order
                yield
            self.considered = self.considered or order
            self._admit(order[0].program_id, f"the engine was idle for {stall_s:g}s", now_ns)
            turns.engine_idle_since_ns = now_ns  # one at a time: its turn is on its way

    def _next(self, count: int, now_ns: int) -> Steps[set[str]]:
        """The next of the queue, as it looks now."""
        if not count or not self.ledger.programs.queue:
            return set()
        return {each.program_id for each in (yield from self._in_order(count, now_ns)).order[:count]}

    def _prepare(self, now_ns: int, *, interval_ended: bool) -> Steps[None]:
        """Environments of tools, and sandboxes, for who is let in and for who is next."""
        if self.ledger.tools.environments:
            near = yield from self._next(self.rules.prepare_ahead, now_ns)
            yield from self._issuing(self.ledger.tools.environments_due(near), now_ns)
        if self.ledger.sandboxes.known:
            near = yield from self._next(wake_ahead(self.ledger) if interval_ended else 0, now_ns)
            due = freezes_due(self.ledger, self.rules.sandboxes, near, now_ns, freeze=interval_ended)
            yield from self._issuing(due, now_ns)

    def _take_back(self, now_ns: int) -> Steps[set[str]]:
        """Slots that are taken back at a turn's end. The roots whose turns that wait are not let in meanwhile."""
        counts, going, before = self.ledger.publishers.counts, set[str](), self.ledger.publishers.counts.taken_back
        yield from self._issuing(takes_back(self.ledger, self.state.window.limit, now_ns, going), now_ns)
        self._urgent = self._urgent or counts.taken_back - before >= MOST_TAKEN_BACK
        yield from self._issuing(holds_back(self.ledger, now_ns, going), now_ns)
        return going

    def _reclaim_shares(self, now_ns: int) -> Steps[None]:
        """Slots that a tenant borrowed of another's share, which asks for it now, or who lets others go first."""
        going = share_reclaims(self.ledger, self.pressure.kv_total_blocks)
        for root, why in [*going, *gives_way(self.ledger, self.rules.hints)]:
            if root.status is Status.ACTIVE:
                yield from self._issuing(takes_slot(self.ledger, root.program_id, why, now_ns), now_ns)
                self._urgent = True  # for whom it was taken can be let in

    def _let_in_active(self, going: Collection[str], now_ns: int) -> Steps[None]:
        """Held turns whose root holds a slot: a gate that lost its grant, or a child. Not of those that must go."""
        askers = self.ledger.programs.askers
        for number, root_id in enumerate([name for name in askers if name not in going]):
            if not number % _AT_ONCE:
                yield
            root = self.ledger.programs.by_name.get(root_id)
            if root is not None and root.status is Status.ACTIVE and root.queued_turns:
                self._admit(root_id, "its slot is held already", now_ns)
            askers.pop(root_id, None)

    def _retain(self, now_ns: int) -> None:
        changed = self.ledger.programs.take_changed(_MOST_WEIGHED)
        self._urgent = self._urgent or bool(self.ledger.programs.changed)
        changed = [each for each in changed if not (ended_a_turn(each) and self._place(each, now_ns))]
        for released in unpinned_parents(changed, now_ns):
            self._issue(released, now_ns)
        self.state.retention, commands = self.preset.retention.plan(
            self.state.retention,
            self.ledger.programs.by_name,
            changed,
            self.ledger.estimates,
            self.pressure,
            now_ns,
        )
        programs, to_fetch = self.ledger.programs.by_name, self.ledger.hints.to_fetch
        commands = as_clients_ask(commands, programs, changed, self.rules.hints, self.pressure, now_ns)
        for command in [*commands, *fetched_as_asked(to_fetch, programs, self.pressure)]:
            self._issue(command, now_ns)
        to_fetch.clear()
        for pin in prompt_pins(self.ledger, now_ns) if self.preset.packing.groups else ():
            self._issue(pin, now_ns)

    def _place(self, program: Program, now_ns: int) -> bool:
        """Tell the gate where the program's next turn goes. True if it leaves its context behind."""
        before, policy, groups = program.replica, self.preset.placement, self.preset.packing.groups
        state, command = place(policy, self.state.placement, self.ledger, program, now_ns, groups=groups)
        self.state.placement = state
        if command is None:
            return False
        self._issue(command, now_ns)
        return before not in ("", command.replica) and not command.moves

    def _announce(self) -> None:
        window = self.state.window
        if (window.limit, window.window) != self.state.announced:
            self.state.announced = (window.limit, window.window)
            self._issue(cmd.SetWindow(limit=window.limit, window=window.window, reason=window.reason), 0)

    def _issuing(self, commands: Iterable[cmd.Command | None], now_ns: int) -> Steps[None]:
        for number, command in enumerate(commands):
            if not number % _AT_ONCE or command is None:
                yield
            if command is not None:
                self._issue(command, now_ns)

    def _issue(self, command: cmd.Command, now_ns: int) -> None:
        command = replace(command, command_id=self.numbering.next())
        self._out.append(command)  # sent in any case: whoever waits for it is not to wait for our books
        self._applying = getattr(command, "program_id", "")
        apply_command(self.ledger, command, now_ns)
        self._applying = ""
