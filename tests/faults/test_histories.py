"""Histories that once broke something: each node has a few faults at times that were chosen."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.core.ledger.tools import tool_key
from controlplane.core.model import commands as cmd
from controlplane.wire.codec import decode_commands

from .faults import Fault
from .programs import Script
from .world import World, plan_of

YEAR_NS = 365 * 86_400 * 1_000_000_000
AGENTS = 0.3  # chooses the agents' connection among the four of one server


def fault(kind: str, at_s: float, for_s: float, chance: float = 0.0) -> Fault:
    return Fault(kind=kind, at_s=at_s, for_s=for_s, chance=chance)


def made(folder: Path, *faults: Fault, slots: int = 0, **changes: Any) -> World:
    """A node of one server; with ``slots`` its window has so many."""
    plan = replace(plan_of(1), servers=1, shared_place=False, is_embedded=True, programs=15, faults=faults)
    config = {"node": "node", "admission": {"policy": "fixed", "window": slots}} if slots else plan.config
    return World(replace(plan, config=config, **changes), folder)


def lived(world: World) -> World:
    """The same, after its whole life, in which no promise was broken."""
    try:
        world.run()
    finally:
        world.end()
    assert not world.auditor.violations
    return world


def hear(world: World, listen: Callable[[float, cmd.Command], None]) -> None:
    """Have each command of the daemon told, with the time of the run in seconds."""
    said = world.auditor.said

    def tell(data: bytes) -> None:
        said(data)
        for command in decode_commands(data):
            listen(world.scheduler.now_ns / 1e9, command)

    world.auditor.said = tell  # type: ignore[method-assign]


# A daemon that hears nothing: it gives nothing away, and gates are not made to wait for it.


@pytest.mark.parametrize("kind", ["NATS is restarted", "disk is full"])
def test_no_slot_is_given_away_unheard(tmp_path: Path, kind: str) -> None:
    world, admitted = made(tmp_path, fault(kind, 15.0, 20.0), slots=2), list[float]()
    hear(world, lambda at_s, command: admitted.append(at_s - 1.0) if isinstance(command, cmd.Admit) else None)
    lived(world)
    assert [at_s for at_s in admitted if at_s < 15], "before it, slots are given away"
    assert [at_s for at_s in admitted if 18 < at_s < 35] == []
    assert [at_s for at_s in admitted if at_s > 36], "and afterwards again"


def test_a_server_that_is_revived_in_vain_is_no_daemon_that_is_back(tmp_path: Path) -> None:
    """Gates are told that it is there once when it starts, and once when events arrive again."""
    world = lived(made(tmp_path, fault("disk is full", 15.0, 60.0), slots=2))
    assert world.counts["NATS is revived"] >= 2
    assert [server.gate.counters.daemon_returned for server in world.servers] == [2]


def asked_from(world: World) -> list[float]:
    """From when on the daemon asked all for what may be lost, in seconds of the run, each time that it did."""
    from_s: list[float] = []

    def listen(at_s: float, command: cmd.Command) -> None:
        if isinstance(command, cmd.StateRequest) and not command.publisher:
            from_s.append(at_s - command.lost_ns / 1e9)

    hear(world, listen)
    lived(world)
    return from_s


def test_what_was_lost_in_two_outages_is_asked_for_once_it_hears(tmp_path: Path) -> None:
    """Between them the stream delivers for too short a time to ask: what the first one lost is not forgotten."""
    outages = [fault("disk is full", at_s, 3.5) for at_s in (15.0, 34.0)]
    from_s = asked_from(made(tmp_path, *outages, slots=2))
    assert len(from_s) == 2, "when it started, and when it heard again"
    assert from_s[-1] < 20.0 - 60.0


def test_a_daemon_that_starts_deaf_asks_for_what_was_lost_before_its_life(tmp_path: Path) -> None:
    faults = fault("disk is full", 15.0, 20.0), fault("daemon is killed", 30.0, 0.1)
    assert asked_from(made(tmp_path, *faults, slots=2))[-1] < 20.0 - 60.0


@pytest.mark.parametrize("is_embedded", [True, False])
def test_a_server_that_fails_while_the_daemon_starts_does_not_end_it(tmp_path: Path, is_embedded: bool) -> None:
    """It waits: nobody may be there to start the daemon again."""
    faults = fault("daemon is killed", 15.0, 0.5), fault("NATS is frozen", 15.1, 8.0)
    world = lived(made(tmp_path, *faults, is_embedded=is_embedded))
    assert [one.refused for one in world.daemons] == [""]
    assert world.daemons[0].name == "daemon3", "the server's own boot, the first daemon's, and this one's"


def test_who_was_forgotten_is_not_revived_by_what_the_stream_still_has(tmp_path: Path) -> None:
    """The machine of their bus lost its power, and the daemon's did not.

    Their server is gone, too, so that nobody knows the numbers of what it said.
    """
    world = made(tmp_path, fault("server is killed", 30.0, 0.2), slots=3, is_embedded=False, programs=30)

    def lose_power() -> None:
        world.nats.stop()
        world.nats.lose_tail(world.wall_ns() - 5_000_000_000)
        world.auditor.lost_messages()
        world.nats.start()

    world.scheduler.after(80.0, lose_power)
    lived(world)


# Agents' hooks that are cut off from the bus while the daemon asks them for something.


def script(number: int, begins_s: float, *gaps_s: float, manner: str = "tells") -> Script:
    """A program with a reported tool between any two of its turns."""
    turns = tuple((0.5, gap_s, 300) for gap_s in (*gaps_s, 0.0))
    return Script(number=number, begins_s=begins_s, manner=manner, turns=turns, has_tools=True, patience_s=5.0)


def test_a_tool_that_outlasts_its_agents_absence_is_known_again(tmp_path: Path) -> None:
    """They are asked three times and forgotten, and have nothing to say when they are back: the tool just runs."""
    world = made(tmp_path, fault("connection is cut", 20.0, 150.0, AGENTS), slots=3, programs=1)
    world.agents.begin(script(100, 5.0, 250.0))
    seen: dict[float, set[str]] = {}

    def look(at_s: float) -> None:
        seen[at_s] = set(world.daemons[0].daemon.controller.ledger.tools.calls)

    for at_s in (15.0, 160.0, 200.0):
        world.scheduler.after(at_s, lambda s=at_s: look(s))  # type: ignore[misc]
    lived(world)
    call = tool_key("p100", "call1")
    assert call in seen[15.0]
    assert call not in seen[160.0], "whoever says nothing for a minute and does not answer is taken for gone"
    assert call in seen[200.0]


def test_a_goodbye_that_nobody_kept_is_said_again_by_who_was_away_when_all_were_asked(tmp_path: Path) -> None:
    """The daemon asks everybody once, when it hears again. Who is cut off then is not there to be asked."""
    faults = fault("disk is full", 15.0, 8.0), fault("connection is cut", 22.0, 40.0, AGENTS)
    world = made(tmp_path, *faults, slots=3, programs=1)
    world.agents.begin(script(100, 5.0, 12.0))
    world.agents.begin(script(101, 100.0, 1.0, manner="replies"))
    ended = lived(world).daemons[0].daemon.controller.ledger.programs.by_name
    assert "p100" not in ended or ended["p100"].ended_by_word


# A wall clock that is years off: of a machine without a battery, or before it was set.


@pytest.mark.parametrize("years", [-56, 200])
def test_a_node_starts_with_any_clock(tmp_path: Path, years: int) -> None:
    """Before 2025 the daemon's own samples were told at negative times, so that it believed none of them."""
    world = made(tmp_path)
    world.wall_step_ns = years * YEAR_NS
    assert lived(world).auditor.entries >= 15


@pytest.mark.parametrize("kind", ["daemon is killed", "snapshot is damaged"])
@pytest.mark.parametrize("years", [(-56, 56), (56, -112)], ids=["back, then set right", "both"])
def test_a_clock_may_jump_by_years_while_the_daemon_is_away(
    tmp_path: Path, years: tuple[int, int], kind: str
) -> None:
    world = made(tmp_path, fault(kind, 15.0, 0.5), fault(kind, 50.0, 0.5))

    def jump(by: int) -> None:
        world.wall_step_ns += by * YEAR_NS

    for at_s, by in zip((15.1, 50.1), years, strict=True):
        world.scheduler.after(at_s, lambda by=by: jump(by))  # type: ignore[misc]
    assert lived(world).auditor.entries >= 15
    cycle_ns = world.daemons[0].daemon.controller.ledger.estimates.lives.cycle_ns("")
    assert cycle_ns < 600 * 1e9, "no program rested for years"
