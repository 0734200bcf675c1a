"""MORI's rules, worked by hand from the paper's formulas."""

import pytest
from made_facts import MadeFacts
from support.core_driver import Driver, fixed, of, recounted, sums

from controlplane.core.estimators.idleness import acts, held, idleness, reasons
from controlplane.core.estimators.workload import MovingAverage
from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import Pressure, Program, QueuedProgram, Replica, Status, Tier, seconds
from controlplane.core.policies.memory.typed import Typed as TypedEviction
from controlplane.core.policies.packing.by_tier import ByTier
from controlplane.core.policies.presets import preset
from controlplane.core.policies.priority.typed import Typed
from controlplane.core.policies.protocols import EngineShape, Fit, Pinned, QueuedCall, Resident
from controlplane.core.policies.retention.tiers import Leaving, Tiers
from controlplane.core.scheduling.rules_and_state import ControlRules

S = seconds(1)
NOW = 100 * S


def program(name: str, blocks: int = 100, idle: float = 0.5, **fields: object) -> Program:
    """Active, and acting; of its one cycle it acted the share ``idle`` of ten seconds."""
    values: dict[str, object] = {
        "program_id": name,
        "root_id": name,
        "status": Status.ACTIVE,
        "kv_blocks": blocks,
        "turn_index": 1,
        "cycles": (seconds(10 * (1 - idle)), seconds(10 * idle)),
    }
    return Program(**(values | fields))  # type: ignore[arg-type]


# eq. 1


def run(*steps: tuple[str, float]) -> Program:
    """Steps: reason for so long, act, or be held."""
    found, now_ns = Program(program_id="p"), S
    for kind, duration_s in steps:
        if kind == "reason":
            reasons(found, now_ns)
            found.open_turns = 1
        elif kind == "act":
            found.open_turns = 0
            acts(found, now_ns)
        else:
            held(found, now_ns)
        now_ns += seconds(duration_s)
    found.last_seen_ns = now_ns
    return found


def test_time_that_it_is_held_counts_for_neither() -> None:
    found = run(("reason", 5), ("act", 5), ("hold", 1000), ("reason", 10))
    assert idleness(found, 5, found.last_seen_ns) == pytest.approx(5 / 20)
    waiting = run(("reason", 5), ("act", 5), ("hold", 1000))
    assert idleness(waiting, 5, waiting.last_seen_ns) == pytest.approx(0.5)


def test_only_the_last_k_cycles_count() -> None:
    """A long tool call leaves the window after k short ones."""
    busy = [("reason", 3.0), ("act", 1.0)] * 5
    found = run(("reason", 1), ("act", 99), *busy)
    assert idleness(found, 6, found.last_seen_ns) == pytest.approx(104 / 120)
    assert idleness(found, 5, found.last_seen_ns) == pytest.approx(0.25)
    back = run(("reason", 1), ("act", 99), *busy, ("reason", 3))  # and what it is doing now is the last of the k
    assert idleness(back, 5, back.last_seen_ns) == pytest.approx(4 / 19)
    assert idleness(back, 1, back.last_seen_ns) == 0.0
    many = run(*busy, *busy, *busy, *busy, *busy)
    assert len(many.cycles) == 2 * 16


def test_the_end_of_a_turn_whose_beginning_was_not_seen_begins_a_phase_and_no_cycle() -> None:
    found = run(("act", 5))
    assert found.cycles == ()
    assert idleness(found, 5, found.last_seen_ns) == 1.0


def test_the_ledger_keeps_the_cycles() -> None:
    d = Driver(preset("mori"))
    d.pool(total=1000)
    d.submit("p", blocks=10)
    d.wait(4)
    d.finish("p", prompt=10)
    d.wait(12)
    assert d.program("p").cycles == (4 * S, 0)
    assert idleness(d.program("p"), 5, d.now_ns) == pytest.approx(0.75)
    d.ask("p", "p.2")
    d.wait(50)
    assert d.program("p").cycles == (4 * S, 12 * S)
    assert d.program("p").phase_since_ns == 0


# §4.3.1: demotion


def plan(
    *programs: Program,
    total: int = 1000,
    host: int = 0,
    state: Leaving | None = None,
    now_ns: int = NOW,
    demand: int | None = None,
    used: int | None = None,
    shared: int = 0,
    moves: bool = True,
) -> tuple[Leaving, list[tuple[str, str]]]:
    """The state after, and commands as (kind, program); labels by what they say."""
    sizes = [p.kv_blocks for p in programs if p.status is Status.ACTIVE]
    active = sum(sizes) - max(0, len(sizes) - 1) * shared
    resting = sum(p.kv_blocks for p in programs if p.kv_tier is Tier.HOST)
    pressure = Pressure(
        kv_total_blocks=total,
        kv_demand_blocks=active if demand is None else demand,
        host_total_blocks=host,
        host_used_blocks=resting if used is None else used,
    )
    policy, facts = Tiers(moves=moves), MadeFacts(shared_tokens=MovingAverage(value=shared))
    after, commands = policy.plan(
        state or policy.initial(), {p.program_id: p for p in programs}, [], facts, pressure, now_ns
    )
    assert all(command.reason for command in commands)
    told = []
    for command in commands:
        assert isinstance(command, cmd.ProgramCommand)
        kind = command.label if isinstance(command, cmd.Label) else type(command).__name__.lower()
        told.append((kind, command.program_id))
    return after, told


def paused(commands: list[tuple[str, str]]) -> list[str]:
    return [name for kind, name in commands if kind == "pause"]


def test_acting_programs_go_before_reasoning_ones_and_the_most_idle_first() -> None:
    programs = [
        program("idle", 300, 0.9),
        program("busy", 300, 0.2),
        program("reasons, idle", 300, 0.95, open_turns=1),
        program("reasons", 300, 0.1, open_turns=1),
    ]
    assert paused(plan(*programs, total=900)[1]) == ["idle"]
    assert paused(plan(*programs, total=899)[1]) == ["idle", "busy"]
    assert paused(plan(*programs, total=599)[1]) == ["idle", "busy", "reasons, idle"]


def test_who_is_on_the_host_takes_room_there() -> None:
    resting = program("resting", 500, status=Status.PAUSED, kv_tier=Tier.HOST)
    _, commands = plan(program("a", 700, 0.9), program("b", 600, 0.1), resting, host=1000)
    assert commands == [("pause", "a"), ("inactive", "a"), ("discard", "a")]
    _, commands = plan(program("a", 700, 0.9), program("b", 600, 0.1), resting, host=1200)
    assert commands == [("pause", "a"), ("idle", "a"), ("demote", "a")]


def test_who_was_sent_since_the_last_sample_takes_room() -> None:
    programs = [program("a", 700, 0.9), program("b", 600, 0.8), program("c", 500, 0.1)]
    state, commands = plan(*programs, total=1200, host=1000)
    assert commands[-1] == ("demote", "a")
    assert state.sent == (("a", NOW),)
    programs[0].status = Status.PAUSED

    def later(after_s: int, used: int | None = None) -> tuple[Leaving, list[tuple[str, str]]]:
        before = Leaving(sent=state.sent)
        return plan(*programs, total=1000, host=1000, state=before, used=used, now_ns=NOW + after_s * S)

    assert later(1)[1][-1] == ("discard", "b"), "a is on its way"
    programs[0].kv_tier = Tier.HOST
    assert later(1, used=0)[1][-1] == ("discard", "b"), "the sample is older"
    after, commands = later(5, used=200)
    assert commands[-1] == ("demote", "b"), "it tells by now that most of a has gone"
    assert after.sent == (("b", NOW + 5 * S),)
    programs[0].status, programs[0].kv_tier = Status.ENDED, Tier.NONE
    assert later(1)[1][-1] == ("demote", "b"), "who ended claims nothing"


def test_lazy_demotion_lets_the_turn_end_first() -> None:
    a, b = program("a", 700, 0.9, open_turns=1), program("b", 600, open_turns=1)
    state, commands = plan(a, b, host=1000)
    assert commands == [("pause", "a"), ("idle", "a")]
    assert state == Leaving(at_ns=NOW, names=("a",))
    a.status = Status.PAUSED
    assert plan(a, b, host=1000, state=state, now_ns=NOW + S) == (state, [])
    a.open_turns = 0
    after, commands = plan(a, b, host=1000, state=state, now_ns=NOW + 2 * S)
    assert commands == [("idle", "a"), ("demote", "a")]
    assert after == Leaving(at_ns=NOW, sent=(("a", NOW + 2 * S),)), "no look at the tiers, nor is the next put off"


def test_a_fleet_pauses_and_leaves_contexts_to_the_nodes() -> None:
    a, b = program("a", 700, 0.9, open_turns=1), program("b", 600)
    assert plan(a, b, host=1000, total=500, moves=False) == (Leaving(at_ns=NOW), [("pause", "b"), ("pause", "a")])


@pytest.mark.parametrize("status", [Status.ACTIVE, Status.ENDED])
def test_who_came_back_or_ended_meanwhile_is_not_moved(status: Status) -> None:
    state = Leaving(at_ns=NOW, names=("a", "forgotten"))
    assert plan(program("a", status=status), state=state) == (Leaving(at_ns=NOW), [])


def test_each_engine_has_tiers_of_its_own() -> None:
    """800 of 1400 blocks of host memory are left on one, and all on the other, where c makes room for w."""
    programs = [
        program("a", 700, 0.9, replica="one"),
        program("b", 600, 0.1, replica="one"),
        program("c", 900, 0.9, replica="two"),
        program("resting", 600, status=Status.PAUSED, kv_tier=Tier.HOST, replica="one"),
        waiting("w", 300, 0.1, replica="two"),
    ]
    pools = tuple(
        Replica(
            name=name,
            total_blocks=1000,
            demand_blocks=demand,
            host_total_blocks=1400,
            host_used_blocks=600,
        )
        for name, demand in (("one", 1300), ("two", 900))
    )
    pressure = Pressure(kv_total_blocks=2000, kv_demand_blocks=2200, host_total_blocks=2800, replicas=pools)
    policy = Tiers()
    _, commands = policy.plan(policy.initial(), {p.program_id: p for p in programs}, [], MadeFacts(), pressure, NOW)
    told = [(type(c).__name__, c.program_id) for c in commands if isinstance(c, cmd.ProgramCommand)]
    assert told == [
        ("Pause", "a"),
        ("Label", "a"),
        ("Demote", "a"),
        ("Pause", "c"),
        ("Label", "c"),
        ("Demote", "c"),
    ]


# §4.3: the partition's boundary


def waiting(name: str, blocks: int, idle: float, **fields: object) -> Program:
    values: dict[str, object] = {"status": Status.WAITING, "queued_turns": 1, "queued_blocks": blocks}
    return program(name, blocks, idle, **(values | fields))


def test_who_waits_takes_the_place_of_acting_programs_that_are_more_idle() -> None:
    acting = [program("idle", 400, 0.9), program("less", 400, 0.5), program("reasons", 200, 0.99, open_turns=1)]
    assert paused(plan(*acting, waiting("w", 300, 0.4))[1]) == ["idle"]
    assert paused(plan(*acting, waiting("w", 500, 0.4))[1]) == ["idle", "less"]
    assert paused(plan(*acting, waiting("w", 500, 0.6))[1]) == [], "one step would not do, and the next is busier"
    assert paused(plan(*acting, waiting("w", 300, 0.9))[1]) == [], "equals stay where they are"
    assert paused(plan(*acting, waiting("new", 300, 0.0, turn_index=0))[1]) == [], "a newcomer has no phase yet"


def test_room_that_is_there_is_used_first_and_by_the_host_tier_first() -> None:
    acting = [program("idle", 300, 0.9), program("idler", 300, 0.95)]
    queue = [waiting("cold", 300, 0.1), waiting("warm", 400, 0.3, kv_tier=Tier.HOST)]
    assert paused(plan(*acting, *queue)[1]) == ["idler"], "warm fits; cold takes the most idle one's place"
    last = waiting("last", 400, 0.5)
    assert paused(plan(*acting, *queue, last)[1]) == ["idler"], "nobody passes one who cannot be helped"


# §4.3.1: promotion


def test_the_host_tier_comes_back_first_then_who_was_here_then_newcomers_by_size() -> None:
    def queued(name: str, idle: float = 0.5, **fields: object) -> QueuedProgram:
        values: dict[str, object] = {"queued_blocks": 10, "arrived_at_ns": 1, "queued_at_ns": 2}
        return QueuedProgram.of(program(name, 10, idle, **(values | fields)))

    queue = [
        queued("new, large", turn_index=0, queued_blocks=9),
        queued("new, small", turn_index=0, queued_blocks=3),
        queued("cold, idle", 0.8),
        queued("cold, busy", 0.2),
        queued("host, idle", 0.9, kv_tier=Tier.HOST),
        queued("host, busy", 0.1, kv_tier=Tier.HOST),
    ]
    order = ByTier().order(queue, MadeFacts(), Pressure(), NOW)
    assert [one.program_id for one in order] == [
        "host, busy",
        "host, idle",
        "cold, busy",
        "cold, idle",
        "new, small",
        "new, large",
    ]


# §4.3.2: labels

RESIDENTS = [
    Resident(program_id="busy", blocks=10, last_used_ns=1, label="busy"),
    Resident(program_id="unlabelled", blocks=10, last_used_ns=2),
    Resident(program_id="idle, old", blocks=10, last_used_ns=3, label="idle"),
    Resident(program_id="idle, new", blocks=10, last_used_ns=4, label="idle"),
    Resident(program_id="inactive", blocks=10, last_used_ns=5, label="inactive"),
]


def test_the_device_evicts_inactive_programs_then_idle_then_busy_ones() -> None:
    policy = TypedEviction()
    fit = policy.fit(50, 45, 50, RESIDENTS, 0)
    assert fit == Fit(
        chunk_blocks=50,
        victims=[("inactive", 10), ("idle, old", 10), ("idle, new", 10), ("busy", 10), ("unlabelled", 5)],
    )
    assert policy.fit(60, 51, 60, RESIDENTS, 0) == Fit(chunk_blocks=0, victims=())
    assert policy.fit(60, 0, 60, RESIDENTS, 0) == Fit(chunk_blocks=60, victims=())


def test_the_host_keeps_idle_programs_longest() -> None:
    policy = TypedEviction()
    ranks = {label: policy.host_rank(label, False) for label in ("idle", "busy", "", "inactive")}
    assert sorted(ranks, key=ranks.__getitem__) == ["inactive", "busy", "", "idle"]
    assert policy.host_rank("idle", True) == ranks["idle"], "who is idle was paused, and will be back"
    assert policy.host_rank("", True) == policy.host_rank("busy", True) == ranks["inactive"]


def test_who_ended_is_evicted_before_the_living() -> None:
    residents = [
        Resident(program_id="rests", blocks=10, last_used_ns=1, label="idle", parked=True),
        Resident(program_id="works", blocks=10, last_used_ns=2),
        Resident(program_id="ended", blocks=10, last_used_ns=3, parked=True),
    ]
    fit = TypedEviction().fit(15, 15, 15, residents, 0)
    assert fit.victims == [("ended", 10), ("rests", 5)]


def test_typed_eviction_is_all_or_nothing_and_gives_pins_up_by_their_deadline() -> None:
    policy = TypedEviction()
    assert not policy.shrinks
    assert not policy.pins_outlast_waits
    pins = [Pinned(program_id=name, blocks=10, until_ns=at_ns) for name, at_ns in (("late", 9), ("soon", 3))]
    assert policy.unpin(pins, 5, stuck=False) == ["soon"]


def test_busy_calls_are_scheduled_before_idle_ones() -> None:
    def call(name: str, at_ns: int, label: str = "") -> QueuedCall:
        return QueuedCall(turn_id=name, program_id=name, queued_at_ns=at_ns, footprint_blocks=1, label=label)

    calls = [
        call("inactive", 1, "inactive"),
        call("idle", 2, "idle"),
        call("unlabelled", 4),
        call("busy", 3, "busy"),
    ]
    shape = EngineShape(pool_blocks=10, block_tokens=1, chunk_tokens=10)
    policy = Typed()
    order = policy.order(calls, shape, 0)
    assert [one.turn_id for one in order] == ["busy", "unlabelled", "idle", "inactive"]
    assert policy.level(5, 5, shape) == 0
    assert policy.window_ns == 0


# The whole


def test_the_preset_moves_the_idle_program_off_and_lets_it_in_again() -> None:
    d = Driver(preset("mori"))
    d.pool(total=1000)
    for name in ("a", "b"):
        d.submit(name, blocks=400)
    d.wait(1)
    d.finish("a", prompt=400)
    d.start_tool("a")
    d.wait(20)
    d.submit("c", blocks=400)
    commands = d.tick(after_s=6)
    assert [c.program_id for c in of(cmd.Pause, commands)] == ["a"]
    assert d.program("a").status is Status.PAUSED
    d.end_tool("a")
    d.ask("a", "a.2", tokens=400)
    assert d.admitted(after_s=1) == [], "there is no room"
    d.finish("b", prompt=400)
    d.end("b")
    assert d.admitted(after_s=1) == ["a"]


def test_a_sub_agent_has_a_slot_and_a_tier_of_its_own_and_its_parent_is_idle_meanwhile() -> None:
    """§3.1: for its parent a sub-agent is one long tool call, in which its context may leave the device."""
    d = Driver(preset("mori"))
    sample = {"total_blocks": 1000, "free_blocks": 1000, "block_tokens": 1, "host_total_blocks": 2000}
    d.send(d.engine(ev.PoolSampled, **sample))
    d.submit("parent", blocks=300)
    d.wait(1)
    d.finish("parent", prompt=300)
    d.start_tool("parent", tool="Task")
    d.send(d.tools(ev.ProgramArrived, program_id="child", parent_id="parent"))
    d.ask("child", tokens=500)
    commands = d.tick(1)
    assert of(cmd.Adopt, commands) == []
    assert [c.program_id for c in of(cmd.Admit, commands)] == ["child"]
    assert (d.ledger.programs.charges.active_roots, d.ledger.programs.demand_blocks) == (2, 800)
    assert d.ledger.tools.active == 0, "the parent's tool loads no host"
    d.submit("child", blocks=900)
    commands = d.tick(6)
    told = [(type(c).__name__, c.program_id) for c in commands if isinstance(c, cmd.ProgramCommand)]
    assert told == [("Pause", "parent"), ("Label", "parent"), ("Demote", "parent")]
    assert d.program("child").status is Status.ACTIVE
    d.end_tool("parent", tool="Task")
    d.ask("parent", "parent.2", tokens=300)
    assert d.admitted(1) == [], "it is promoted like anybody"
    d.finish("child", prompt=900)
    d.end("child")
    assert d.admitted(1) == ["parent"]
    assert sums(d.ledger) == sums(recounted(d.ledger))


def test_who_was_a_child_before_the_preset_rides_on_and_who_comes_is_none() -> None:
    d = Driver(fixed(1))
    d.run_turn("parent")
    for child, presets in (("before", "mori"), ("after", "penstock")):
        d.send(d.tools(ev.ProgramArrived, program_id=child, parent_id="parent"))
        d.tick()
        d.controller.reconfigure(preset(presets), ControlRules(), d.now_ns)
    assert (d.program("before").root_id, d.program("after").root_id) == ("parent", "after")
    d.send(d.tools(ev.ProgramArrived, program_id="after", parent_id="parent"))
    assert d.program("after").root_id == "parent", "told again, where children ride"
