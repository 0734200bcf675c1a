"""The sans-IO pump: events in, commands out, time as an argument.

    controller.receive(event, now_ns)      as often as events come
    controller.next_deadline_ns()          when ``tick`` has something to do; ``now`` or earlier: at once
    controller.tick(now_ns) -> commands

The daemon, the simulator and the replay of a log drive the same three calls, so they decide alike.

**Paper**: MARS Algorithm 1 (BalanceAndAdmit) and §4.1 (backfill at once when blocks return, decide retention at
tool boundaries).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.control import ControllerState, ControlRules
from controlplane.core.enact import enact
from controlplane.core.errors import RemoteEventError
from controlplane.core.estimate import as_seconds
from controlplane.core.fairness import InTurn, give_back, in_turn
from controlplane.core.forecast import demand, needs
from controlplane.core.ledger import Ledger
from controlplane.core.ledger.turns import Signals
from controlplane.core.mending import mend
from controlplane.core.outlook import demand_blocks, growing, parts, running_blocks, stands_for
from controlplane.core.overload import Load, detect
from controlplane.core.placing import ended_a_turn, place
from controlplane.core.policies import Window, Windowed
from controlplane.core.presets import Preset
from controlplane.core.room import MOST_PASSED_OVER, fitting_in
from controlplane.core.silence import ask_again, sweep
from controlplane.core.slots import first_admissible, gathering, held_back, leaving, may_leave_now, overdrawn
from controlplane.core.steps import Steps, run
from controlplane.core.tenants import Exhausted
from controlplane.core.trees import adoptions, expect, gangs, held_gangs, moves
from controlplane.core.types import Pressure, Program, QueuedProgram, Status, seconds
from controlplane.core.usual import Usual

_CROWDED_STALL = 2.0  # so many times as long the engine idles before the valve opens while CPUs are overloaded
_AT_ONCE = 256  # commands between two pauses
_MOST_WEIGHED = 1024  # programs a tick whose context may be pinned; the next follows at once
_MOST_ADOPTED = 256  # children a tick that gates are told of; the next follows at once
_MOST_TAKEN_BACK = 256  # slots a tick, so that a long outage's end does not hold one up; the next follows at once
# Events after which a slot, an order or a pin may be decided before the interval ends.
_BOUNDARIES = (
    ev.TurnQueued, ev.TurnAbandoned, ev.TurnEnded, ev.ReplyRead, ev.ToolEnqueued, ev.ToolStarted, ev.ProgramArrived,
    ev.ProgramEnded, ev.EnvironmentWanted, ev.PublisherState, ev.OperatorOrders, ev.EnginesListed,
)  # fmt: skip
_FREE_SLOTS = (ev.ToolEnded, ev.HostSampled)  # a tool that waits for a slot of the host may start


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
        self._urgent = True
        self._out: list[cmd.Command] = []
        self._enacting = ""  # the program of the command that is being enacted

    def _take(self, ledger: Ledger, now_ns: int = 0) -> None:
        self.ledger = self.state.ledger = ledger
        ledger.turns.cold_return_ratio = self.rules.overload.kv_cold_return
        ledger.programs.belong(self.rules.tenancy, now_ns)

    @property
    def window(self) -> Window:
        """The latest admission decision."""
        return self.state.window

    def receive(self, event: ev.Event, now_ns: int) -> None:
        """Take an event in. A peer's contradiction is counted and quarantines its program."""
        run(self.receiving(event, now_ns))

    def receiving(self, event: ev.Event, now_ns: int) -> Steps[None]:
        """``receive``, with pauses where it may take long."""
        try:
            fresh = yield from self.ledger.applying(event, now_ns)
        except RemoteEventError:
            fresh = True
            self.ledger.publishers.counts.contradictions += 1
            self.quarantine(event)
        decisive = _BOUNDARIES + _FREE_SLOTS if self.ledger.tools.queue else _BOUNDARIES
        if fresh and isinstance(event, decisive):
            self._urgent = True

    def quarantine(self, event: ev.Event) -> None:
        """Make no decision from its program's figures until its publisher has restated what it holds."""
        program = self.ledger.programs.by_name.get(getattr(event, "program_id", ""))
        if program is not None:
            self.ledger.programs.quarantine(program, event.publisher)
        self.ledger.publishers.resync[event.publisher] = 0

    def mend(self, now_ns: int, *, suspects: bool = False) -> None:
        """Go on after an error, without the program whose command raised; ``suspects``: without the quarantined."""
        self._take(mend(self.ledger, now_ns, without=self._enacting, suspects=suspects))
        self.state.forecast_key, self._urgent, self._enacting = (-1, -1), True, ""

    def give_up_tick(self) -> list[cmd.Command]:
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
        self.ledger.turns.cold_return_ratio = rules.overload.kv_cold_return
        self.ledger.programs.belong(rules.tenancy, now_ns)
        self._urgent = True

    def recall(self, command: cmd.Command, now_ns: int) -> None:
        """Believe a command that was sent before a restart: what was said holds, it is not decided again."""
        if command.command_id <= self.numbering.sent:
            return  # the snapshot holds it
        self.numbering.sent = command.command_id
        if isinstance(command, cmd.ProgramCommand):
            enact(self.ledger, command, now_ns)
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
        state, ledger, admission = self.state, self.ledger, self.preset.admission
        state.interval_ends_ns = now_ns + seconds(self.rules.interval_s)
        self._sense(now_ns)
        for _ in sweep(ledger, self.rules.silence, now_ns, lends=self.preset.retention.lends):
            yield  # it is for the other one to say, and is recalled once it is said
        for _ in ledger.runs.farewells_due():
            continue
        ledger.accounts.overspent.clear()
        ledger.accounts.unanswered.clear()
        yield from ledger.forgetting_ended(now_ns)
        ledger.programs.take_changed(len(ledger.programs.changed))
        ledger.publishers.resync.clear()
        self.pressure = self._observe(now_ns)
        state.admission, state.window = admission.update(state.admission, ledger.estimates, self.pressure, now_ns)

    def take_over(self) -> None:
        """Decide from now on, after having followed: who holds a slot is looked at once, as was not told to us."""
        self.ledger.programs.changed |= dict.fromkeys(self.ledger.programs.active)
        self._urgent = True

    @property
    def numbering(self) -> cmd.Numbering:
        """How commands are counted."""
        return self.ledger.commands

    def next_deadline_ns(self) -> int:
        """When ``tick`` is due. 0: at once."""
        return 0 if self._urgent else self.state.interval_ends_ns

    def tick(self, now_ns: int) -> list[cmd.Command]:
        """Decide what is due, and return the commands in the order in which they must be sent."""
        return run(self.ticking(now_ns))

    def ticking(self, now_ns: int) -> Steps[list[cmd.Command]]:
        """``tick``, with pauses where it may take long."""
        self._urgent = False
        interval_ended = now_ns >= self.state.interval_ends_ns
        if interval_ended:
            self.state.interval_ends_ns = now_ns + seconds(self.rules.interval_s)
            self._sense(now_ns)
            if self.rules.trees.keep:
                expect(self.ledger, now_ns)
            yield
            lends = self.preset.retention.lends
            yield from self._issuing(sweep(self.ledger, self.rules.silence, now_ns, lends=lends), now_ns)
        self._refuse(now_ns, interval_ended=interval_ended)
        yield from self._issuing(self.ledger.runs.farewells_due(), now_ns)
        if interval_ended:
            yield from self.ledger.forgetting_ended(now_ns)
        self.pressure = self._observe(now_ns)
        yield
        self._update_window(now_ns)
        gangs, window = self._held_gangs(now_ns)
        adopted = list(islice(adoptions(self.ledger, gangs), _MOST_ADOPTED))
        self._urgent = self._urgent or len(adopted) == _MOST_ADOPTED
        yield from self._issuing(adopted, now_ns)
        yield from self._balance_and_admit(window, now_ns)
        yield from self._let_in_active(self._take_back(now_ns) | self._hold_back(now_ns), gangs, now_ns)
        self._give_back(now_ns)
        self._rescue(now_ns)
        yield
        self._start_tools(now_ns)
        self._prepare(now_ns)
        if interval_ended:
            self._announce()
        self._retain(now_ns)
        asked = ask_again(self.ledger, self.rules.silence, seconds(self.rules.resync_s), now_ns)
        yield from self._issuing(asked, now_ns)
        decided, self._out = self._out, []
        return decided

    # Sensing

    def _sense(self, now_ns: int) -> None:
        """Once an interval: judge the load of the interval that ended."""
        ledger, overload = self.ledger, self.rules.overload
        host, signals = ledger.tools.host, ledger.turns.signals
        active = ledger.programs.charges.active_roots
        tools = ledger.tools.active + ledger.tools.waiting
        ledger.estimates.running.add(len(ledger.turns.running))
        if active:
            ledger.estimates.tools_per_program.add(tools / active)
        load = Load(
            tools=tools,
            cpus=host.cpus if host else 0.0,
            slowdown_ratio=ledger.estimates.slowdown_ratio,
            cpu_use_ratio=host.cpu_use_ratio if host else 0.0,
            cpu_stall_ratio=host.cpu_stall_ratio if host else 0.0,
            kv_use_ratio=self._fullness(self._kv_use_ratio(self._demand_blocks(now_ns))),
            retractions=signals.retractions,
            cold_returns=signals.cold_returns,
        )
        ledger.turns.signals = Signals()
        self.state.tools_beyond = 0
        self.state.overload = detect(self.state.overload, load, overload)

    def _demand_blocks(self, now_ns: int) -> int:
        return demand_blocks(self.ledger, self.preset.retention.half_life_ns, now_ns)

    def _kv_use_ratio(self, blocks: int) -> float:
        pool = self.ledger.engines.pool
        return blocks / pool.total_blocks if pool and pool.total_blocks else 0.0

    def _fullness(self, use_ratio: float) -> float:
        """What overload is judged by: where contexts are cheap to compute again, the pool may well be overfull."""
        return use_ratio / (1.0 + self.state.window.excess_now_ratio)

    def _forecast(self, now_ns: int) -> tuple[int, ...]:
        """What the active programs will need until they end; anew when one came or went, or an interval ended.

        Among very many it is anew when as many did as each of its sample stands for.
        """
        state, changes = self.state, self.ledger.programs.active_changes
        interval = now_ns // seconds(self.rules.interval_s)
        changes_then, interval_then = state.forecast_key
        if interval != interval_then or not 0 <= changes - changes_then < stands_for(self.ledger):
            state.forecast_key = changes, interval
            state.forecast = demand(
                growing(self.ledger, returning=self.rules.trees.keep), self.ledger.programs.shared_blocks
            )
        return state.forecast

    def _observe(self, now_ns: int) -> Pressure:
        ledger, pool, host = self.ledger, self.ledger.engines.pool, self.ledger.tools.host
        charges, tools, estimates = ledger.programs.charges, ledger.tools, ledger.estimates
        demanded_blocks, queued = self._demand_blocks(now_ns), len(ledger.programs.queue)
        use_ratio = self._kv_use_ratio(demanded_blocks)
        return Pressure(
            observed_at_ns=now_ns,
            interval_ends_ns=self.state.interval_ends_ns,
            kv_total_blocks=pool.total_blocks if pool else 0,
            kv_free_blocks=pool.free_blocks if pool else 0,
            kv_evictable_blocks=pool.evictable_blocks if pool else 0,
            kv_retained_blocks=pool.retained_blocks if pool else 0,
            kv_demand_blocks=demanded_blocks,
            kv_lent_blocks=charges.lent_blocks,
            kv_use_ratio=use_ratio,
            running_blocks=running_blocks(ledger),
            kv_forecast_blocks=self._forecast(now_ns) if queued or self._asks_for_children() else (),
            host_total_blocks=pool.host_total_blocks if pool else 0,
            host_used_blocks=pool.host_used_blocks if pool else 0,
            tools_active=tools.active,
            tools_waiting=tools.waiting,
            tool_wait_s=as_seconds(round(estimates.tool_wait.value)),
            tools_per_program=estimates.tools_per_program.value,
            tool_slowdown_ratio=estimates.slowdown_ratio,
            cpus=host.cpus if host else 0.0,
            cpu_use_ratio=host.cpu_use_ratio if host else 0.0,
            cpu_stall_ratio=host.cpu_stall_ratio if host else 0.0,
            programs_active=charges.active_roots,
            window_limit=self.state.window.limit,
            queue_length=queued,
            queued_blocks_mean=charges.queued_blocks / queued if queued else 0.0,
            cpu_overloaded=self.state.overload.cpu,
            kv_overloaded=self.state.overload.kv,
            kv_has_slack=self._fullness(use_ratio) < self.rules.overload.kv_slack,
            replicas=parts(ledger, self.preset.retention.half_life_ns, now_ns) if charges.several else (),
        )

    def _asks_for_children(self) -> bool:
        programs = self.ledger.programs
        return any(name in programs.children for name in programs.askers)

    # Deciding

    def _held_gangs(self, now_ns: int) -> tuple[dict[str, set[str]], Window]:
        """Children that wait until there is room for all of their gang, by root; and the room left for others."""
        window, rules, held = self.state.window, self.rules.trees, dict[str, set[str]]()
        found = gangs(self.ledger) if rules.gang_s else ()
        if found:
            waiting, window = held_gangs(found, self.ledger, window, rules, now_ns)
            for gang in waiting:
                held.setdefault(gang.root_id, set()).update(name for name, _ in gang.children)
        return held, window

    def _update_window(self, now_ns: int) -> None:
        """How many may be active, and what room there is."""
        state, admission = self.state, self.preset.admission
        state.admission, state.window = admission.update(
            state.admission, self.ledger.estimates, self.pressure, now_ns
        )

    def _balance_and_admit(self, window: Window, now_ns: int) -> Steps[None]:
        """MARS Algorithm 1, BalanceAndAdmit, in the room of ``window``."""
        preset, facts, self.considered = self.preset, self.ledger.estimates, ()
        queued = len(self.ledger.programs.queue)
        slots = window.limit - self.pressure.programs_active if window.limit else queued  # line 23
        if slots <= 0 or not queued or self._nobody_fits(window):
            return
        waiting = yield from self._waiting()
        order = preset.packing.order(waiting, facts, self.pressure, now_ns)
        yield
        turns = self._in_turn(list(order) if preset.packing.ages else self._overdue_first(order, now_ns), slots)
        self.considered = turns.order
        overdue_ns, empty = now_ns - seconds(self.rules.overdue_s), not self.pressure.programs_active
        programs, usual = self.ledger.programs.by_name, Usual(self.ledger.estimates)

        def ahead(queued: QueuedProgram) -> Sequence[float]:
            return needs(usual.waiting(programs[queued.program_id]))

        fitting = fitting_in(self.considered, slots, window, ahead, overdue_ns, empty=empty, first=turns.first)
        if self.ledger.programs.charges.several:  # they get their engines largest first (MORI §4.3.1)
            fitting.sort(key=lambda each: -each.blocks)
        for number, chosen in enumerate(fitting):
            if not number % _AT_ONCE:
                yield
            slot = f"slot {self.ledger.programs.charges.active_roots + 1} of {window.limit or 'any'}"
            turn = f"; {turns.why[chosen.program_id]}" if chosen.program_id in turns.why else ""
            guessed = self.ledger.gates.guessed(chosen.program_id)
            guess = f" ({' and '.join(guessed)} guessed)" if guessed else ""
            self._admit(chosen.program_id, f"{slot}; {chosen.blocks} blocks{guess}{turn}", now_ns)

    def _in_turn(self, order: Sequence[QueuedProgram], slots: int) -> InTurn:
        """Tenants take turns, whatever the preset's order within each."""
        return in_turn(order, self.ledger, self.pressure.kv_total_blocks, slots + MOST_PASSED_OVER)

    def _nobody_fits(self, window: Window) -> bool:
        """Whether each program that waits asks for more than any engine has left: their order is of no use then."""
        if not window.room_blocks or not self.pressure.programs_active:
            return False  # nothing bounds them, or the first one goes in whatever it asks for
        programs, most = self.ledger.programs, max(window.room_blocks) + window.returning_blocks
        return all(programs.by_name[name].queued_blocks > most for name in programs.queue)

    def _waiting(self) -> Steps[list[QueuedProgram]]:
        """Who may be let in, with what packing wants to know."""
        looks_ahead = self.preset.packing.looks_ahead
        return gathering(self.ledger, Usual(self.ledger.estimates).left if looks_ahead else None)

    def _overdue_first(self, order: Any, now_ns: int) -> list[QueuedProgram]:
        horizon_ns = now_ns - seconds(self.rules.overdue_s)
        overdue = [waiting for waiting in order if waiting.queued_at_ns <= horizon_ns]
        if not overdue:
            return list(order)
        overdue.sort(key=lambda waiting: waiting.queued_at_ns)
        return overdue + [waiting for waiting in order if waiting.queued_at_ns > horizon_ns]

    def _admit(self, root_id: str, reason: str, now_ns: int, held: Collection[str] = ()) -> None:
        """Let the root's held turns go, and its children's but for those that are ``held``."""
        root = self.ledger.programs.by_name[root_id]
        if not root.turn_index and root.queued_turns:  # remembered, to see how good the forecast was
            root.expected_tokens = Usual(self.ledger.estimates).expected_tokens(root)
        names, gates, programs = self.ledger.gates.waiting_family(root_id), self.ledger.gates, self.ledger.programs
        if held:
            names = [name for name in names if name not in held and gates.of(programs.by_name[name])]
        for name in names:
            why = reason if name == root_id else f"child of {root_id}: {reason}"
            self._place(self.ledger.programs.by_name[name], now_ns)  # said before the gate lets the turn go
            self._issue(cmd.Admit(program_id=name, ttl_ns=seconds(self.rules.grant_s), reason=why), now_ns)
        if not held:
            self.ledger.programs.askers.pop(root_id, None)

    def _rescue(self, now_ns: int) -> None:
        """Safety valve: whoever has waited longest while nothing runs is let in, whatever the window says.

        While crowded CPUs hold those up that are in, that is a sign of less, and takes twice as long (ADR 0030).
        The engine idles often then, and the valve is the door: an order by what is left holds there too (ADR 0032).
        """
        turns, pressure = self.ledger.turns, self.pressure
        crowded = pressure.cpu_overloaded and pressure.tools_active > 0
        stall_s = self.rules.stall_s * (_CROWDED_STALL if crowded else 1.0)
        first = None if turns.running else first_admissible(self.ledger)
        if first is None:
            return
        if now_ns - max(turns.engine_idle_since_ns, first.queued_at_ns) >= seconds(stall_s):
            if crowded and self.preset.packing.looks_ahead:
                order = self.preset.packing.order(run(self._waiting()), self.ledger.estimates, pressure, now_ns)
            else:
                order = run(gathering(self.ledger))
            order = self._in_turn(order, 1).order
            self.considered = self.considered or order
            self._admit(order[0].program_id, f"the engine was idle for {stall_s:g}s", now_ns)
            turns.engine_idle_since_ns = now_ns  # one at a time: its turn is on its way

    def _start_tools(self, now_ns: int) -> None:
        """Tools that wait for a slot of the host, in the order in which they asked."""
        slots, pressure, active = self.rules.tool_slots, self.pressure, self.pressure.tools_active
        waiting = self.ledger.tools.queue
        for key in list(islice(waiting, slots.free(pressure, self.state.tools_beyond))) if waiting else ():
            call, active = self.ledger.tools.calls[key], active + 1
            why = f"tool {active} at once, on {pressure.cpus:g} CPUs in use by {pressure.cpu_use_ratio:.0%}"
            self._issue(cmd.StartTool(program_id=call.program_id, call_id=call.call_id, reason=why), now_ns)
            self.state.tools_beyond += active > slots.slots(pressure.cpus)

    def _prepare(self, now_ns: int) -> None:
        """Environments of tools, for who is let in and for who is next."""
        if self.ledger.tools.environments:
            for command in self.ledger.tools.environments_due(self._next_in_queue(now_ns)):
                self._issue(command, now_ns)

    def _next_in_queue(self, now_ns: int) -> set[str]:
        """Who will be admitted first, as it looks now."""
        if not self.ledger.programs.queue:
            return set()
        facts = self.ledger.estimates
        order = self.preset.packing.order(run(self._waiting()), facts, self.pressure, now_ns)
        turns = self._in_turn(self._overdue_first(order, now_ns), self.rules.prepare_ahead)
        return {each.program_id for each in turns.order[: self.rules.prepare_ahead]}

    def _take_back(self, now_ns: int) -> set[str]:
        """Slots that nobody granted, at a turn's end. The roots that must go and cannot yet."""
        going, taken = set(), 0
        for root_id in leaving(self.ledger, self.state.window.limit):
            if taken >= _MOST_TAKEN_BACK or not may_leave_now(self.ledger, root_id):
                going.add(root_id)
                continue
            taken += 1
            self.ledger.publishers.counts.taken_back += 1
            self._take_slot(root_id, "an open gate let it in above the window", now_ns)
        self._urgent = self._urgent or taken >= _MOST_TAKEN_BACK
        return going

    def _hold_back(self, now_ns: int) -> set[str]:
        """Slots of programs that an operator holds, at a turn's end. All such roots that are active."""
        going = held_back(self.ledger)
        for root_id in going:
            if may_leave_now(self.ledger, root_id):
                self._take_slot(root_id, "an operator holds it", now_ns)
        for root in overdrawn(self.ledger):
            going.append(root.program_id)
            if root.status is Status.ACTIVE and may_leave_now(self.ledger, root.program_id):
                self._take_slot(root.program_id, self.ledger.accounts.spent_now[root.payer], now_ns)
        return set(going)

    def _give_back(self, now_ns: int) -> None:
        """Slots that a tenant borrowed of another's share, which asks for it now."""
        for root, why in give_back(self.ledger, self.pressure.kv_total_blocks):
            if root.status is Status.ACTIVE:
                self._take_slot(root.program_id, why, now_ns)
                self._urgent = True  # for whom it was taken can be let in

    def _refuse(self, now_ns: int, *, interval_ended: bool) -> None:
        """Runs and tenants that have spent a budget, and are not to wait for another one."""
        accounts, programs = self.ledger.accounts, self.ledger.programs
        if not accounts.on:
            return
        if interval_ended and accounts.has_budgets:  # what is held in a long turn or gap counts, too
            for name in programs.active:
                programs.meter(programs.by_name[name], now_ns)
        accounts.look(now_ns)
        over = {name: accounts.stopped.get(name, "") for name in accounts.overspent}
        known = (programs.by_name[name] for name in accounts.unanswered if name in programs.by_name)
        over |= {each.program_id: accounts.stopped.get(each.root_id, "") for each in known}
        accounts.overspent.clear()
        accounts.unanswered.clear()
        for name, why in over.items():
            if name in programs.by_name:
                accounts.of(programs.by_name[name].payer).refused += 1
                self._issue(cmd.Refuse(program_id=name, reason=why or "its run was stopped"), now_ns)
        for tenant, why in accounts.spent_now.items():
            if accounts.tenancy.of(tenant).exhausted is not Exhausted.REFUSE:
                continue
            use = accounts.of(tenant)
            for name in [name for name in programs.queue if programs.by_name[name].payer == tenant]:
                use.refused += 1
                left_ns = max(1, use.window_ends_ns - now_ns)
                self._issue(cmd.Refuse(program_id=name, ttl_ns=left_ns, reason=why), now_ns)

    def _take_slot(self, root_id: str, reason: str, now_ns: int) -> None:
        pinned = self.ledger.programs.by_name[root_id].retained_until_ns > now_ns
        self._issue(cmd.Pause(program_id=root_id, reason=reason), now_ns)
        if pinned:
            self._issue(cmd.Release(program_id=root_id, reason="its slot was taken back"), now_ns)

    def _let_in_active(
        self, going: Collection[str], gangs: Mapping[str, Collection[str]], now_ns: int
    ) -> Steps[None]:
        """Held turns whose root holds a slot: a gate that lost its grant, or a child. Not of those that must go.

        Nor of a gang that waits for room: its root goes on asking.
        """
        askers = self.ledger.programs.askers
        for number, root_id in enumerate([name for name in askers if name not in going]):
            if not number % _AT_ONCE:
                yield
            root, held = self.ledger.programs.by_name.get(root_id), gangs.get(root_id, ())
            if root is not None and root.status is Status.ACTIVE and root.queued_turns:
                self._admit(root_id, "its slot is held already", now_ns, held)
            if not held:
                askers.pop(root_id, None)

    def _retain(self, now_ns: int) -> None:
        changed = self.ledger.programs.take_changed(_MOST_WEIGHED)
        self._urgent = self._urgent or bool(self.ledger.programs.changed)
        changed = [each for each in changed if not (ended_a_turn(each) and self._place(each, now_ns))]
        self._unpin_parents(changed, now_ns)
        self.state.retention, commands = self.preset.retention.plan(
            self.state.retention,
            self.ledger.programs.by_name,
            changed,
            self.ledger.estimates,
            self.pressure,
            now_ns,
        )
        for command in commands:
            self._issue(command, now_ns)
        if self.rules.trees.prefetch_s and self.pressure.host_total_blocks:
            programs = self.ledger.programs.by_name
            waiting = (programs[name] for name in self.ledger.programs.active if programs[name].delegating)
            for command in moves(waiting, self.rules.trees, now_ns):
                self._issue(command, now_ns)

    def _place(self, program: Program, now_ns: int) -> bool:
        """Tell the gate where the program's next turn goes. True if it leaves its context behind."""
        before, policy = program.replica, self.preset.placement
        self.state.placement, told = place(policy, self.state.placement, self.ledger, program, now_ns)
        if told is None:
            return False
        self._issue(told, now_ns)
        return before not in ("", told.replica) and not told.moves

    def _unpin_parents(self, changed: Iterable[Program], now_ns: int) -> None:
        """Whoever waits for a child of its own is not about to come back: the child needs the room."""
        for program in changed:
            if program.delegating and program.retained_until_ns > now_ns:
                why = "its tool waits for a child program"
                self._issue(cmd.Release(program_id=program.program_id, reason=why), now_ns)

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
        self._enacting = getattr(command, "program_id", "")
        enact(self.ledger, command, now_ns)
        self._enacting = ""
