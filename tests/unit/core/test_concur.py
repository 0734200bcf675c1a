"""CONCUR: the window's three regimes, and who is paused when it shrinks."""

from dataclasses import replace

import pytest
from made_facts import MadeFacts

from controlplane.core.model.commands import Pause
from controlplane.core.model.types import Pressure, Program, Status
from controlplane.core.policies.admission.concur import Concur
from controlplane.core.policies.admission.window import SteppedWindow
from controlplane.core.policies.retention.beyond_window import BeyondWindow

LAW = Concur(alpha=2, beta=0.5, use_low=0.5, use_high=0.8, hit_low=0.5)


def stepped(use: float, hit_ratio: float, window: float = 8.0) -> float:
    """The window one interval later, with so much of the pool held by running turns."""
    state = SteppedWindow(window=window, interval_ends_ns=1)
    pressure = Pressure(interval_ends_ns=2, kv_total_blocks=100, kv_free_blocks=100 - round(use * 100))
    state, decided = LAW.update(state, MadeFacts(hit_ratio=hit_ratio), pressure, 1)
    assert decided.limit == int(decided.window)
    return state.window


def test_the_window_grows_while_little_is_used() -> None:
    assert stepped(0.3, hit_ratio=0.1) == 10


@pytest.mark.parametrize(("use", "hit_ratio"), [(0.6, 0.1), (0.9, 0.9)])
def test_it_stays_near_saturation_and_while_a_full_cache_is_hit(use: float, hit_ratio: float) -> None:
    assert stepped(use, hit_ratio) == 8


def test_it_is_cut_while_a_full_cache_is_missed() -> None:
    assert stepped(0.9, hit_ratio=0.2) == 4
    assert stepped(0.9, hit_ratio=0.2, window=1.5) == 1


def test_it_is_stepped_once_an_interval() -> None:
    state, pressure = LAW.initial(), Pressure(interval_ends_ns=5, kv_total_blocks=100, kv_free_blocks=100)
    for _ in range(3):
        state, decided = LAW.update(state, MadeFacts(), pressure, 1)
        assert decided.window == 8
    state, decided = LAW.update(state, MadeFacts(), replace(pressure, interval_ends_ns=6), 5)
    assert decided.window == 10


def test_it_stays_while_nothing_is_known_of_the_pool() -> None:
    state = SteppedWindow(window=8.0, interval_ends_ns=1)
    state, decided = LAW.update(state, MadeFacts(), Pressure(interval_ends_ns=2), 1)
    assert (state.window, decided.reason) == (8.0, "the pool's size is not known yet")


def acting(name: str, arrived_at_ns: int, *, open_turns: int = 0) -> Program:
    program = Program(program_id=name, arrived_at_ns=arrived_at_ns, status=Status.ACTIVE)
    program.open_turns = open_turns
    program.gap_since_ns = 0 if open_turns else 5
    return program


def paused(limit: int) -> list[str]:
    programs = {each.program_id: each for each in (acting("a", 1), acting("b", 2), acting("c", 3, open_turns=1))}
    policy, pressure = BeyondWindow(), Pressure(programs_active=3, window_limit=limit)
    _, commands = policy.plan(policy.initial(), programs, (), MadeFacts(), pressure, 9)
    assert all(isinstance(command, Pause) for command in commands)
    return [command.program_id for command in commands if isinstance(command, Pause)]


def test_who_acts_beyond_the_window_is_paused_the_last_that_came_first() -> None:
    assert paused(limit=2) == ["b"]
    assert paused(limit=1) == ["b", "a"], "c has a turn, which runs to its end"
    assert not paused(limit=3)
    assert not paused(limit=0)
