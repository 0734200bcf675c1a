"""ThunderAgent's rules, worked by hand from the paper's formulas."""

from collections.abc import Sequence

import pytest
from made_facts import MadeFacts
from support.core_driver import Driver, of

from controlplane.core import commands as cmd
from controlplane.core.admission.capacity import Capacity
from controlplane.core.control import ControlRules
from controlplane.core.errors import ConfigError
from controlplane.core.estimate import MovingAverage
from controlplane.core.idleness import weight
from controlplane.core.outlook import demand_blocks
from controlplane.core.packing.shortest import Shortest
from controlplane.core.policies import Checked, Window
from controlplane.core.presets import preset
from controlplane.core.retention.watermarks import Watermarks
from controlplane.core.room import fitting_in
from controlplane.core.types import Pressure, Program, QueuedProgram, Replica, Status, seconds

S = seconds(1)


def program(name: str, blocks: int, acting_s: float | None = None, **fields: object) -> Program:
    """Reasoning; acting since that many seconds at second 100."""
    values: dict[str, object] = {"program_id": name, "root_id": name, "status": Status.ACTIVE, "kv_blocks": blocks}
    if acting_s is None:
        values["open_turns"] = 1
    else:
        values |= {"open_tools": 1, "tool_started_at_ns": seconds(100 - acting_s)}
    return Program(**(values | fields))  # type: ignore[arg-type]


def paused(
    *programs: Program, demand: int, total: int = 1000, policy: Watermarks | None = None, shared: int = 0
) -> list[str]:
    policy, facts = policy or Watermarks(), MadeFacts(shared_tokens=MovingAverage(value=shared))
    known = {p.program_id: p for p in programs}
    pressure = Pressure(kv_total_blocks=total, kv_demand_blocks=demand, kv_use_ratio=demand / total)
    state, commands = policy.plan(policy.initial(), known, [], facts, pressure, 100 * S)
    assert state == Checked(100 * S)
    assert all(isinstance(command, cmd.Pause) for command in commands)
    return [command.program_id for command in commands if isinstance(command, cmd.Pause)]


# eq. 7


@pytest.mark.parametrize(("acting_s", "expected"), [(None, 1.0), (0, 1.0), (1, 0.5), (3, 0.125), (0.5, 2**-0.5)])
def test_f_of_t_is_two_to_the_minus_t(acting_s: float | None, expected: float) -> None:
    assert weight(program("p", 1, acting_s), S, 100 * S) == pytest.approx(expected)


def test_a_half_life_may_be_another_or_none() -> None:
    assert weight(program("p", 1, 20), 10 * S, 100 * S) == pytest.approx(0.25)
    assert weight(program("p", 1, 20), 0, 100 * S) == 1.0


def test_demand_falls_while_programs_act() -> None:
    d = Driver(preset("thunderagent"))
    d.pool(total=1000)
    for name in ("a", "b"):
        d.submit(name, blocks=400)
    assert demand_blocks(d.ledger, S, d.now_ns) == 800
    d.finish("a", prompt=400)
    d.start_tool("a")
    d.wait(2)
    assert demand_blocks(d.ledger, S, d.now_ns) == 400 + 100
    assert demand_blocks(d.ledger, 0, d.now_ns) == 800


# eq. 6 and 11


def test_nobody_is_paused_while_all_fit() -> None:
    assert paused(program("a", 600, 1), program("b", 400), demand=1000) == []


def test_acting_programs_are_paused_first_and_the_shortest_of_them() -> None:
    """S_pause = 1/c + I(acting): 1.01 for "short acting", 1.005, then 0.1 for the shortest that reasons."""
    active = [
        program("long acting", 200, 0),
        program("short acting", 100, 0),
        program("reasoning", 10),
        program("long reasoning", 900),
    ]
    assert paused(*active, demand=1050) == ["short acting"]
    assert paused(*active, demand=1101) == ["short acting", "long acting"]
    assert paused(*active, demand=1305) == ["short acting", "long acting", "reasoning"]


def test_what_a_pause_frees_counts_as_it_was_weighed() -> None:
    """Two seconds in their tools, so that 400 blocks weigh 100: one pause does not do."""
    active = [program("a", 400, 2), program("b", 400, 2), program("c", 950)]
    assert paused(*active, demand=1150) == ["a", "b"]


def test_a_prefix_that_others_share_is_not_freed() -> None:
    """300 blocks each, of them 100 shared: four demand 900, and each pause frees 200."""
    active = [program(name, 300, 0) for name in "abcd"]
    assert paused(*active, demand=900, total=501, shared=100) == ["a", "b"]
    assert paused(*active, demand=900, total=299, shared=100) == ["a", "b", "c", "d"]
    half = Watermarks(watermark_high=0.5)
    assert paused(*active[:1], demand=300, total=299, policy=half, shared=100) == ["a"]


def test_the_high_watermark_is_where_pausing_ends() -> None:
    active = [program("a", 100, 0), program("b", 100, 0), program("c", 820)]
    assert paused(*active, demand=1020) == ["a"]
    assert paused(*active, demand=1020, policy=Watermarks(watermark_high=0.9)) == ["a", "b"]


def test_only_active_roots_are_paused() -> None:
    others = [
        program("child", 50, 0, parent_id="r", root_id="r"),
        program("waits", 50, 0, status=Status.WAITING),
        program("r", 500),
    ]
    assert paused(*others, demand=1500) == ["r"]


def test_it_looks_every_five_seconds_and_not_before_the_pool_is_known() -> None:
    policy, known = Watermarks(), {"a": program("a", 2000)}
    full = Pressure(kv_total_blocks=1000, kv_demand_blocks=2000, kv_use_ratio=2.0)
    assert policy.plan(Checked(96 * S), known, [], MadeFacts(), full, 100 * S) == (Checked(96 * S), ())
    assert len(policy.plan(Checked(95 * S), known, [], MadeFacts(), full, 100 * S)[1]) == 1
    assert list(policy.plan(Checked(), known, [], MadeFacts(), Pressure(), 100 * S)[1]) == []


# eq. 10


def test_the_shortest_is_restored_first() -> None:
    def waiting(name: str, blocks: int, arrived: int) -> QueuedProgram:
        return QueuedProgram(program_id=name, blocks=blocks, arrived_at_ns=arrived, queued_at_ns=arrived)

    queue = [waiting("large", 90, 1), waiting("small late", 5, 9), waiting("small early", 5, 2)]
    order = Shortest().order(queue, MadeFacts(), Pressure(), 0)
    assert [w.program_id for w in order] == ["small early", "small late", "large"]
    assert [w.program_id for w in fitting(order, 12)] == ["small early", "small late"]
    assert [w.program_id for w in fitting(order, 10)] == ["small early", "small late"]
    assert fitting(order, 0) == []
    assert len(fitting(order)) == 3


def fitting(order: Sequence[QueuedProgram], *rooms: int) -> Sequence[QueuedProgram]:
    """Nobody is overdue, and no forecast is asked."""
    window = Window(limit=0, window=0.0, reason="", room_blocks=rooms)
    return fitting_in(order, len(order), window, lambda each: (), -1)


def window(
    policy: Capacity, state: Checked | None = None, now_s: float = 100, **pressure: object
) -> tuple[int, tuple[int, ...]]:
    values: dict[str, object] = {"kv_total_blocks": 1000, "programs_active": 4, "queue_length": 3} | pressure
    values["kv_use_ratio"] = values.get("kv_demand_blocks", 0) / 1000  # type: ignore[operator]
    _, found = policy.update(
        state or policy.initial(),
        MadeFacts(),
        Pressure(**values),  # type: ignore[arg-type]
        seconds(now_s),
    )
    return found.limit, found.room_blocks


def test_room_is_what_the_demand_leaves_below_the_high_watermark() -> None:
    assert window(Capacity(), kv_demand_blocks=700) == (7, (300,))
    assert window(Capacity(watermark_high=0.9, watermark_low=0.8), kv_demand_blocks=700) == (7, (200,))
    assert window(Capacity(watermark_high=0.9, watermark_low=0.8), kv_demand_blocks=850) == (4, ()), "hysteresis"
    assert window(Capacity(), kv_demand_blocks=1000) == (4, ())


def test_between_two_looks_there_is_room_beside_whole_contexts_only() -> None:
    """Of 1,000 blocks 400 are asked for; 250 more are of acting programs that may be back at once."""
    soon = (650, 900)
    assert window(Capacity(), Checked(96 * S), kv_demand_blocks=400, kv_forecast_blocks=soon) == (7, (350,))
    assert window(Capacity(), Checked(95 * S), kv_demand_blocks=400, kv_forecast_blocks=soon) == (7, (600,))
    assert window(Capacity(), Checked(96 * S), kv_demand_blocks=400, kv_forecast_blocks=(1000,)) == (4, ())
    assert window(Capacity(interval_s=0), Checked(100 * S), kv_demand_blocks=100) == (7, (900,))


def test_between_two_looks_the_room_of_several_engines_is_no_more_than_is_left_beside_all() -> None:
    engines = (engine("a", 700), engine("b", 200))
    found = window(
        Capacity(),
        Checked(96 * S),
        kv_demand_blocks=900,
        replicas=engines,
        kv_total_blocks=2000,
        kv_forecast_blocks=(1100,),
    )
    assert found == (7, (800, 100))


def test_newcomers_do_not_wait_for_the_next_look_on_an_idle_node() -> None:
    d = Driver(preset("thunderagent"))
    d.pool(total=1000)
    d.submit("a", blocks=100)
    d.tick()
    d.ask("b", tokens=100)
    assert d.admitted(after_s=0.1) == ["b"]
    d.ask("c", tokens=100)
    assert d.admitted(after_s=0.1) == ["c"]


def test_whoever_is_alone_gets_in_whatever_it_asks_for() -> None:
    assert window(Capacity(), Checked(100 * S), programs_active=0) == (1, ())


def test_before_the_pool_is_known_everybody_gets_in() -> None:
    assert window(Capacity(), kv_total_blocks=0) == (0, ())


# §4.3.2: one queue before several engines


def engine(name: str, demand: int, total: int = 1000) -> Replica:
    return Replica(name=name, total_blocks=total, demand_blocks=demand)


def test_each_of_several_engines_is_compared_with_its_own_pool() -> None:
    """Together 1,300 of 2,000 blocks are asked for; a's programs ask for 100 more than a has."""
    known = {
        p.program_id: p
        for p in (
            program("a acting", 150, 0, replica="a"),
            program("a reasoning", 950, replica="a"),
            program("b acting", 50, 0, replica="b"),
            program("b reasoning", 150, replica="b"),
        )
    }
    pressure = Pressure(
        kv_total_blocks=2000,
        kv_demand_blocks=1300,
        replicas=(engine("a", 1100), engine("b", 200), engine("c", 9, 0)),
    )
    _, commands = Watermarks().plan(Checked(), known, [], MadeFacts(), pressure, 100 * S)
    assert [getattr(command, "program_id", "") for command in commands] == ["a acting"]
    assert commands[0].reason == "demand 1.10 of the pool: acting, 150 blocks"


def test_room_is_each_engines_and_a_full_one_has_none() -> None:
    engines = (engine("a", 1100), engine("b", 200), engine("c", 950), engine("new", 0, 0))
    assert window(Capacity(), kv_demand_blocks=2250, replicas=engines) == (7, (800, 50))
    low = Capacity(watermark_high=0.9, watermark_low=0.8)
    assert window(low, kv_demand_blocks=2250, replicas=engines) == (7, (700,)), "c is between the watermarks"
    assert window(Capacity(), kv_demand_blocks=100, replicas=(engine("a", 1000),)) == (4, ())


def test_who_is_let_in_fits_one_engine_and_takes_from_the_one_with_the_most_room() -> None:
    """Of 300 and 400 blocks 250 leave 300 and 150, then 200 leave 100 and 150: 160 fit neither.

    Nobody is passed over.
    """

    def waiting(name: str, blocks: int) -> QueuedProgram:
        return QueuedProgram(program_id=name, blocks=blocks, arrived_at_ns=0, queued_at_ns=0)

    queue = [waiting("a", 250), waiting("b", 200), waiting("c", 160), waiting("d", 1)]
    assert [w.program_id for w in fitting(queue, 300, 400)] == ["a", "b"]
    assert [w.program_id for w in fitting(queue, 700)] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("make", "fields", "named"),
    [
        (Capacity, {"watermark_high": 0.0}, "watermark_high"),
        (Capacity, {"watermark_high": 0.5, "watermark_low": 0.6}, "watermark_low"),
        (Capacity, {"interval_s": -1.0}, "interval_s"),
        (Watermarks, {"half_life_s": -1.0}, "half_life_s"),
        (Watermarks, {"watermark_high": 1.5}, "watermark_high"),
    ],
)
def test_what_cannot_be_is_refused(make: type, fields: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError) as error:
        make(**fields)
    assert error.value.field == named


# Together


def test_thrashing_pauses_the_acting_program_and_its_next_turn_waits_until_there_is_room() -> None:
    d = Driver(preset("thunderagent"), ControlRules())
    d.pool(total=1000)
    for name in ("a", "b"):
        d.submit(name, blocks=300)
    d.finish("a", prompt=300)
    d.start_tool("a")
    assert of(cmd.Pause, d.tick()) == []
    d.submit("c", blocks=600)
    assert [c.program_id for c in of(cmd.Pause, d.tick(5))] == [], "five seconds in its tool it weighs nothing"
    d.submit("e", blocks=700)
    assert [c.program_id for c in of(cmd.Pause, d.tick(5))] == ["a", "b", "c"]
    d.end_tool("a")
    d.ask("a", "a.2", tokens=310)
    assert d.admitted(5) == [], "e alone leaves 300"
    d.finish("e", prompt=700)
    d.end("e")
    assert d.admitted(5) == ["a"]
