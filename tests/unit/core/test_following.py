"""A controller that follows another one: it hears the events and the other's commands, and decides nothing."""

from support.core_driver import Driver, fixed, of

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.scheduling.controller import Controller


class Pair(Driver):
    """One decides, the other follows."""

    def __init__(self, window: int = 1) -> None:
        super().__init__(fixed(window))
        self.follower = Controller(fixed(window))

    def send(self, *events: ev.Event) -> None:
        super().send(*events)
        for event in events:
            self.follower.receive(event, self.now_ns)

    def tick(self, after_s: float = 0.0) -> list[cmd.Command]:
        commands = super().tick(after_s)
        for command in commands:
            self.follower.replay_command(command, self.now_ns)
        self.follower.follow(self.now_ns)
        return commands

    def take_over(self) -> list[cmd.Command]:
        """The one that decided is gone."""
        self.controller = self.follower
        self.controller.take_over()
        return Driver.tick(self)


def test_who_takes_over_goes_on_admitting_in_the_same_order() -> None:
    d = Pair()
    d.pool()
    for name in "abc":
        d.ask(name)
        d.tick(0.1)
    d.submit("a")
    sent = d.controller.numbering.sent
    assert of(cmd.Admit, d.take_over()) == []
    d.finish("a")
    d.send(d.tools(ev.ProgramEnded, program_id="a"))
    told = Driver.tick(d)
    assert [command.program_id for command in of(cmd.Admit, told)] == ["b"]
    assert min(command.command_id for command in told) > sent


def test_a_follower_says_nothing_and_forgets_who_has_ended() -> None:
    d = Pair(window=0)
    for n in range(20):
        d.ask(f"p{n}")
        d.tick(0.1)
        d.submit(f"p{n}")
        d.finish(f"p{n}")
        d.send(d.tools(ev.ProgramEnded, program_id=f"p{n}"))
        d.tick(1)
    sent = d.follower.numbering.sent
    for _ in range(70):
        d.wait(1)
        d.follower.follow(d.now_ns)
    assert d.follower.numbering.sent == sent
    assert not d.follower.ledger.programs.by_name
    assert not d.follower.ledger.programs.changed
    assert not d.follower.ledger.runs.farewells
    assert of(cmd.Pause, d.take_over()) == []


def test_who_ended_by_silence_has_ended_for_a_follower_too() -> None:
    d = Pair(window=0)
    d.ask("a")
    d.tick(0.1)
    d.submit("a")
    d.finish("a", calls=0)
    for _ in range(10):
        d.wait(1)
        d.follower.follow(d.now_ns)
    assert "a" not in d.follower.ledger.programs.active


def test_a_follower_forgets_who_left_as_the_one_that_decides() -> None:
    d = Pair()
    d.pool()
    for name in "abc":
        d.ask(name)
        d.tick(0.1)
    d.send(d.gate(ev.TurnAbandoned, program_id="c", turn_id="c.1", reason="client left"))
    assert d.follower.holds.left.keys() == {"c.1"}
    for _ in range(3):
        d.tick(1)
    assert not d.follower.holds.left
