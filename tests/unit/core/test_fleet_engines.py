"""A fleet's engines, on many nodes: they join, drain and go, and their programs are placed again."""

from dataclasses import replace

from support.core_driver import Driver, Publisher, fixed, of, recounted, sums

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.places import FLEET_GATE
from controlplane.core.model.types import Status, Tier
from controlplane.core.policies.placement.session import Session
from controlplane.core.scheduling.rules_and_state import ControlRules

A, B, C = "a/engine-30000", "b/engine-30000", "c/engine-30000"


class Fleet(Driver):
    """Engines of 1,000 blocks on three nodes behind one gate; ``listed``: those that the roster has."""

    def __init__(self, *listed: str, window: int = 0, rules: ControlRules | None = None) -> None:
        super().__init__(replace(fixed(window), placement=Session()), rules)
        self.gate = Publisher(f"fleet/{FLEET_GATE}/x")
        self.control = Publisher("fleet/control/x")
        self.engines = {place: Publisher(f"{place}/x") for place in (A, B, C)}
        self.list(*listed)
        for place in listed:
            self.on(place).pool()

    def list(self, *serving: str, draining: tuple[str, ...] = ()) -> None:
        self.send(self.control(ev.EnginesListed, serving=serving, draining=draining))

    def on(self, place: str) -> "Fleet":
        self.engine = self.engines[place]
        return self

    def placed(self) -> dict[str, str]:
        """What one tick tells of places."""
        return {command.program_id: command.replica for command in of(cmd.Place, self.tick())}

    def run(self, name: str, turn: str = "") -> str:
        """A turn is held, let in, and runs where its gate was told: the place."""
        self.ask(name, turn)
        self.placed()
        place = str(self.program(name).placed)
        self.on(place).submit(name, turn, blocks=10)
        return place


def test_an_engine_that_is_not_listed_is_no_engine() -> None:
    d = Fleet(A)
    d.on(B).pool()
    assert list(d.ledger.engines.pools) == [A]


def test_programs_of_an_engine_that_is_gone_are_placed_again_and_keep_their_slots() -> None:
    d = Fleet(A, B, window=2)
    home = d.run("x")
    other = d.run("y")
    d.ask("z")
    d.placed()
    d.list(other)
    assert d.program("x").status is Status.ACTIVE
    assert d.placed() == {"x": other}
    assert home not in d.ledger.engines.pools
    assert not d.program("x").open_turns
    assert d.program("z").status is Status.WAITING  # a newcomer does not get the slot of who was cut off
    d.ask("x", "x.2")
    assert d.admitted() == ["x"]
    assert sums(d.ledger) == sums(recounted(d.ledger))


def test_a_context_on_an_engine_that_is_gone_is_nowhere() -> None:
    d = Fleet(A, B)
    home = d.run("x")
    d.finish("x", prompt=50)
    d.tick()
    assert d.program("x").kv_tier is Tier.HBM
    d.list(*({A, B} - {home}))
    assert d.program("x").kv_tier is Tier.NONE


def test_room_on_a_draining_engine_is_not_counted() -> None:
    d = Fleet(A, B)
    d.list(A, draining=(B,))
    d.tick(after_s=1)
    assert d.controller.pressure.kv_total_blocks == 1000


def test_when_all_drain_nobody_is_placed() -> None:
    d = Fleet(A)
    d.list(draining=(A,))
    d.ask("x")
    assert d.placed() == {}
