"""Agents' hooks that are cut off from the bus while the daemon asks them for something."""

from dataclasses import replace
from pathlib import Path

from controlplane.core.ledger.tools import tool_key

from .faults import Fault
from .programs import Script
from .world import Plan, World, plan_of

CONFIG = {"node": "node", "admission": {"policy": "fixed", "window": 3}}
AGENTS = 0.3  # chooses the agents' connection among the four of one server


def plan(*faults: Fault) -> Plan:
    return replace(
        plan_of(1), config=CONFIG, servers=1, shared_place=False, is_embedded=True, programs=1, faults=faults
    )


def script(number: int, begins_s: float, *gaps_s: float, manner: str = "tells") -> Script:
    """A program with a reported tool between any two of its turns."""
    turns = tuple((0.5, gap_s, 300) for gap_s in (*gaps_s, 0.0))
    return Script(number=number, begins_s=begins_s, manner=manner, turns=turns, has_tools=True, patience_s=5.0)


def known(world: World) -> set[str]:
    """The tool calls that the daemon believes in."""
    return set(world.daemons[0].daemon.controller.ledger.tools.calls)


def test_a_tool_that_outlasts_its_agents_absence_is_known_again(tmp_path: Path) -> None:
    """They are asked three times and forgotten, and have nothing to say when they are back: the tool just runs."""
    cut = Fault(kind="connection is cut", at_s=20.0, for_s=150.0, chance=AGENTS)
    world = World(plan(cut), tmp_path)
    world.agents.begin(script(100, 5.0, 250.0))
    seen: dict[float, set[str]] = {}
    for at_s in (15.0, 160.0, 200.0):
        world.scheduler.after(at_s, lambda s=at_s: seen.__setitem__(s, known(world)))  # type: ignore[misc]
    try:
        world.run()
    finally:
        world.end()
    assert not world.auditor.violations
    call = tool_key("p100", "call1")
    assert call in seen[15.0]
    assert call not in seen[160.0], "whoever says nothing for a minute and does not answer is taken for gone"
    assert call in seen[200.0]


def test_a_goodbye_that_nobody_kept_is_said_again_by_who_was_away_when_all_were_asked(tmp_path: Path) -> None:
    """The daemon asks everybody once, when it hears again. Who is cut off then is not there to be asked."""
    faults = (
        Fault(kind="disk is full", at_s=15.0, for_s=8.0, chance=0.0),
        Fault(kind="connection is cut", at_s=22.0, for_s=40.0, chance=AGENTS),
    )
    world = World(plan(*faults), tmp_path)
    world.agents.begin(script(100, 5.0, 12.0))
    world.agents.begin(script(101, 100.0, 1.0, manner="replies"))
    try:
        world.run()
    finally:
        world.end()
    assert not world.auditor.violations
    ended = world.daemons[0].daemon.controller.ledger.programs.by_name
    assert "p100" not in ended or ended["p100"].ended_by_word
