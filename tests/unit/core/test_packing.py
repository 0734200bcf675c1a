"""PackQueue's three regimes."""

import pytest
from made_facts import MadeFacts

from controlplane.core.errors import ConfigError
from controlplane.core.packing.fcfs import Fcfs
from controlplane.core.packing.pressure_aware import PressureAware, first_fit
from controlplane.core.types import Pressure, QueuedProgram


def queue(**blocks: int) -> list[QueuedProgram]:
    """Programs in order of arrival."""
    return [
        QueuedProgram(program_id=name, blocks=count, arrived_at_ns=index, queued_at_ns=100 - index)
        for index, (name, count) in enumerate(blocks.items())
    ]


BY_SIZE = PressureAware(aged=False)


def names(policy: Fcfs | PressureAware, waiting: list[QueuedProgram], pressure: Pressure, now_ns: int = 0) -> str:
    order = policy.order(waiting, MadeFacts(), pressure, now_ns)
    return "".join(one.program_id for one in order)


def test_fcfs_goes_by_first_arrival_and_not_by_when_it_queued() -> None:
    assert names(Fcfs(), queue(a=5, b=1, c=3)[::-1], Pressure()) == "abc"


@pytest.mark.parametrize("policy", [Fcfs(), PressureAware()])
def test_programs_that_are_alike_keep_the_order_in_which_they_began_to_wait(policy: Fcfs | PressureAware) -> None:
    tied = [QueuedProgram(program_id=name, blocks=1, arrived_at_ns=7, queued_at_ns=7) for name in "cab"]
    for pressure in (Pressure(), Pressure(cpu_overloaded=True), Pressure(kv_total_blocks=8)):
        assert names(policy, tied, pressure) == "cab"


def test_short_sessions_first_while_all_is_well() -> None:
    pressure = Pressure(kv_total_blocks=1000)
    assert names(BY_SIZE, queue(a=5, b=1, c=3, d=1), pressure) == "bdca"
    assert names(PressureAware(), queue(a=5, b=1, c=3, d=1), pressure, now_ns=1000) == "bdca"


def test_who_waited_twice_as_long_overtakes_who_is_half_as_long() -> None:
    pressure = Pressure(kv_total_blocks=1000)
    waiting = [
        QueuedProgram(program_id="a", blocks=20, arrived_at_ns=0, queued_at_ns=0),
        QueuedProgram(program_id="b", blocks=10, arrived_at_ns=100, queued_at_ns=100),
    ]
    assert names(PressureAware(), waiting, pressure, now_ns=190) == "ab"
    assert names(PressureAware(), waiting, pressure, now_ns=210) == "ba"
    assert names(BY_SIZE, waiting, pressure, now_ns=190) == "ba"


def test_long_sessions_first_while_the_host_is_overloaded() -> None:
    pressure = Pressure(kv_total_blocks=8, cpu_overloaded=True)
    assert names(PressureAware(), queue(a=5, b=1, c=3, d=5), pressure) == "adcb"


def test_first_fit_while_only_long_sessions_wait() -> None:
    pressure = Pressure(kv_total_blocks=800, kv_demand_blocks=300)
    assert names(PressureAware(), queue(a=400, b=300, c=100, d=100), pressure) == "acbd"


def test_one_short_session_ends_the_long_regime() -> None:
    pressure = Pressure(kv_total_blocks=800, kv_demand_blocks=300)
    assert names(BY_SIZE, queue(a=400, b=300, c=99), pressure) == "cba"


def test_no_pool_sample_means_no_long_regime() -> None:
    assert names(BY_SIZE, queue(a=400, b=300), Pressure()) == "ba"


def test_more_demand_than_pool_fits_nobody() -> None:
    pressure = Pressure(kv_total_blocks=800, kv_demand_blocks=1300)
    assert names(PressureAware(), queue(a=400, b=300), pressure) == "ab"


def test_an_empty_queue_stays_empty() -> None:
    assert names(PressureAware(), [], Pressure(kv_total_blocks=800)) == ""


def test_first_fit_lets_the_small_pass_the_head_that_does_not_fit() -> None:
    order = first_fit(queue(a=90, b=30, c=20, d=60), 50)
    assert "".join(one.program_id for one in order) == "bcad"


@pytest.mark.parametrize("share", [0.0, 1.01, -1.0])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(ConfigError) as error:
        PressureAware(long_share=share)
    assert error.value.field == "long_share"


def test_who_comes_back_goes_first_unless_told_otherwise() -> None:
    pressure = Pressure(kv_total_blocks=1000)
    waiting = [
        QueuedProgram(program_id="n", blocks=5, arrived_at_ns=0, queued_at_ns=0),
        QueuedProgram(program_id="r", blocks=50, arrived_at_ns=9, queued_at_ns=9, turn_index=3),
    ]
    assert names(PressureAware(), waiting, pressure, now_ns=20) == "rn"
    assert names(PressureAware(returners_first=False), waiting, pressure, now_ns=20) == "nr"
