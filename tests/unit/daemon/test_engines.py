"""Engines as an operator sees them."""

from dataclasses import dataclass, replace

import pytest
from support.core_driver import Driver, Publisher, fixed

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.places import FLEET_GATE
from controlplane.core.model.types import seconds
from controlplane.daemon.status.engines import (
    EngineRow,
    MoveLog,
    count_engines,
    each_engine,
    engine_listing,
    gateless_engines,
)

ZERO, ONE = "node/engine-0", "node/engine-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a roster says of an engine."""

    place: str
    address: str = "10.0.0.1:30000"
    has_plugin: bool = True
    standing: str = "serving"


class Several:
    """A controller that two engines report to, the second with half the pool."""

    def __init__(self) -> None:
        self.driver = Driver(fixed(4))
        self.engines = [Publisher(f"{place}/boot") for place in (ZERO, ONE)]
        for engine, total in zip(self.engines, (1000, 500), strict=True):
            self.sample(engine, total)

    def sample(self, engine: Publisher, total: int, reason: str = "") -> None:
        pool = engine(ev.PoolSampled, total_blocks=total, free_blocks=total // 2, block_tokens=1, reason=reason)
        self.driver.send(pool)

    def run_turn(self, name: str, turn: str, on: int, prompt: int = 100) -> None:
        engine = self.engines[on]
        ids = {"program_id": name, "turn_id": turn}
        self.driver.send(engine(ev.TurnSubmitted, projected_blocks=prompt, **ids))
        self.driver.send(engine(ev.TurnEnded, prompt_tokens=prompt, **ids))

    def rows(self, *roster: Named) -> dict[str, EngineRow]:
        return {row.place: row for row in each_engine(self.driver.ledger, roster, self.driver.now_ns)}


@pytest.fixture
def several() -> Several:
    return Several()


def test_what_each_has_and_who_is_there(several: Several) -> None:
    driver = several.driver
    several.run_turn("a", "a.0", on=1)
    assert count_engines(driver.ledger, (), driver.now_ns).moves == 0
    several.run_turn("a", "a.1", on=0)
    assert count_engines(driver.ledger, (), driver.now_ns).moves == driver.program("a").moves == 1
    several.run_turn("b", "b.1", on=1, prompt=600)
    driver.send(several.engines[0](ev.TurnSubmitted, program_id="c", turn_id="c.1", projected_blocks=10))
    driver.wait(2)
    rows = several.rows(Named(place=ONE))
    assert list(rows) == [ZERO, ONE]
    zero, one = rows[ZERO], rows[ONE]
    assert (zero.kv_total_blocks, zero.kv_free_blocks, zero.turns, zero.programs) == (1000, 500, 1, 2)
    assert (one.kv_demand_blocks, one.kv_use_ratio, one.turns, one.programs) == (600, 1.2, 0, 1)
    assert (one.address, one.standing, zero.address, zero.standing) == ("10.0.0.1:30000", "serving", "", "")
    assert zero.heard_ns == seconds(2)
    assert not zero.needs_attention


def test_those_that_are_gone_drained_or_never_heard_are_counted(several: Several) -> None:
    roster = [
        Named(place=ZERO),
        Named(place=ONE, standing="draining"),
        Named(place="other/engine", standing="gone"),
        Named(place="third/engine"),
    ]
    counts = count_engines(several.driver.ledger, roster, several.driver.now_ns)
    assert (counts.known, counts.serving, counts.draining, counts.gone, counts.silent) == (4, 2, 1, 1, 1)
    rows = several.rows(*roster)
    assert [place for place, row in rows.items() if row.silent] == ["third/engine"]
    assert rows["third/engine"].heard_ns == 0


def test_who_has_no_gate_is_named_once_turns_come_unasked(several: Several) -> None:
    ledger, driver = several.driver.ledger, several.driver
    assert gateless_engines(ledger) == ()
    several.run_turn("a", "a.0", on=1)
    assert gateless_engines(ledger) == (ZERO, ONE)
    driver.send(Publisher("node/gate-1/boot")(ev.PublisherState, role="gate"))
    assert gateless_engines(ledger) == (ZERO,)
    driver.send(Publisher(f"fleet/{FLEET_GATE}/boot")(ev.PublisherState, role="gate"))
    assert gateless_engines(ledger) == ()


def test_an_engine_that_tells_of_turns_that_it_holds_is_its_own_gate(several: Several) -> None:
    ledger, driver = several.driver.ledger, several.driver
    driver.send(several.engines[0](ev.TurnQueued, program_id="b", turn_id="b.0"))
    several.run_turn("a", "a.0", on=0)  # a pause crossed it on its way
    assert gateless_engines(ledger) == (ONE,)


def test_one_that_does_not_answer_is_silent_and_one_that_is_idle_is_not(several: Several) -> None:
    driver = several.driver
    driver.wait(30)
    assert not several.rows()[ZERO].silent
    for _ in range(4):
        driver.tick(20)
    assert several.rows()[ZERO].silent
    several.sample(several.engines[0], 1000)
    assert not several.rows()[ZERO].silent


def test_the_only_engine_is_asked_whether_it_is_there_also_while_it_has_nothing_to_do() -> None:
    driver = Driver(fixed(1))
    driver.pool(total=1000, free=900)
    driver.run_turn("a", prompt=100)
    driver.submit("b")
    (row,) = each_engine(driver.ledger, (), driver.now_ns)
    assert (row.place, row.kv_demand_blocks, row.turns, row.programs) == ("node/engine", 110, 1, 2), (
        "all is its own"
    )
    driver = Driver(fixed(1))
    driver.pool()
    seen = []
    for _ in range(7):
        driver.tick(20)
        seen.append(count_engines(driver.ledger, (), driver.now_ns).silent)
    assert seen == [0, 0, 0, 1, 1, 1, 1], "it is asked after a minute, and missed when it has not answered"
    driver.pool()
    assert count_engines(driver.ledger, (), driver.now_ns).silent == 0


def test_of_many_those_in_trouble_and_the_fullest_are_listed(several: Several) -> None:
    rows = [EngineRow(place=f"n/engine-{n}", kv_use_ratio=n / 10) for n in range(5)]
    rows[0] = replace(rows[0], passive="its ranks disagree")
    listed = engine_listing(rows, MoveLog(), most=2)
    assert ([row.place for row in listed.engines], listed.total) == (["n/engine-0", "n/engine-4"], 5)


def test_moves_are_remembered_with_their_reasons_the_newest_first() -> None:
    moves = MoveLog()
    moves.record([cmd.Place(program_id="new", replica=ZERO, reason="new: expected to cost 0 ms")], 1)
    moves.record([cmd.Place(program_id="a", replica=ONE, leaves=ZERO, reason="re_prefill: 9 ms")], 2)
    moves.record([cmd.Place(program_id="b", replica=ZERO, leaves=ONE, reason="migrate: 1 ms", moves=True)], 3)
    assert [(each.program_id, each.from_place, each.to_place) for each in moves.latest] == [
        ("b", ONE, ZERO),
        ("a", ZERO, ONE),
    ]
    assert (moves.latest[1].reason, moves.latest[1].at_ns) == ("re_prefill: 9 ms", 2)
