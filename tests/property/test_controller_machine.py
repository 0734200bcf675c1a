"""Ledger and controller under arbitrary interleavings.

Several programs, children among them, with publishers whose events are duplicated, lost, late and out of order,
that contradict themselves, restart and tell their whole state; ticks, and daemons that die between any two steps.
"""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.core_driver import recounted, sums

from controlplane.core.ledger import Ledger
from controlplane.core.ledger.programs import waiting_roots
from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import Status, seconds
from controlplane.core.policies.admission.fixed import Fixed
from controlplane.core.policies.presets import PRESETS, Preset
from controlplane.core.scheduling.controller import Controller
from controlplane.core.scheduling.demand import engine_demand, replicas
from controlplane.core.scheduling.demand import engines as engines_of
from controlplane.core.scheduling.freezing import FreezeRules
from controlplane.core.scheduling.rules_and_state import ControllerState, ControlRules
from controlplane.core.scheduling.tool_slots import ToolSlots
from controlplane.daemon.bus import snapshot

PARENTS = {"a": "", "b": "", "c": "", "a1": "a", "a2": "a1", "b1": "b"}
PRESET_CHOICES: dict[str, Preset] = {
    **PRESETS,
    **{f"fixed-{k}": replace(PRESETS["fcfs"], admission=Fixed(window=k)) for k in (1, 2)},
}
programs = st.sampled_from(sorted(PARENTS))
GRANTS = st.builds(ev.Grant, program_id=programs, command_id=st.sampled_from([0, 1, 5, 20, 10**9]))
turns = st.integers(0, 7).map("turn-{}".format)
calls = st.integers(0, 4).map("call-{}".format)
tool_names = st.sampled_from(["bash", "pytest", ""])
figures = st.sampled_from([0, 1, 50, 400, 5000])
roles = st.sampled_from(["gate", "engine", "engine-2", "tool"])
engines = st.sampled_from(["engine", "engine", "engine-2"])


class Wire:
    """One publisher's way to the daemon: it numbers, and then things happen to the events."""

    def __init__(self, role: str, boot: int = 1) -> None:
        self.role, self.boot, self.sent = role, boot, 0

    def number(self, event: ev.Event) -> ev.Event:
        self.sent += 1
        return replace(event, publisher=f"node/{self.role}/{self.boot}", sequence=self.sent)


class ControllerMachine(RuleBasedStateMachine):
    @initialize(preset=st.sampled_from(sorted(PRESET_CHOICES)), slots_per_cpu=st.sampled_from([0.0, 0.5, 1.0]))
    def start(self, preset: str, slots_per_cpu: float) -> None:
        self.preset = PRESET_CHOICES[preset]
        sandboxes = FreezeRules(freeze=True, after_s=0.5)
        self.rules = ControlRules(tool_slots=ToolSlots(per_cpu=slots_per_cpu), sandboxes=sandboxes)
        self.controller = Controller(self.preset, self.rules)
        self.now_ns = seconds(100)
        self.wires = {role: Wire(role) for role in ("gate", "engine", "engine-2", "tool", "host", "control")}
        self.late: list[ev.Event] = []
        self.seen: list[ev.Event] = []

    @property
    def ledger(self) -> Ledger:
        return self.controller.ledger

    def receive(self, event: ev.Event) -> None:
        self.seen.append(event)
        self.controller.receive(event, self.now_ns)

    def publish(self, role: str, event: ev.Event) -> None:
        self.receive(self.wires[role].number(event))

    # Events

    @rule(program=programs, turn=turns, tokens=figures, named=st.booleans(), group=st.integers(0, 3))
    def ask(self, program: str, turn: str, tokens: int, named: bool, group: int) -> None:
        parent = PARENTS[program] if named else ""
        ids = {"program_id": program, "turn_id": turn, "parent_id": parent}
        self.publish("gate", ev.TurnQueued(prompt_tokens=tokens, group_id="g", group_size=group, **ids))

    @rule(role=st.sampled_from(["gate", "engine", "engine-2"]))
    def flush(self, role: str) -> None:
        self.publish(role, ev.CacheFlushed())

    @rule(program=programs, named=st.booleans())
    def arrive(self, program: str, named: bool) -> None:
        self.publish("gate", ev.ProgramArrived(program_id=program, parent_id=PARENTS[program] if named else ""))

    @rule(program=programs, aside=st.booleans())
    def announce(self, program: str, aside: bool) -> None:
        """By the agent's hooks, before its first turn or long after it."""
        arrived = ev.ProgramArrived(program_id=program, parent_id=PARENTS[program], aside=aside)
        self.publish("tool", arrived)

    @rule(program=programs, turn=turns)
    def abandon(self, program: str, turn: str) -> None:
        self.publish("gate", ev.TurnAbandoned(program_id=program, turn_id=turn))

    @rule(program=programs, turn=turns, tool=st.sampled_from(["", "bash"]), calls=st.integers(0, 2))
    def read_reply(self, program: str, turn: str, tool: str, calls: int) -> None:
        self.publish("gate", ev.ReplyRead(program_id=program, turn_id=turn, tool=tool, tool_calls=calls))

    @rule(program=programs, turn=turns, blocks=figures, engine=engines)
    def submit(self, program: str, turn: str, blocks: int, engine: str) -> None:
        self.publish(engine, ev.TurnSubmitted(program_id=program, turn_id=turn, projected_blocks=blocks))

    @precondition(lambda self: self.ledger.turns.running)
    @rule(data=st.data(), prompt=figures, cached=figures)
    def prefill(self, data: st.DataObject, prompt: int, cached: int) -> None:
        turn = data.draw(st.sampled_from(sorted(self.ledger.turns.running)))
        name = self.ledger.turns.running[turn].program_id
        self.publish(
            "engine",
            ev.FirstToken(program_id=name, turn_id=turn, prompt_tokens=prompt, cached_tokens=cached, prefill_ns=9),
        )

    @precondition(lambda self: self.ledger.turns.running)
    @rule(data=st.data(), tokens=figures, calls=st.integers(-1, 2), tool=tool_names, ok=st.booleans())
    def finish(self, data: st.DataObject, tokens: int, calls: int, tool: str, ok: bool) -> None:
        turn = data.draw(st.sampled_from(sorted(self.ledger.turns.running)))
        name = self.ledger.turns.running[turn].program_id
        self.publish(
            "engine",
            ev.TurnEnded(program_id=name, turn_id=turn, prompt_tokens=tokens, tool_calls=calls, tool=tool, ok=ok),
        )

    @rule(program=programs, turn=turns)
    def finish_anything(self, program: str, turn: str) -> None:
        self.publish("engine", ev.TurnEnded(program_id=program, turn_id=turn, prompt_tokens=10))

    @rule(program=programs, call=calls, tool=tool_names)
    def begin_tool(self, program: str, call: str, tool: str) -> None:
        self.publish("tool", ev.ToolStarted(program_id=program, call_id=call, tool=tool))

    @rule(program=programs, call=calls, tool=tool_names, wants_slot=st.booleans())
    def ask_for_tool(self, program: str, call: str, tool: str, wants_slot: bool) -> None:
        self.publish("tool", ev.ToolEnqueued(program_id=program, call_id=call, tool=tool, wants_slot=wants_slot))

    @rule(program=programs, call=calls, tool=tool_names)
    def end_tool(self, program: str, call: str, tool: str) -> None:
        self.publish("tool", ev.ToolEnded(program_id=program, call_id=call, tool=tool, duration_ns=seconds(1)))

    @rule(program=programs)
    def want_environment(self, program: str) -> None:
        self.publish("tool", ev.EnvironmentWanted(program_id=program))

    @rule(program=programs, frozen=st.booleans(), gone=st.booleans(), held=figures)
    def sample_sandbox(self, program: str, frozen: bool, gone: bool, held: int) -> None:
        self.publish("tool", ev.SandboxSampled(program_id=program, frozen=frozen, gone=gone, held_bytes=held))

    @rule(program=programs)
    def end(self, program: str) -> None:
        self.publish("tool", ev.ProgramEnded(program_id=program))

    @rule(
        total=st.sampled_from([0, 500, 10_000]),
        retractions=st.integers(0, 3),
        block_tokens=st.sampled_from([1, 16]),
        engine=engines,
    )
    def sample_pool(self, total: int, retractions: int, block_tokens: int, engine: str) -> None:
        self.publish(
            engine,
            ev.PoolSampled(total_blocks=total, free_blocks=0, retractions=retractions, block_tokens=block_tokens),
        )

    @rule(program=programs, tokens=st.sampled_from([0, 20, 10_000]), engine=engines)
    def move_context(self, program: str, tokens: int, engine: str) -> None:
        self.publish(engine, ev.ContextMoved(program_id=program, below_tokens=tokens))

    @rule(program=programs, engine=engines)
    def reclaim_a_pin(self, program: str, engine: str) -> None:
        self.publish(engine, ev.PinReclaimed(program_id=program))

    @rule(cpus=st.sampled_from([0.0, 0.5, 2.0]), use_ratio=st.sampled_from([0.0, 0.4, 1.0]))
    def sample_host(self, cpus: float, use_ratio: float) -> None:
        self.publish("host", ev.HostSampled(cpus=cpus, cpu_use_ratio=use_ratio))

    @rule(command_id=st.integers(0, 50), program=programs, applied=st.booleans(), engine=engines)
    def answer(self, command_id: int, program: str, applied: bool, engine: str) -> None:
        kind = ev.CommandApplied if applied else ev.CommandRejected
        self.publish(engine, kind(command_id=command_id, program_id=program))

    @rule(role=roles, data=st.data())
    def tell_state(self, role: str, data: st.DataObject) -> None:
        some = st.lists(st.tuples(programs, turns), max_size=3, unique_by=lambda pair: pair[1])

        def draw_turns(parent: bool) -> Sequence[ev.OpenTurn]:
            return [
                ev.OpenTurn(program_id=p, turn_id=t, blocks=9, parent_id=PARENTS[p] if parent else "")
                for p, t in data.draw(some)
            ]

        state = ev.PublisherState(role=role)
        if role == "gate":
            grants = data.draw(st.lists(GRANTS, max_size=2))
            state = replace(state, held_turns=draw_turns(parent=True), grants=grants)
        elif role.startswith("engine"):
            pins = [ev.Pin(program_id=p, ttl_ns=seconds(3)) for p in data.draw(st.lists(programs, max_size=2))]
            state = replace(state, open_turns=draw_turns(parent=False), pins=pins)
        else:
            tools = data.draw(st.lists(st.tuples(programs, calls, st.booleans(), st.booleans()), max_size=3))
            state = replace(
                state,
                open_tools=[
                    ev.OpenTool(program_id=p, call_id=c, tool="bash", started=s, wants_slot=w)
                    for p, c, s, w in tools
                ],
            )
        self.publish(role, state)

    # What happens to events on the way

    @rule(role=roles, count=st.integers(1, 3))
    def lose(self, role: str, count: int) -> None:
        self.wires[role].sent += count

    @rule(role=roles, program=programs, turn=turns)
    def delay(self, role: str, program: str, turn: str) -> None:
        events: dict[str, ev.Event] = {
            "gate": ev.TurnQueued(program_id=program, turn_id=turn, prompt_tokens=40),
            "engine": ev.TurnSubmitted(program_id=program, turn_id=turn, projected_blocks=40),
            "engine-2": ev.TurnSubmitted(program_id=program, turn_id=turn, projected_blocks=40),
            "tool": ev.ToolStarted(program_id=program, call_id=turn, tool="bash"),
        }
        self.late.append(self.wires[role].number(events[role]))

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def deliver_late(self, data: st.DataObject) -> None:
        self.receive(self.late.pop(data.draw(st.integers(0, len(self.late) - 1))))

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def deliver_again(self, data: st.DataObject) -> None:
        event = data.draw(st.sampled_from(self.seen[-10:]))
        duplicates = self.ledger.publishers.counts.duplicates
        before = snapshot_of(self.controller.state)
        known = event.publisher in self.ledger.publishers.sequences and not _may_be_missing(self.ledger, event)
        self.receive(event)
        if known:
            assert self.ledger.publishers.counts.duplicates == duplicates + 1
            after = snapshot_of(self.controller.state)
            assert without_counts(before, self.preset) == without_counts(after, self.preset)

    @rule(role=roles)
    def restart_publisher(self, role: str) -> None:
        self.wires[role] = Wire(role, self.wires[role].boot + 1)

    @rule(held=st.lists(st.sampled_from("abc"), max_size=2, unique=True), draining=st.booleans())
    def order(self, held: list[str], draining: bool) -> None:
        self.publish("control", ev.OperatorOrders(held=held, draining=draining))

    # Time

    @rule(after_s=st.sampled_from([0, 0.01, 1, 5, 11, 35, 61, 121, 901]))
    def tick(self, after_s: float) -> None:
        self.now_ns += seconds(after_s)
        commands = self.controller.tick(self.now_ns)
        self.check_commands(commands)

    def check_commands(self, commands: Sequence[cmd.Command]) -> None:
        sent = self.controller.numbering.sent
        assert [c.command_id for c in commands] == list(range(sent - len(commands) + 1, sent + 1))
        assert all(c.reason for c in commands)
        assert all(c.ttl_ns > 0 for c in commands if isinstance(c, cmd.Retain | cmd.Admit))
        # Whoever held a slot and still had held turns was told so, unless it came unasked and must go.
        held = set(self.ledger.programs.ordered_held)
        assert set(self.ledger.programs.askers) <= self.must_go() | held
        admits = [c for c in commands if isinstance(c, cmd.Admit)]
        assert not held & {c.program_id for c in admits}
        if self.ledger.programs.draining:
            assert all(c.reason.startswith(("its slot", "child of")) for c in admits)
        assert len({c.program_id for c in admits}) == len(admits)
        limit = self.controller.window.limit
        if limit and any(c.reason.startswith("slot ") for c in admits):
            rescued = sum(c.reason.startswith("the engine was idle") for c in admits)
            assert self.ledger.programs.charges.active_roots - rescued <= limit

        self.check_who_must_go(commands)
        self.check_slots(commands)
        self.check_environments()
        self.check_sandboxes()

    def check_sandboxes(self) -> None:
        """Nobody of whose family a turn or a tool runs was told to sleep, or was not told to wake."""
        asleep = [name for name, each in self.ledger.sandboxes.known.items() if each.asked]
        for name in asleep:
            program = self.ledger.programs.by_name[name]
            family = {name, program.root_id, *self.ledger.programs.children_of(program.root_id)}
            assert not any(
                each.open_turns or each.open_tools for each in map(self.ledger.programs.by_name.__getitem__, family)
            )

    def check_environments(self) -> None:
        """Whoever has a slot was told to make it, and whoever waits for none was not."""
        everyone, queue = self.ledger.programs.by_name, self.ledger.programs.queue
        for name, environment in self.ledger.tools.environments.items():
            root_id = everyone[name].root_id
            assert everyone.get(root_id, everyone[name]).status is not Status.ACTIVE
            assert not environment.asked or root_id in queue

    def check_slots(self, commands: Sequence[cmd.Command]) -> None:
        """Nobody waits for a slot while one is free; above them tools start on idle CPUs only."""
        slots, host = self.rules.tool_slots, self.ledger.tools.host
        started = sum(isinstance(c, cmd.StartTool) for c in commands)
        if not slots.per_cpu or host is None or not host.cpus:
            assert not self.ledger.tools.queue
            return
        active = self.ledger.tools.active
        if self.ledger.tools.queue:
            assert active >= slots.slots(host.cpus)
        if started and active > slots.slots(host.cpus):
            assert host.cpu_use_ratio < slots.busy

    def check_who_must_go(self, commands: Sequence[cmd.Command]) -> None:
        """Above the window a gate's unasked programs leave between their turns, the last arrived first."""
        limit, roots = self.controller.window.limit, self.ledger.programs.charges.active_roots
        busy = {
            self.ledger.programs.by_name[turn.program_id].root_id for turn in self.ledger.turns.running.values()
        }
        assert self.must_go() <= busy or not self.ledger.programs.gated
        taken = {c.program_id for c in commands if c.reason.startswith("an open gate")}
        assert not taken & busy
        assert not taken or roots >= limit > 0
        staying = self.ledger.programs.unasked.keys() - self.must_go()
        assert all(
            self.ledger.programs.by_name[gone].arrived_at_ns >= self.ledger.programs.by_name[kept].arrived_at_ns
            for gone in taken | self.must_go()
            for kept in staying
        )

    def must_go(self) -> set[str]:
        """The last arrived of those that nobody granted a slot, as many as there are too many."""
        excess = self.ledger.programs.charges.active_roots - self.controller.window.limit
        if not self.controller.window.limit or excess <= 0:
            return set()
        unasked = sorted(
            self.ledger.programs.unasked,
            key=lambda name: self.ledger.programs.by_name[name].arrived_at_ns,
            reverse=True,
        )
        return set(unasked[:excess])

    @rule(preset=st.sampled_from(sorted(PRESET_CHOICES)), slots_per_cpu=st.sampled_from([0.0, 0.5, 1.0]))
    def reconfigure(self, preset: str, slots_per_cpu: float) -> None:
        """Other policies and rules; what the programs are and what was promised stays."""
        before = self.ledger.records(), self.controller.window
        self.preset = PRESET_CHOICES[preset]
        self.rules = replace(self.rules, tool_slots=ToolSlots(per_cpu=slots_per_cpu))
        self.controller.reconfigure(self.preset, self.rules, self.now_ns)
        assert (self.ledger.records(), self.controller.window) == before

    @rule(after_s=st.sampled_from([0, 1, 11, 61]))
    def die_and_decide_the_same(self, after_s: float) -> None:
        """A daemon restored from a snapshot issues the commands that the first would have."""
        restored = Controller(self.preset, self.rules, round_trip(self.controller.state, self.preset))
        assert snapshot_of(restored.state) == snapshot_of(self.controller.state)
        self.now_ns += seconds(after_s)
        expected = self.controller.tick(self.now_ns)
        decided = restored.tick(self.now_ns)
        note(f"decided {decided}")
        assert decided == expected
        self.controller = restored

    @rule(after_s=st.sampled_from([0, 1, 11, 61]))
    def die_after_sending(self, after_s: float) -> None:
        """The snapshot is older than the last commands: the new daemon reads them back."""
        restored = Controller(self.preset, self.rules, round_trip(self.controller.state, self.preset))
        self.now_ns += seconds(after_s)
        sent = self.controller.tick(self.now_ns)
        for command in [*sent, *sent]:
            restored.replay_command(command, self.now_ns)
        assert restored.numbering.sent == self.controller.numbering.sent
        granted = {c.program_id for c in sent if isinstance(c, cmd.Admit)} & restored.ledger.programs.active.keys()
        assert granted == {c.program_id for c in sent if isinstance(c, cmd.Admit)}
        self.controller = restored

    # What always holds

    @invariant()
    def sums_are_the_records(self) -> None:
        ledger = self.controller.ledger
        assert sums(ledger) == sums(recounted(ledger))
        assert ledger.programs.demand_blocks >= 0

    @invariant()
    def engines_add_up(self) -> None:
        ledger, pools = self.controller.ledger, self.ledger.engines.pools
        assert (ledger.engines.pool is None) == (not pools)
        if ledger.engines.pool is not None:
            assert ledger.engines.pool.total_blocks == sum(pool.total_blocks for pool in pools.values())
        assert ledger.programs.charges.several == (len(pools) > 1)
        assert [each.name for each in replicas(ledger)] == sorted(pools)
        anew = recounted(ledger)
        assert replicas(ledger) == replicas(anew), "what was kept of the sums is what they are"
        assert ledger.engines.pool == anew.engines.pool
        assert ledger.turns.running_blocks == anew.turns.running_blocks
        if ledger.programs.charges.several:
            assert list(engines_of(ledger).items()) == list(engines_of(anew).items())
            assert engine_demand(ledger, None, self.now_ns) == engine_demand(anew, None, self.now_ns)
        if ledger.programs.charges.several and ledger.estimates.shared_tokens.value == 0:
            assert (
                sum(each.demand_blocks for each in engine_demand(ledger, None, self.now_ns))
                == ledger.programs.demand_blocks
            )

    @invariant()
    def indexes_are_the_records(self) -> None:
        ledger = self.ledger
        everyone = ledger.programs.by_name.values()
        assert set(ledger.programs.queue) == {p.program_id for p in waiting_roots(everyone)}
        assert set(ledger.programs.active) == {p.program_id for p in everyone if p.status is Status.ACTIVE}
        idle = {p.program_id for p in everyone if p.status in (Status.WAITING, Status.PAUSED)}
        assert set(ledger.programs.dormant) == idle - set(ledger.programs.queue)
        rebuilt = round_trip(self.controller.state, self.preset).ledger
        assert ledger.programs.children == rebuilt.programs.children
        assert ledger.gates.held_of == rebuilt.gates.held_of

    @invariant()
    def who_waits_for_a_slot_has_none(self) -> None:
        assert all(not self.ledger.tools.calls[key].has_slot for key in self.ledger.tools.queue)

    @invariant()
    def who_came_unasked_is_an_active_root(self) -> None:
        everyone = self.ledger.programs.by_name
        assert all(everyone[name].status is Status.ACTIVE for name in self.ledger.programs.unasked)
        assert not any(everyone[name].parent_id for name in self.ledger.programs.unasked)

    @invariant()
    def counts_are_the_records(self) -> None:
        ledger = self.ledger
        everyone = ledger.programs.by_name
        for program in everyone.values():
            name = program.program_id
            running = [key for key, turn in ledger.turns.running.items() if turn.program_id == name]
            tools = [key for key, call in ledger.tools.calls.items() if call.program_id == name]
            assert (program.open_turns, program.open_tools) == (len(running), len(tools))
            held = [
                turn
                for turn in ledger.gates.held.values()
                if ledger.programs.by_name[turn.program_id].root_id == name
            ]
            assert (program.queued_turns, program.queued_blocks) == (len(held), sum(turn.blocks for turn in held))
            assert program.status is not Status.ACTIVE or program.queued_at_ns == 0
            assert not held or program.status is Status.ACTIVE or program.queued_at_ns > 0
        for table in (ledger.turns.running, ledger.tools.calls, ledger.gates.held):
            assert {work.program_id for work in table.values()} <= ledger.programs.by_name.keys()

    @invariant()
    def families_hold_together(self) -> None:
        programs_now = self.ledger.programs.by_name
        for program in programs_now.values():
            if not program.parent_id:
                assert program.root_id == program.program_id
                continue
            root = programs_now.get(program.root_id)
            assert root is None or not root.parent_id
            if program.status is Status.ACTIVE:
                assert root is not None
                assert root.status is Status.ACTIVE

    @invariant()
    def nobody_who_asks_is_overlooked(self) -> None:
        """A root with held turns is in the queue, or is answered at the next tick."""
        for program in self.ledger.programs.by_name.values():
            if program.queued_turns:
                assert program.status in (Status.WAITING, Status.ACTIVE)
                if program.status is Status.ACTIVE:
                    assert program.program_id in self.ledger.programs.askers

    @invariant()
    def an_open_program_is_not_idle(self) -> None:
        for program in self.ledger.programs.by_name.values():
            if program.open_turns or program.open_tools:
                assert program.idle_since_ns == 0
            elif (
                program.status is Status.ACTIVE
                and not program.queued_turns
                and not _family_asks(self.ledger, program)
            ):
                assert program.idle_since_ns > 0


def _family_asks(ledger: Ledger, program: object) -> bool:
    root_id = program.root_id  # type: ignore[attr-defined]
    return any(ledger.programs.by_name[turn.program_id].root_id == root_id for turn in ledger.gates.held.values())


def _may_be_missing(ledger: Ledger, event: ev.Event) -> bool:
    sequence = ledger.publishers.sequences[event.publisher]
    within = any(first <= event.sequence <= last for first, last in sequence.missing)
    return within or event.sequence >= sequence.expected


def snapshot_of(state: ControllerState) -> bytes:
    return b"".join(
        snapshot.pieces(state, preset="test", stream_sequence=1, stream_created="then", now_ns=1, time_scale=1.0)
    )


def without_counts(data: bytes, preset: Preset) -> dict[str, object]:
    """The ledger but for what a duplicate may change: that its publisher was heard."""
    ledger = snapshot.restore(snapshot.read(data), preset).ledger
    ledger.publishers.counts.duplicates = 0
    for sequence in ledger.publishers.sequences.values():
        sequence.heard_at_ns = sequence.unanswered = 0
    return ledger.records()


def round_trip(state: ControllerState, preset: Preset) -> ControllerState:
    """Through the snapshot's bytes and back."""
    data = b"".join(
        snapshot.pieces(
            state, preset=preset.name, stream_sequence=1, stream_created="then", now_ns=1, time_scale=1.0
        )
    )
    return snapshot.restore(snapshot.read(data), preset)


TestController = ControllerMachine.TestCase
