"""The engine's two policies as text: what the daemon writes, an engine reads."""

import json
from dataclasses import replace
from typing import Any

import pytest

from controlplane.core.engine_policies import STOCK, EnginePolicies, loads
from controlplane.core.errors import RemoteEventError
from controlplane.core.memory import MEMORY
from controlplane.core.memory.lru import Lru
from controlplane.core.memory.opportunistic import Opportunistic
from controlplane.core.presets import PRESETS
from controlplane.core.priority import PRIORITY
from controlplane.core.priority.fcfs import Fcfs
from controlplane.core.priority.mlfq import Mlfq

EVERY = [
    pytest.param(EnginePolicies(priority=PRIORITY[priority](), memory=MEMORY[memory]()), id=f"{priority}-{memory}")
    for priority in PRIORITY
    for memory in MEMORY
]
MARS = EnginePolicies(priority=Mlfq(), memory=Opportunistic())


@pytest.mark.parametrize("policies", EVERY)
def test_what_is_written_is_read_again(policies: EnginePolicies) -> None:
    assert loads(policies.dumps()) == policies


def test_parameters_are_carried() -> None:
    chosen = EnginePolicies(
        priority=Mlfq(shares=(0.1, 0.9), quota_chunks=0.5, window_s=3, promote_s=1, promotions=2),
        memory=Opportunistic(shrink=False, aligned=False),
    )
    assert loads(chosen.dumps()) == chosen
    assert hash(loads(chosen.dumps()).priority) == hash(chosen.priority)  # lists of the text are tuples again


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_can_be_written(name: str) -> None:
    policies = EnginePolicies(priority=PRESETS[name].priority, memory=PRESETS[name].memory)
    assert loads(policies.dumps()) == policies
    assert (policies == STOCK) == (name in ("fcfs", "thunderagent", "concur")), (
        "whose work is done before the engine"
    )


def test_no_text_means_the_engines_own() -> None:
    assert loads("") == STOCK == EnginePolicies(priority=Fcfs(), memory=Lru())


def test_policies_are_known_by_their_registered_names() -> None:
    data = json.loads(MARS.dumps())
    assert (data["priority"]["policy"], data["memory"]["policy"]) == ("mlfq", "opportunistic")


def test_what_another_version_adds_is_passed_over_and_what_it_lacks_has_its_default() -> None:
    data = json.loads(MARS.dumps())
    data["priority"]["of tomorrow"] = 1
    del data["priority"]["promote_s"]
    assert loads(json.dumps(data)) == replace(MARS, priority=Mlfq())


def changed(kind: str, **values: Any) -> str:
    data = json.loads(MARS.dumps())
    data[kind] |= values
    return json.dumps(data)


def test_a_whole_number_may_stand_for_any() -> None:
    priority = loads(changed("priority", window_s=30, shares=[0.25, 1])).priority
    assert priority == Mlfq(window_s=30.0, shares=(0.25, 1.0))


@pytest.mark.parametrize(
    "text",
    [
        "mars",
        "{",
        "[]",
        "{}",
        "null",
        "7",
        '""',
        '{"priority":{"policy":"mlfq"}}',
        '{"priority":null,"memory":null}',
        '{"priority":{},"memory":{}}',
        '{"priority":"mlfq","memory":"lru"}',
        '{"priority":{"policy":["mlfq"]},"memory":{"policy":"lru"}}',
        "[" * 100_000,
        changed("priority", policy="of tomorrow"),
        changed("memory", policy="mlfq"),
        changed("priority", window_s=-1),
        changed("priority", window_s="long"),
        changed("priority", window_s=None),
        changed("priority", shares=[0.5, 0.1]),
        changed("priority", shares=[[0.5]]),
        changed("priority", shares=0.5),
        changed("priority", shares={"a": 1}),
        changed("priority", quota_chunks=float("nan")),
        changed("priority", promotions=10**400),
        changed("priority", promotions=2.5),
        changed("priority", promotions=True),
        changed("memory", shrink="no"),
        changed("memory", shrink=0),
    ],
    ids=lambda text: text[:60],
)
def test_text_that_makes_no_sense_is_the_peers_fault(text: str) -> None:
    with pytest.raises(RemoteEventError, match="engine policies that make no sense") as error:
        loads(text)
    assert len(str(error.value)) < 1000
