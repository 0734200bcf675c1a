"""The engine's two policies as text: what the daemon writes, an engine reads."""

import json
from typing import Any

import pytest

from controlplane.core.model.errors import RemoteEventError
from controlplane.core.policies.engine_policies import STOCK, EnginePolicies, loads
from controlplane.core.policies.memory import MEMORY
from controlplane.core.policies.memory.lru import Lru
from controlplane.core.policies.memory.opportunistic import Opportunistic
from controlplane.core.policies.priority import PRIORITY
from controlplane.core.policies.priority.fcfs import Fcfs
from controlplane.core.policies.priority.mlfq import Mlfq

EVERY = [
    pytest.param(EnginePolicies(priority=PRIORITY[priority](), memory=MEMORY[memory]()), id=f"{priority}-{memory}")
    for priority in PRIORITY
    for memory in MEMORY
]
MARS = EnginePolicies(priority=Mlfq(), memory=Opportunistic())


@pytest.mark.parametrize("policies", EVERY)
def test_what_is_written_is_read_again(policies: EnginePolicies) -> None:
    assert loads(policies.dumps()) == policies


def test_no_text_means_the_engines_own() -> None:
    assert loads("") == STOCK == EnginePolicies(priority=Fcfs(), memory=Lru())


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
