"""What an operator orders: programs held, a node that drains."""

from support.core_driver import Driver, Publisher, fixed, of

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import Status, seconds


class Operator:
    """Orders over the daemon's own publisher."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.publisher = driver, Publisher("node/control/1")

    def orders(self, *held: str, draining: bool = False) -> None:
        self.driver.send(self.publisher(ev.OperatorOrders, held=held, draining=draining))


def test_a_held_programs_pin_goes_with_its_slot() -> None:
    driver = Driver(fixed(1))
    driver.ask("a")
    driver.admitted()
    driver.run_turn("a")
    driver.program("a").retained_until_ns = driver.now_ns + seconds(60)
    Operator(driver).orders("a")
    assert [type(c) for c in driver.tick()][:2] == [cmd.Pause, cmd.Release]


def test_a_held_turn_of_a_program_with_a_slot_is_not_let_in_behind_the_operators_back() -> None:
    driver = Driver(fixed(2))
    driver.ask("a")
    driver.admitted()
    driver.run_turn("a")
    driver.ask("a", turn="a.2")
    Operator(driver).orders("a")
    assert of(cmd.Admit, driver.tick()) == []
    assert driver.program("a").status is Status.WAITING


def test_a_draining_node_lets_nobody_in_and_takes_no_slot() -> None:
    driver = Driver(fixed(2))
    driver.ask("a")
    assert driver.admitted() == ["a"]
    operator = Operator(driver)
    operator.orders(draining=True)
    driver.ask("b")
    driver.run_turn("a")
    driver.ask("a", turn="a.2")
    assert driver.admitted() == ["a"]  # its slot is held already
    driver.run_turn("a", "a.2")
    driver.end("a")
    assert driver.admitted(10) == []
    operator.orders()
    assert driver.admitted() == ["b"]
