"""A daemon that hears nothing: it gives nothing away, and gates are not made to wait for it."""

from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.core import commands as cmd
from controlplane.wire.codec import decode_commands

from .faults import Fault
from .world import Plan, World, plan_of

FULL = {"node": "node", "admission": {"policy": "fixed", "window": 2}}


def plan(kind: str, for_s: float) -> Plan:
    """One fault at a node with two slots, for which many programs wait."""
    fault = Fault(kind=kind, at_s=15.0, for_s=for_s, chance=0.0)
    return replace(
        plan_of(1), config=FULL, servers=1, shared_place=False, is_embedded=True, programs=15, faults=(fault,)
    )


@pytest.mark.parametrize("kind", ["NATS is restarted", "disk is full"])
def test_no_slot_is_given_away_unheard(tmp_path: Path, kind: str) -> None:
    world = World(plan(kind, 20.0), tmp_path)
    admitted: list[float] = []
    said = world.auditor.said

    def listen(data: bytes) -> None:
        said(data)
        is_grant = any(isinstance(command, cmd.Admit) for command in decode_commands(data))
        admitted.extend([world.scheduler.now_ns / 1e9 - 1.0] if is_grant else [])

    world.auditor.said = listen  # type: ignore[method-assign]
    try:
        world.run()
    finally:
        world.end()
    assert not world.auditor.violations
    assert [at_s for at_s in admitted if at_s < 15], "before it, slots are given away"
    assert [at_s for at_s in admitted if 18 < at_s < 35] == []
    assert [at_s for at_s in admitted if at_s > 36], "and afterwards again"


def test_a_server_that_is_revived_in_vain_is_no_daemon_that_is_back(tmp_path: Path) -> None:
    """Gates are told that it is there once when it starts, and once when events arrive again."""
    world = World(plan("disk is full", 60.0), tmp_path)
    try:
        world.run()
    finally:
        world.end()
    assert not world.auditor.violations
    assert world.counts["NATS is revived"] >= 2
    assert [server.gate.counters.daemon_returned for server in world.servers] == [2]


def asked(plan: Plan, folder: Path) -> list[float]:
    """From when on the daemon asked all for what may be lost, in seconds of the run, each time that it did."""
    world = World(plan, folder)
    from_s: list[float] = []
    said = world.auditor.said

    def listen(data: bytes) -> None:
        said(data)
        requests = [command for command in decode_commands(data) if isinstance(command, cmd.StateRequest)]
        of_all = [request for request in requests if not request.publisher]
        from_s.extend((world.scheduler.now_ns - request.lost_ns) / 1e9 for request in of_all)

    world.auditor.said = listen  # type: ignore[method-assign]
    try:
        world.run()
    finally:
        world.end()
    assert not world.auditor.violations
    return from_s


def test_what_was_lost_in_two_outages_is_asked_for_once_it_hears(tmp_path: Path) -> None:
    """Between them the stream delivers for too short a time to ask: what the first one lost is not forgotten."""
    faults = [Fault(kind="disk is full", at_s=at_s, for_s=3.5, chance=0.0) for at_s in (15.0, 34.0)]
    asked_from = asked(replace(plan("disk is full", 3.5), faults=tuple(faults)), tmp_path)
    assert len(asked_from) == 2, "when it started, and when it heard again"
    assert asked_from[-1] < 20.0 - 60.0


def test_a_daemon_that_starts_deaf_asks_for_what_was_lost_before_its_life(tmp_path: Path) -> None:
    faults = (
        Fault(kind="disk is full", at_s=15.0, for_s=20.0, chance=0.0),
        Fault(kind="daemon is killed", at_s=30.0, for_s=0.1, chance=0.0),
    )
    asked_from = asked(replace(plan("disk is full", 20.0), faults=faults), tmp_path)
    assert asked_from[-1] < 20.0 - 60.0
