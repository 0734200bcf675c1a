"""On which of the engines behind its gate a program's next turn runs, and what its gate and engines are told."""

from dataclasses import replace
from typing import Any

import pytest
from support.core_driver import Driver, Publisher, fixed, of

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import Tier
from controlplane.core.policies.placement.round_robin import RoundRobin

ZERO, ONE = "node/engine-30000-dp0", "node/engine-30000-dp1"


class Ranks(Driver):
    """A server with two ranks of 1,000 blocks behind its one gate."""

    def __init__(self, window: int = 0, **policies: Any) -> None:
        super().__init__(replace(fixed(window), **policies))
        self.gate = Publisher("node/gate-30000/x")
        self.ranks = {place: Publisher(f"{place}/x") for place in (ZERO, ONE)}
        for place in self.ranks:
            self.on(place).pool()
        self.ledger.estimates.service.add(10**9)  # a turn takes a second: waiting for room costs something

    def on(self, place: str) -> "Ranks":
        """Turns run there from now on."""
        self.engine = self.ranks[place]
        return self

    def placed(self) -> list[tuple[str, str]]:
        """What one tick tells of places, in order."""
        return [(command.program_id, command.replica) for command in of(cmd.Place, self.tick())]

    def begin(self, name: str, turn: str = "", tokens: int = 10) -> str:
        """A held turn is let in and runs where its gate was told: the place."""
        self.ask(name, turn, tokens)
        self.placed()
        place = self.program(name).placed
        self.on(place).submit(name, turn, blocks=tokens)
        return place


def test_who_was_paused_is_placed_anew_when_it_comes_back() -> None:
    d = Ranks(window=2)
    d.begin("a", tokens=100)
    d.finish("a", prompt=100)
    d.tick()
    d.controller._issue(cmd.Pause(program_id="a"), d.now_ns)
    d.on(ZERO).submit("big", blocks=990)
    d.ask("a", "a.2", tokens=120)
    assert d.placed() == [("a", ONE)]


def test_turns_that_run_are_not_called_back() -> None:
    d = Ranks(placement=RoundRobin())
    d.begin("a")
    d.ask("a", "a.2")
    assert d.placed() == []


def test_the_baselines_place_each_turn() -> None:
    d = Ranks(placement=RoundRobin())
    assert d.begin("a") == ZERO
    d.finish("a")
    assert d.placed() == [("a", ONE)]
    assert d.controller.state.placement.last == ONE


def test_who_goes_to_another_server_is_placed_among_that_ones_ranks() -> None:
    """Its client has chosen; the gate that held its first turn has nothing to say there."""
    d = Ranks()
    d.begin("a")
    d.finish("a")
    d.tick()
    others = [f"node/engine-30001-dp{rank}" for rank in (0, 1)]
    d.ranks |= {place: Publisher(f"{place}/x") for place in others}
    for place in others:
        d.on(place).pool()
    d.on(others[1]).submit("a", "a.2")
    d.finish("a", "a.2", prompt=20)
    assert d.placed() == [("a", others[1])]
    d.ask("a", "a.3", tokens=30)
    d.controller._issue(cmd.Pause(program_id="a"), d.now_ns)
    assert d.placed()[0][1] in (ZERO, ONE), "it is back at the first one's gate"


@pytest.mark.parametrize(("again", "left"), [("gate-30000", []), ("engine-30000-dp0", ["b"])])
def test_a_restart_forgets_the_contexts_of_what_was_started_again(again: str, left: list[str]) -> None:
    """A gate is a part of its server, and so are all ranks; a rank's own word is of its own."""
    d = Ranks()
    for name, place in (("a", ZERO), ("b", ONE)):
        d.on(place).run_turn(name, prompt=100)
    d.send(d.gate(ev.TurnQueued, program_id="c", turn_id="c.1", prompt_tokens=1))
    d.wait(6)
    d.send(Publisher(f"node/{again}/of-a-new-boot")(ev.PublisherState, role=again.partition("-")[0]))
    assert [name for name in ("a", "b") if d.program(name).kv_tier is Tier.HBM] == left
