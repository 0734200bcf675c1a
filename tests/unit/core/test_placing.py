"""On which of the engines behind its gate a program's next turn runs, and what its gate and engines are told."""

from dataclasses import replace
from typing import Any

import pytest
from support.core_driver import Driver, Publisher, fixed, of, recounted, sums

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.events import stands_before
from controlplane.core.placement.round_robin import RoundRobin
from controlplane.core.placement.session import Session
from controlplane.core.types import Tier

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


@pytest.mark.parametrize(
    ("gate", "engine", "stands"),
    [
        ("node/gate-30000", "node/engine-30000", True),
        ("node/gate-30000", "node/engine-30000-dp1", True),
        ("node/gate-30000-2", "node/engine-30000-dp1", True),
        ("node/gate-30000", "node/engine-30001-dp0", False),
        ("node/gate-30000", "node/engine", False),
        ("node/gate", "node/engine-30001-dp0", True),
        ("node/gate", "other/engine", False),
        ("fleet/gate-fleet", "node/engine-30000-dp1", True),
        ("fleet/gate-fleet", "other/engine", True),
        ("nod", "node/engine", False),
    ],
)
def test_a_gate_stands_before_the_engines_of_its_server(gate: str, engine: str, stands: bool) -> None:
    assert stands_before(gate, engine) is stands


def test_the_gate_is_told_where_a_turn_goes_before_it_lets_it_go() -> None:
    d = Ranks()
    d.ask("a")
    told = [c for c in d.tick() if isinstance(c, cmd.Place | cmd.Admit)]
    assert [type(command) for command in told] == [cmd.Place, cmd.Admit]
    assert told[0] == cmd.Place(
        program_id="a", replica=ZERO, command_id=told[0].command_id, reason="new: expected to cost 0 ms"
    )


def test_programs_that_come_together_are_spread_by_what_they_need() -> None:
    d = Ranks()
    for name, tokens in (("a", 300), ("b", 100), ("c", 100)):
        d.ask(name, tokens=tokens)
    assert dict(d.placed()) == {"a": ZERO, "b": ONE, "c": ONE}
    assert [each.demand_blocks for each in d.controller.pressure.replicas] == [0, 0]
    d.tick()
    assert [each.demand_blocks for each in d.controller.pressure.replicas] == [300, 200]
    assert sums(d.ledger) == sums(recounted(d.ledger))


def test_those_that_are_let_in_together_are_placed_largest_first() -> None:
    """In the order in which they came the small ones would lie apart, and the large one on top of one of them."""
    d = Ranks()
    for name, tokens in (("small", 100), ("smaller", 90), ("large", 800)):
        d.ask(name, tokens=tokens)
    assert d.placed() == [("large", ZERO), ("small", ONE), ("smaller", ONE)]


def test_a_program_stays_with_its_context_and_nothing_more_is_said() -> None:
    d = Ranks()
    d.begin("a")
    for turn in range(1, 4):
        d.finish("a", f"a.{turn}", prompt=10 * turn)
        assert d.placed() == []
        d.submit("a", f"a.{turn + 1}")
    assert d.program("a").replica == ZERO


def test_who_ran_where_nobody_placed_it_goes_on_there() -> None:
    """A child on its root's slot is placed by its gate: the daemon learns where, and says so to all gates."""
    d = Ranks()
    d.begin("root")
    d.send(d.gate(ev.ProgramArrived, program_id="child", parent_id="root"))
    d.on(ONE).submit("child")
    d.finish("child", prompt=50)
    assert d.placed() == [("child", ONE)]


def test_a_turn_that_ran_elsewhere_than_was_said_is_the_last_word() -> None:
    d = Ranks()
    d.begin("a")
    d.finish("a")
    d.tick()
    d.on(ONE).submit("a", "a.2")
    d.finish("a", "a.2", prompt=20)
    assert d.placed() == [("a", ONE)]
    assert d.program("a").placed == d.program("a").replica == ONE


def test_who_leaves_a_crowded_rank_leaves_its_context_and_is_charged_where_it_goes() -> None:
    d = Ranks(placement=Session(passing_wait=1.0))
    d.on(ZERO).submit("a", blocks=100)
    for name in ("long", "longer"):
        d.submit(name, blocks=800)
    d.on(ONE).submit("other", blocks=10)
    d.tick()
    d.on(ZERO).finish("a", prompt=100)
    (told,) = of(cmd.Place, d.tick())
    assert (told.program_id, told.replica, told.moves) == ("a", ONE, False)
    assert told.reason.startswith("re-prefill")
    program = d.program("a")
    assert (program.replica, program.kv_tier, program.retained_until_ns) == (ONE, Tier.NONE, 0)
    assert sums(d.ledger) == sums(recounted(d.ledger))


def test_what_is_sent_after_it_stays_its_own() -> None:
    d = Ranks(placement=Session(link_tokens_per_s=1e9))
    d.on(ZERO).submit("a", blocks=100)
    for name in ("long", "longer"):
        d.submit(name, blocks=800)
    d.ledger.estimates.prefill.add(1000, 0, 10**9)
    d.ledger.estimates.prefill.add(2000, 0, 2 * 10**9)
    d.tick()
    d.finish("a", prompt=100)
    (told,) = of(cmd.Place, d.tick())
    assert (told.replica, told.moves) == (ONE, True)
    assert (d.program("a").replica, d.program("a").kv_tier) == (ONE, Tier.HBM)


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


def test_engines_of_other_servers_are_no_choice() -> None:
    d = Driver()
    d.gate = Publisher("node/gate-30000/x")
    for port in (30000, 30001):
        d.engine = Publisher(f"node/engine-{port}/x")
        d.pool()
    d.ask("a")
    assert [type(command) for command in d.tick() if isinstance(command, cmd.ProgramCommand)] == [cmd.Admit]


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


def test_a_rank_that_is_gone_is_no_choice() -> None:
    d = Ranks()
    d.begin("a")
    d.finish("a")
    d.tick()
    d.ledger.engines.lose(ZERO)
    d.ledger.engines.pools["node/engine-30001"] = d.ledger.engines.pools[ONE]
    d.ledger.engines._recount()
    d.ask("a", "a.2")
    assert d.placed() == []
