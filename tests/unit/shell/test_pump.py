"""When what happened is written down: in order, and after what was decided has been sent."""

from collections.abc import Sequence
from typing import Any

from support.core_driver import fixed

from controlplane.core import events as ev
from controlplane.core.controller import Controller
from controlplane.core.types import seconds
from controlplane.shell.pump import Pump
from controlplane.wire.codec import encode_events


class RecorderDouble:
    """Notes what it is told, with how many programs the controller knew of then."""

    def __init__(self, controller: Controller) -> None:
        self.told: list[tuple[str, int]] = []
        self._known = controller.ledger.programs.by_name

    def _note(self, what: object) -> None:
        self.told.append((type(what).__name__, len(self._known)))

    def event(self, event: object, now_ns: int) -> None:
        self._note(event)

    command = event

    def tick(self, now_ns: int) -> None:
        self.told.append(("tick", len(self._known)))

    def config(self, text: str, now_ns: int) -> None:
        raise AssertionError("nothing was reconfigured")


class Recorded:
    """A pump with a recorder, and a gate that asks."""

    def __init__(self) -> None:
        controller = Controller(fixed(4))
        self.pump = Pump(controller)
        self.recorder = RecorderDouble(controller)
        self.pump.recorders.append(self.recorder)
        self._sent = 0

    def ask(self, name: str) -> None:
        self._sent += 1
        queued = ev.TurnQueued(program_id=name, turn_id=f"{name}.1", prompt_tokens=1000)
        self.pump.feed(encode_events("node/gate/1", self._sent, [(0, queued)]), seconds(1))

    def decide(self) -> Sequence[Any]:
        return self.pump.decide(seconds(1))

    @property
    def told(self) -> list[str]:
        return [name for name, _ in self.recorder.told]


def test_nobody_waits_for_what_led_to_a_grant_to_be_written_down() -> None:
    recorded = Recorded()
    recorded.ask("a")
    recorded.ask("b")
    assert recorded.decide()
    assert recorded.told == []
    recorded.pump.tell()
    assert recorded.told[:3] == ["TurnQueued", "TurnQueued", "tick"]
    assert recorded.told.count("Admit") == 2
    before = list(recorded.told)
    recorded.pump.tell()
    assert recorded.told == before, "it is told once"


def test_a_decision_is_written_down_before_the_next_event_changes_what_it_was_made_from() -> None:
    recorded = Recorded()
    recorded.ask("a")
    recorded.decide()
    recorded.ask("b")
    assert recorded.told[:2] == ["TurnQueued", "tick"]
    assert {known for _, known in recorded.recorder.told} == {1}


def test_what_came_without_a_decision_is_told_with_the_next_one() -> None:
    recorded = Recorded()
    recorded.decide()
    recorded.pump.tell()
    told = len(recorded.told)
    data = encode_events(
        "node/engine/1", 1, [(0, ev.PoolSampled(total_blocks=100, free_blocks=100, block_tokens=16))]
    )
    recorded.pump.feed(data, seconds(1))
    assert recorded.decide() == ()
    recorded.ask("a")
    recorded.decide()
    recorded.pump.tell()
    assert recorded.told[told : told + 3] == ["PoolSampled", "TurnQueued", "tick"]
