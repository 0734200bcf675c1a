"""PackQueue's three regimes."""

import pytest
from made_facts import MadeFacts

from controlplane.core.model.types import Pressure, QueuedProgram
from controlplane.core.policies.packing.fcfs import Fcfs
from controlplane.core.policies.packing.pressure_aware import PressureAware


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


@pytest.mark.parametrize("policy", [Fcfs(), PressureAware()])
def test_programs_that_are_alike_keep_the_order_in_which_they_began_to_wait(policy: Fcfs | PressureAware) -> None:
    tied = [QueuedProgram(program_id=name, blocks=1, arrived_at_ns=7, queued_at_ns=7) for name in "cab"]
    for pressure in (Pressure(), Pressure(cpu_overloaded=True), Pressure(kv_total_blocks=8)):
        assert names(policy, tied, pressure) == "cab"


def test_short_sessions_first_while_all_is_well() -> None:
    pressure = Pressure(kv_total_blocks=1000)
    assert names(BY_SIZE, queue(a=5, b=1, c=3, d=1), pressure) == "bdca"
    assert names(PressureAware(), queue(a=5, b=1, c=3, d=1), pressure, now_ns=1000) == "bdca"


def test_long_sessions_first_while_the_host_is_overloaded() -> None:
    pressure = Pressure(kv_total_blocks=8, cpu_overloaded=True)
    assert names(PressureAware(), queue(a=5, b=1, c=3, d=5), pressure) == "adcb"


def test_one_short_session_ends_the_long_regime() -> None:
    pressure = Pressure(kv_total_blocks=800, kv_demand_blocks=300)
    assert names(BY_SIZE, queue(a=400, b=300, c=99), pressure) == "cba"


def test_an_empty_queue_stays_empty() -> None:
    assert names(PressureAware(), [], Pressure(kv_total_blocks=800)) == ""
