"""What holds for every registered policy. A policy that is added to its folder's dict is tested here."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_strategies import calls, facts, pressures, programs, queues, replicas, residents

from controlplane.core import commands as cmd
from controlplane.core.errors import ConfigError
from controlplane.core.estimate import Estimates
from controlplane.core.policies import QueuedCall, Replica, Resident
from controlplane.core.presets import POLICIES, PRESETS
from controlplane.core.types import Pressure, Program, QueuedProgram, seconds

RETENTION_COMMANDS = (cmd.Retain, cmd.Release, cmd.Demote, cmd.Prefetch, cmd.Discard, cmd.Label)
LABELS = {"busy", "idle", "inactive"}


def instances(kind: str) -> list[Any]:
    """Each registered policy as it comes, and each as some preset sets it."""
    found = [make() for make in POLICIES[kind].values()]
    found += [chosen for preset in PRESETS.values() if (chosen := getattr(preset, kind)) not in found]
    return [pytest.param(policy, id=repr(policy)) for policy in found]


def each(kind: str) -> Any:
    return pytest.mark.parametrize("policy", instances(kind))


def registered() -> list[Any]:
    return [
        pytest.param(make, id=f"{kind}-{name}")
        for kind, registry in POLICIES.items()
        for name, make in registry.items()
    ]


def both(decide: Callable[..., tuple[Any, Any]], *given_values: Any) -> tuple[Any, Any]:
    """Decide twice: the answers are the same, the inputs are not touched, the state can be written down."""
    before = deepcopy(given_values)
    state, result = decide(*given_values)
    assert given_values == before, "a policy must not change what it is given"
    again_state, again = decide(*before)
    assert (again_state, again) == (state, result), "the same inputs must give the same answer"
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
    check_state(policy.initial(), type(policy.initial()))
    assert policy.initial() == policy.initial()


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
        check_state(policy.initial(), type(policy.initial()))


# What it decides


@each("admission")
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
@given(queue=queues, learned=facts(), pressure=pressures)
def test_packing_is_a_permutation(
    policy: Any, queue: list[QueuedProgram], learned: Estimates, pressure: Pressure
) -> None:
    _, order = both(policy.order, policy.initial(), queue, learned, pressure, seconds(100))
    assert sorted(one.program_id for one in order) == sorted(one.program_id for one in queue)
    assert all(any(one is waiting or one == waiting for waiting in queue) for one in order)


@each("retention")
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


@each("priority")
@given(queue=calls, now_ns=st.integers(0, seconds(100)))
def test_priority_is_a_permutation(policy: Any, queue: list[QueuedCall], now_ns: int) -> None:
    _, order = both(policy.order, policy.initial(), queue, now_ns)
    assert sorted(call.turn_id for call in order) == sorted(call.turn_id for call in queue)


@each("placement")
@given(known=programs(), choices=replicas, data=st.data())
def test_placement_names_a_replica(
    policy: Any, known: dict[str, Program], choices: list[Replica], data: st.DataObject
) -> None:
    for program in known.values():
        program.replica = data.draw(st.sampled_from(["", "gone", choices[0].name]))
        _, name = both(policy.place, policy.initial(), program, choices, seconds(5))
        assert name in {replica.name for replica in choices}


@each("memory")
@given(chunk=st.integers(1, 2000), data=st.data(), candidates=residents)
def test_memory_makes_enough_room_or_says_that_it_cannot(
    policy: Any, chunk: int, data: st.DataObject, candidates: list[Resident]
) -> None:
    shortfall = data.draw(st.integers(0, chunk))
    _, fit = both(policy.fit, policy.initial(), chunk, shortfall, candidates, seconds(5))
    owned = {resident.program_id: resident.blocks for resident in candidates}
    freed = 0
    for name, blocks in fit.victims:
        assert 0 < blocks <= owned[name]
        freed += blocks
    assert len({name for name, _ in fit.victims}) == len(fit.victims)
    assert 0 <= fit.chunk_blocks <= chunk
    if fit.chunk_blocks > 0:
        assert freed >= shortfall - (chunk - fit.chunk_blocks)
    else:
        assert not fit.victims, "nothing is scheduled, so nothing need be evicted"
    if not candidates and shortfall == 0:
        assert fit.chunk_blocks == chunk


@each("memory")
def test_memory_reads_candidates_lazily(policy: Any) -> None:
    """With nothing short, an endless list of candidates is no trouble."""

    def endless() -> Any:
        number = 0
        while number < 1000:
            number += 1
            yield Resident(program_id=f"p{number}", blocks=1, last_used_ns=number)
        raise AssertionError("every candidate was read")

    _, fit = policy.fit(policy.initial(), 5, 3, endless(), 0)
    assert fit.chunk_blocks > 0
