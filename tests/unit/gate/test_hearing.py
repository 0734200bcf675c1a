"""A gate knows which of the daemon's commands it missed, and which it must not obey any more."""

from gate_virtual_time import Beat

from controlplane.core.model.commands import Admit, Pause, StateRequest
from controlplane.core.model.events import Event, PublisherState
from controlplane.core.model.types import seconds
from controlplane.gate import Gate
from controlplane.gate.command_sequencer import CommandSequencer
from controlplane.gate.link import GateLink


class Scene:
    """A gate, its link to a daemon, and what it told."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.told: list[Event] = []
        self.gate = Gate(send=self._tell, now_ns=lambda: self.now_ns)
        self.link = GateLink(self.gate, send=self._tell, publisher=lambda: "n/gate/b")

    def _tell(self, event: Event, urgent: bool) -> None:
        self.told.append(event)

    def hear(self, *items: object) -> None:
        for item in items:
            self.link.receive(item, self.now_ns)  # type: ignore[arg-type]

    @property
    def states(self) -> list[list[str]]:
        """The programs with a slot, in each state that was told."""
        states = [event for event in self.told if isinstance(event, PublisherState)]
        return [[grant.program_id for grant in state.grants] for state in states]


def test_a_command_that_a_later_one_shows_to_be_missing_is_told_with_the_next_heartbeat() -> None:
    scene = Scene()
    scene.hear(Beat(command_id=10), Admit(command_id=11, program_id="p"), Admit(command_id=13, program_id="q"))
    assert scene.states == []
    scene.hear(Beat(command_id=13))
    assert scene.states == [["p", "q"]]
    scene.hear(Beat(command_id=13))
    assert len(scene.states) == 1


def test_a_last_command_that_nobody_heard_is_told_with_the_heartbeat_after_the_one_that_names_it() -> None:
    """It may still be on its way when the first one comes: they are two subscriptions."""
    scene = Scene()
    scene.hear(Beat(command_id=10), Admit(command_id=11, program_id="p"), Beat(command_id=12))
    assert scene.states == []
    scene.hear(Beat(command_id=12))
    assert scene.states == [["p"]]
    scene.hear(Pause(command_id=13, program_id="p"), Beat(command_id=13), Beat(command_id=13))
    assert len(scene.states) == 1


def test_a_heartbeat_may_overtake_its_commands() -> None:
    scene = Scene()
    scene.hear(Beat(command_id=10), Beat(command_id=11), Admit(command_id=11, program_id="p"), Beat(command_id=11))
    assert scene.states == []


def test_what_a_later_word_overtook_is_not_obeyed() -> None:
    scene = Scene()
    scene.hear(Beat(command_id=10), Pause(command_id=12, program_id="p"), Admit(command_id=11, program_id="p"))
    assert scene.gate.state().grants == ()


def test_a_daemon_that_starts_asks_by_itself() -> None:
    scene = Scene()
    scene.hear(Beat(command_id=10), Admit(command_id=11, program_id="p"))
    scene.hear(Beat(boot_id="boot-2", command_id=500), Beat(boot_id="boot-2", command_id=500))
    assert scene.states == []
    scene.hear(StateRequest(command_id=500), Admit(command_id=501, program_id="q"))
    assert scene.states == [["p"]]
    assert [grant.command_id for grant in scene.gate.state().grants] == [11, 501]


def test_a_daemon_that_was_replaced_is_not_obeyed() -> None:
    scene = Scene()
    scene.hear(Beat(command_id=10, limit=9), Beat(boot_id="boot-2", command_id=500, limit=2))
    scene.hear(Beat(command_id=11, limit=9), Admit(command_id=11, program_id="p"))
    health = scene.gate.health()
    assert (health["limit"], health["granted_programs"]) == (2, 0)
    assert scene.gate.counters.outdated == 1


def test_whoever_is_there_is_believed_once_the_lease_has_ended() -> None:
    """A machine that was set up anew may count from lower numbers."""
    scene = Scene()
    scene.hear(Beat(command_id=10_000))
    scene.now_ns += seconds(6)
    scene.hear(Beat(boot_id="boot-2", command_id=3), Admit(command_id=4, program_id="p"))
    assert [grant.program_id for grant in scene.gate.state().grants] == ["p"]


def test_commands_that_nobody_counts_are_obeyed() -> None:
    hearing = CommandSequencer()
    assert hearing.is_next(0)
    assert hearing.is_next(0)
