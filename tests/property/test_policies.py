"""What holds for every registered policy. A policy that is added to its folder's dict is tested here."""

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import FrozenInstanceError, fields, is_dataclass
from itertools import combinations, product
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_strategies import blocks, calls, facts, pressures, programs, queues, replicas, residents, shapes

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model import commands as cmd
from controlplane.core.model.errors import ConfigError
from controlplane.core.model.types import Pressure, Program, QueuedProgram, Replica, seconds
from controlplane.core.policies.memory.lru import Lru
from controlplane.core.policies.presets import POLICIES, PRESETS
from controlplane.core.policies.protocols import (
    Choice,
    EngineShape,
    NextTurn,
    Pinned,
    QueuedCall,
    Resident,
    Windowed,
)

RETENTION_COMMANDS = (cmd.Pause, cmd.Retain, cmd.Release, cmd.Demote, cmd.Prefetch, cmd.Discard, cmd.Label)
LABELS = {"busy", "idle", "inactive"}


def instances(kind: str) -> list[Any]:
    """Each registered policy as it comes and with its switches thrown, and each as some preset sets it."""
    found = [make(**switches) for make in POLICIES[kind].values() for switches in switched(make)]
    found += [chosen for preset in PRESETS.values() if (chosen := getattr(preset, kind)) not in found]
    return [pytest.param(policy, id=repr(policy)) for policy in found]


def switched(make: type) -> list[dict[str, bool]]:
    """Settings of a policy's switches, that of its defaults first: any three of them are in all of their states.

    All settings of all switches would be twice as many with each switch that is added.
    """
    kinds, defaults = get_type_hints(make), make()
    names = [item.name for item in fields(make) if kinds[item.name] is bool]
    settings = list(product(*((getattr(defaults, name), not getattr(defaults, name)) for name in names)))
    states = {setting: set(combinations(enumerate(setting), min(3, len(names)))) for setting in settings}
    chosen, missing = [settings[0]], set().union(*states.values()) - states[settings[0]]
    while missing:
        chosen.append(max(settings, key=lambda setting: len(missing & states[setting])))
        missing -= states[chosen[-1]]
    return [dict(zip(names, setting, strict=True)) for setting in chosen]


def each(kind: str) -> Any:
    return pytest.mark.parametrize("policy", instances(kind))


few = settings(max_examples=settings().max_examples // 2)  # of each of very many policies


def registered() -> list[Any]:
    return [
        pytest.param(make, id=f"{kind}-{name}")
        for kind, registry in POLICIES.items()
        for name, make in registry.items()
    ]


def twice(decide: Callable[..., Any], *given_values: Any) -> Any:
    """Decide twice: the answers are the same, the inputs are not touched."""
    before = deepcopy(given_values)
    result = decide(*given_values)
    assert given_values == before, "a policy must not change what it is given"
    assert decide(*before) == result, "the same inputs must give the same answer"
    return result


def both(decide: Callable[..., tuple[Any, Any]], *given_values: Any) -> tuple[Any, Any]:
    """``twice``, of a policy that remembers: its state can be written down."""
    state, result = twice(decide, *given_values)
    check_state(state, type(given_values[0]))
    return state, result


def check_state(state: Any, kind: type) -> None:
    assert type(state) is kind
    assert is_dataclass(state)
    assert type(state).__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert msgspec.json.decode(msgspec.json.encode(state), type=kind) == state


# How a policy is made


@pytest.mark.parametrize("make", registered())
def test_a_policy_is_frozen_and_made_without_arguments(make: type) -> None:
    policy = make()
    assert policy == make()
    assert hash(policy) == hash(make())
    with pytest.raises((FrozenInstanceError, TypeError, AttributeError)):
        policy.anything = 1
    if hasattr(policy, "initial"):
        check_state(policy.initial(), type(policy.initial()))
        assert policy.initial() == policy.initial()
        moves = hasattr(policy.initial(), "window")
        assert moves == isinstance(policy.initial(), Windowed), "else a restart forgets the window"


@pytest.mark.parametrize("make", registered())
def test_a_number_that_cannot_be_is_refused_with_its_name(make: type) -> None:
    kinds = get_type_hints(make)
    for item in fields(make):
        impossible = {float: (float("nan"), float("-inf"), -1e18, 1e18), int: (-(10**18), 10**18)}.get(
            kinds[item.name], ()
        )
        for value in impossible:
            with pytest.raises(ConfigError) as error:
                make(**{item.name: value})
            named = {other.name for other in fields(make)}
            assert error.value.field in named, f"{item.name} = {value}: {error.value}"


@pytest.mark.parametrize("make", registered())
@given(data=st.data())
def test_any_parameters_make_a_policy_or_name_a_field(make: type, data: st.DataObject) -> None:
    kinds = get_type_hints(make)
    numbers = {float: st.floats(), int: st.integers(-10, 10**7)}
    values = {
        item.name: data.draw(numbers[kinds[item.name]], item.name)
        for item in fields(make)
        if kinds[item.name] in numbers
    }
    try:
        policy = make(**values)
    except ConfigError as error:
        assert error.field in values
    else:
        if hasattr(policy, "initial"):
            check_state(policy.initial(), type(policy.initial()))


# What it decides


@each("admission")
@few
@given(
    steps=st.lists(st.tuples(pressures, st.sampled_from([0, 0.01, 1, 1, 3, 3600])), max_size=12), learned=facts()
)
def test_admission(policy: Any, steps: list[tuple[Pressure, float]], learned: Estimates) -> None:
    state, now_ns = policy.initial(), seconds(50)
    for pressure, after_s in steps:
        now_ns += seconds(after_s)
        state, window = both(policy.update, state, learned, pressure, now_ns)
        assert type(window.limit) is int
        assert window.limit >= 0
        assert math.isfinite(window.window)
        assert window.window >= 0
        assert window.reason


@each("packing")
@few
@given(queue=queues, learned=facts(), pressure=pressures)
def test_packing_is_a_permutation(
    policy: Any, queue: list[QueuedProgram], learned: Estimates, pressure: Pressure
) -> None:
    order = twice(policy.order, queue, learned, pressure, seconds(100))
    assert sorted(one.program_id for one in order) == sorted(one.program_id for one in queue)
    assert all(any(one is waiting or one == waiting for waiting in queue) for one in order)


@each("retention")
@few
@given(known=programs(), data=st.data(), learned=facts(), pressure=pressures)
def test_retention_speaks_of_known_programs(
    policy: Any, known: dict[str, Program], data: st.DataObject, learned: Estimates, pressure: Pressure
) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(known)), unique=True)) if known else []
    changed = [known[name] for name in names]
    now_ns = data.draw(st.integers(0, seconds(100_000)))
    state, commands = both(policy.plan, policy.initial(), known, changed, learned, pressure, now_ns)
    for command in commands:
        assert isinstance(command, RETENTION_COMMANDS)
        assert command.program_id in known
        assert command.reason
        if isinstance(command, cmd.Retain):
            assert type(command.ttl_ns) is int
            assert 0 < command.ttl_ns <= seconds(86_400)
        if isinstance(command, cmd.Label):
            assert command.label in LABELS
    _, more = both(policy.plan, state, known, changed, learned, pressure, now_ns + seconds(1))
    assert all(command.program_id in known for command in more)
    assert policy.decay is None or (policy.decay.base >= 1 and policy.decay.tick_ns > 0)


@each("priority")
@few
@given(queue=calls, engine=shapes, now_ns=st.integers(0, seconds(100)))
def test_priority_is_a_permutation(policy: Any, queue: list[QueuedCall], engine: EngineShape, now_ns: int) -> None:
    order = twice(policy.order, queue, engine, now_ns)
    assert sorted(call.turn_id for call in order) == sorted(call.turn_id for call in queue)
    assert all(call in queue for call in order)
    backwards = policy.order(queue[::-1], engine, now_ns)
    assert list(backwards) == list(order), "the order in which calls are handed over decides nothing"
    assert type(policy.window_ns) is int and policy.window_ns >= 0


@each("priority")
@few
@given(
    footprints=st.tuples(blocks, blocks).map(sorted),
    served=st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)).map(sorted),
    engine=shapes,
)
def test_a_level_never_rises_with_footprint_or_service(
    policy: Any, footprints: list[int], served: list[int], engine: EngineShape
) -> None:
    """Level 0 is the highest."""
    least = policy.level(footprints[0], served[0], engine)
    assert type(least) is int
    assert least >= 0
    assert least == policy.level(footprints[0], served[0], engine)
    assert least <= policy.level(footprints[1], served[0], engine) <= policy.level(footprints[1], served[1], engine)
    assert least <= policy.level(footprints[0], served[1], engine) <= policy.level(footprints[1], served[1], engine)


@each("placement")
@few
@given(
    known=programs(),
    choices=replicas,
    wanted=blocks,
    tokens=st.integers(0, 200_000),
    learned=facts(),
    data=st.data(),
)
def test_placement_names_an_engine_and_what_that_costs(
    policy: Any,
    known: dict[str, Program],
    choices: list[Replica],
    wanted: int,
    tokens: int,
    learned: Estimates,
    data: st.DataObject,
) -> None:
    state = policy.initial()
    for program in known.values():
        program.replica = data.draw(st.sampled_from(["", "gone", choices[0].name]))
        turn = NextTurn(program=program, blocks=wanted, reusable_tokens=tokens)
        state, placed = both(policy.place, state, turn, choices, learned, seconds(5))
        assert placed.replica in {replica.name for replica in choices}
        assert (placed.choice is Choice.NEW) == (not program.replica)
        assert (placed.choice is Choice.STAY) == (placed.replica == program.replica)
        assert placed.choice in placed.costs_ns
        assert min(placed.costs_ns.values()) == placed.cost_ns >= 0


@each("memory")
@few
@given(chunk=st.integers(1, 2000), data=st.data(), candidates=residents)
def test_memory_makes_enough_room_or_says_that_it_cannot(
    policy: Any, chunk: int, data: st.DataObject, candidates: list[Resident]
) -> None:
    shortfall = data.draw(st.integers(0, chunk), "shortfall")
    least = data.draw(st.integers(1, chunk) | st.just(chunk), "least")
    fit = twice(policy.fit, chunk, shortfall, least, candidates, seconds(5))
    owned = {resident.program_id: resident.blocks for resident in candidates}
    freed = 0
    for name, victim_blocks in fit.victims:
        assert 0 < victim_blocks <= owned[name]
        freed += victim_blocks
    assert len({name for name, _ in fit.victims}) == len(fit.victims), "nobody is a victim twice"
    if fit.chunk_blocks > 0:
        assert least <= fit.chunk_blocks <= chunk, "no chunk is smaller than is worth a step"
        assert freed >= shortfall - (chunk - fit.chunk_blocks), "victims and a smaller chunk make the room"
        assert policy.shrinks or fit.chunk_blocks == chunk
    else:
        assert fit.chunk_blocks == 0
        assert not fit.victims, "nothing is scheduled, so nothing need be evicted"
        needed = chunk if not policy.shrinks else least
        assert shortfall - (chunk - needed) > sum(owned.values()), "it gives up only where nothing would do"
    if shortfall == 0:
        assert (fit.chunk_blocks, list(fit.victims)) == (chunk, [])


@each("memory")
@few
@given(
    pins=st.lists(
        st.builds(
            Pinned,
            program_id=st.text(min_size=1, max_size=3),
            blocks=st.integers(1, 500),
            until_ns=st.integers(1, 1 << 60),
            program_arrived_at_ns=st.integers(0, 1 << 60),
        ),
        max_size=6,
        unique_by=lambda pin: pin.program_id,
    ),
    shortfall=st.integers(0, 2000),
    stuck=st.booleans(),
)
def test_pins_that_go_are_enough_where_only_that_helps(
    policy: Any, pins: list[Pinned], shortfall: int, stuck: bool
) -> None:
    assert type(policy.pins_outlast_waits) is bool
    assert 0 <= policy.pin_budget_ratio <= 1
    assert all(type(policy.host_rank(label, parked)) is int for label in ("", *LABELS) for parked in (True, False))
    gone = list(policy.unpin(pins, shortfall, stuck))
    assert len(set(gone)) == len(gone)
    blocks = {pin.program_id: pin.blocks for pin in pins}
    freed = sum(blocks[name] for name in gone)
    if stuck:
        assert freed >= min(shortfall, sum(blocks.values()))
    if gone:
        assert freed - blocks[gone[-1]] < shortfall, "none goes that need not"


@pytest.mark.parametrize("shortfall", [0, 3])
def test_lru_reads_candidates_lazily(shortfall: int) -> None:
    """The simulator hands over thousands for a few blocks. Who looks for the lowest level has to see them all."""

    def endless() -> Iterator[Resident]:
        for number in range(1000):
            yield Resident(program_id=f"p{number}", blocks=1, last_used_ns=number)
        raise AssertionError("every candidate was read")

    fit = Lru().fit(5, shortfall, 1, endless(), 0)
    assert (fit.chunk_blocks, len(fit.victims)) == (5, shortfall)


@each("memory")
def test_without_a_shortfall_no_candidate_is_read(policy: Any) -> None:
    def unread() -> Iterator[Resident]:
        raise AssertionError("a candidate was read")
        yield

    fit = policy.fit(5, 0, 1, unread(), 0)
    assert fit.chunk_blocks == 5
