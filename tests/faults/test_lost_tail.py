"""A stream that lacks its latest messages: the machine of its server lost its power, and the daemon's did not."""

from dataclasses import replace
from pathlib import Path

from .faults import Fault
from .world import World, plan_of


def test_who_was_forgotten_is_not_revived_by_what_the_stream_still_has(tmp_path: Path) -> None:
    """Their server is gone, too, so that nobody knows the numbers of what it said."""
    killed = Fault(kind="server is killed", at_s=30.0, for_s=0.2, chance=0.0)
    config = {"node": "node", "admission": {"policy": "fixed", "window": 3}}
    world = World(
        replace(plan_of(1), config=config, servers=1, is_embedded=False, programs=30, faults=(killed,)), tmp_path
    )

    def lose_power() -> None:
        world.nats.stop()
        world.nats.lose_tail(world.wall_ns() - 5_000_000_000)
        world.auditor.lost_messages()
        world.nats.start()

    world.scheduler.after(80.0, lose_power)
    try:
        world.run()
    finally:
        world.end()
    assert not world.auditor.violations
