"""A daemon whose server fails while it starts waits for it: nobody may be there to start the daemon again."""

from dataclasses import replace
from pathlib import Path

import pytest

from .faults import Fault
from .world import World, plan_of


@pytest.mark.parametrize("is_embedded", [True, False])
def test_a_server_that_fails_while_the_daemon_starts_does_not_end_it(tmp_path: Path, is_embedded: bool) -> None:
    faults = (
        Fault(kind="daemon is killed", at_s=15.0, for_s=0.5, chance=0.0),
        Fault(kind="NATS is frozen", at_s=15.1, for_s=8.0, chance=0.0),
    )
    plan = replace(plan_of(1), servers=1, shared_place=False, is_embedded=is_embedded, programs=15, faults=faults)
    world = World(plan, tmp_path)
    try:
        world.run()
    finally:
        world.end()
    assert not world.auditor.violations
    assert [one.refused for one in world.daemons] == [""]
    assert world.daemons[0].name == "daemon3", "the server's own boot, the first daemon's, and this one's"
