"""ThunderAgent's rules, worked by hand from the paper's formulas."""

import pytest
from made_facts import MadeFacts
from support.core_driver import Driver

from controlplane.core.estimators.workload import MovingAverage
from controlplane.core.model import commands as cmd
from controlplane.core.model.types import Pressure, Program, Replica, Status, seconds
from controlplane.core.policies.admission.capacity import Capacity
from controlplane.core.policies.presets import preset
from controlplane.core.policies.protocols import Checked
from controlplane.core.policies.retention.watermarks import Watermarks

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


# eq. 6 and 11


def test_the_high_watermark_is_where_pausing_ends() -> None:
    active = [program("a", 100, 0), program("b", 100, 0), program("c", 820)]
    assert paused(*active, demand=1020) == ["a"]
    assert paused(*active, demand=1020, policy=Watermarks(watermark_high=0.9)) == ["a", "b"]


def test_it_looks_every_five_seconds_and_not_before_the_pool_is_known() -> None:
    policy, known = Watermarks(), {"a": program("a", 2000)}
    full = Pressure(kv_total_blocks=1000, kv_demand_blocks=2000, kv_use_ratio=2.0)
    assert policy.plan(Checked(96 * S), known, [], MadeFacts(), full, 100 * S) == (Checked(96 * S), ())
    assert len(policy.plan(Checked(95 * S), known, [], MadeFacts(), full, 100 * S)[1]) == 1
    assert list(policy.plan(Checked(), known, [], MadeFacts(), Pressure(), 100 * S)[1]) == []


# eq. 7


@pytest.mark.parametrize(
    ("policy", "weights"),
    [
        (Watermarks(), (1, 1, 0.5, 0.25)),  # in ticks (Appendix E.1): 4.9 s are none
        (Watermarks(decay_by_second=True), (1, 2**-4.9, 2**-5, 2**-14.5)),
        (Watermarks(decay_base=4.0, interval_s=2.5), (1, 0.25, 0.0625, 4**-5)),
        (Watermarks(decay_base=1.0), (1, 1, 1, 1)),
    ],
)
def test_an_acting_program_weighs_less_by_the_tick(policy: Watermarks, weights: tuple[float, ...]) -> None:
    acting_s = (0, 4.9, 5, 14.5)
    assert [policy.decay.weight(program("a", 100, s), 100 * S) for s in acting_s] == pytest.approx(weights)
    assert policy.decay.weight(program("a", 100), 100 * S) == 1, "it reasons"


# eq. 10


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
