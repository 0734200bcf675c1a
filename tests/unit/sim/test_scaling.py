"""Engines that follow a figure of the controller's: joined when it rises, drained when it has been low for long."""

from dataclasses import replace

import pytest
from engine_operations import TOY
from support.core_driver import Driver, fixed
from test_world import spec

from controlplane.core.controller import Controller
from controlplane.core.errors import ConfigError
from controlplane.core.types import seconds
from controlplane.lab.sim.changes import DIE, DRAIN, JOIN
from controlplane.lab.sim.scaling import SIGNALS, Autoscaler, Scaling
from controlplane.lab.simulate import simulate

SLOW = replace(TOY, decode_base_ps=5_000_000_000)  # a token in 5 ms, so that programs take their time


def waiting(programs: int) -> Controller:
    driver = Driver(fixed(1))
    driver.pool(total=1000)
    for index in range(programs + 1):
        driver.ask(f"p{index}")
    driver.tick()
    return driver.controller


def kinds(scaler: Autoscaler, controller: Controller, there: int, at_s: float) -> list[tuple[str, int, float]]:
    found = scaler.look(controller, range(1, there + 1), {}, seconds(at_s))
    return [(change.kind, change.engine, change.at_ns / 1e9) for change in found]


def test_engines_join_after_their_start_and_only_so_many_in_a_minute() -> None:
    scaler = Autoscaler(rules=Scaling(signal="queue", per_engine=2, step=2, most=9))
    busy = waiting(12)
    assert kinds(scaler, busy, 1, 0) == [(JOIN, 2, 120), (JOIN, 3, 120)]
    assert kinds(scaler, busy, 1, 15) == []
    assert kinds(scaler, busy, 1, 60) == [(JOIN, 4, 180), (JOIN, 5, 180)]
    assert kinds(scaler, busy, 3, 120) == [(JOIN, 6, 240)]  # six are wanted, and as many will be there


def test_engines_drain_when_few_were_wanted_for_long_and_cost_until_they_are_idle() -> None:
    scaler = Autoscaler(rules=Scaling(signal="queue", per_engine=2, settle_s=60))
    assert kinds(scaler, waiting(6), 3, 0) == []
    assert kinds(scaler, waiting(0), 3, 30) == []
    assert kinds(scaler, waiting(0), 3, 61) == [(DRAIN, 3, 61), (DRAIN, 2, 61)]
    gone = scaler.look(waiting(0), [1], {2: True, 3: False}, seconds(75))
    assert [(change.kind, change.engine) for change in gone] == [(DIE, 2)]
    assert scaler.engine_hours(seconds(100)) == pytest.approx((100 + 75 + 100) / 3600)


def test_a_figure_near_the_target_changes_nothing() -> None:
    scaler = Autoscaler(rules=Scaling(signal="queue", per_engine=10, settle_s=0))
    assert kinds(scaler, waiting(21), 2, 0) == []
    assert kinds(scaler, waiting(23), 2, 15) == [(JOIN, 3, 135)]


def test_rules_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError):
        Scaling(signal="queue", per_engine=0)
    with pytest.raises(ConfigError):
        Scaling(signal="queue", per_engine=1, least=9)


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_run_ends_every_program_and_uses_more_than_one_engine(signal: str) -> None:
    asked = spec("penstock", profile=SLOW, pool_tokens=25_000, replicas=3)
    rules = Scaling(signal=signal, per_engine=20_000 if signal == "held" else 1, most=3, start_s=2, every_s=1)
    first, second = Autoscaler(rules=rules), Autoscaler(rules=rules)
    result = simulate(asked, autoscaler=first)
    assert result.summary.programs_ended == 12
    assert max(engines for _, engines in first.counts) > 1
    assert len({turn.routed.replica for turn in result.turns if turn.routed}) > 1
    hours = first.engine_hours(seconds(result.summary.makespan_s))
    assert result.summary.makespan_s / 3600 < hours < 3 * result.summary.makespan_s / 3600
    assert simulate(asked, autoscaler=second).summary == result.summary
