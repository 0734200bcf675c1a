"""When what happened is written down: in order, and after what was decided has been sent."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support.core_driver import fixed, of, recounted, sums

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.steps import run
from controlplane.core.model.types import seconds
from controlplane.core.scheduling.controller import Controller
from controlplane.daemon.pipeline import DecisionPipeline
from controlplane.daemon.process.set_aside import SetAside, write_messages
from controlplane.transport.subjects import event_subject
from controlplane.wire.codec import encode_commands, encode_events


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


class ObserverDouble:
    """Hears, and keeps nothing."""

    def observe(self, fed: object, decided: object) -> None:
        return


class Recorded:
    """A pipeline with a recorder, and a gate that asks."""

    def __init__(self) -> None:
        controller = Controller(fixed(4))
        self.pipeline = DecisionPipeline(controller)
        self.recorder = RecorderDouble(controller)
        self.pipeline.recorders.append(self.recorder)
        self.pipeline.observer = ObserverDouble()
        self._sent = 0

    def ask(self, name: str) -> None:
        self._sent += 1
        queued = ev.TurnQueued(program_id=name, turn_id=f"{name}.1", prompt_tokens=1000)
        self.pipeline.feed(encode_events("node/gate/1", self._sent, [(0, queued)]), seconds(1))

    def decide(self) -> Sequence[Any]:
        return self.pipeline.decide(seconds(1))

    @property
    def told(self) -> list[str]:
        return [name for name, _ in self.recorder.told]


def test_nobody_waits_for_what_led_to_a_grant_to_be_written_down() -> None:
    recorded = Recorded()
    recorded.ask("a")
    recorded.ask("b")
    assert recorded.decide()
    assert recorded.told == []
    recorded.pipeline.record()
    assert recorded.told[:3] == ["TurnQueued", "TurnQueued", "tick"]
    assert recorded.told.count("Admit") == 2
    before = list(recorded.told)
    recorded.pipeline.record()
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
    recorded.pipeline.record()
    told = len(recorded.told)
    data = encode_events(
        "node/engine/1", 1, [(0, ev.PoolSampled(total_blocks=100, free_blocks=100, block_tokens=16))]
    )
    recorded.pipeline.feed(data, seconds(1))
    assert recorded.decide() == ()
    recorded.ask("a")
    recorded.decide()
    recorded.pipeline.record()
    assert recorded.told[told : told + 3] == ["PoolSampled", "TurnQueued", "tick"]


POISONED: dict[str, tuple[str, str]] = {  # by stage: what raises there, and what counts it
    "decoding": ("controlplane.daemon.pipeline.decoding_events", "messages"),
    "sifting": ("controlplane.daemon.pipeline.authorize", "messages"),
    "applying": ("controlplane.core.ledger.programs.Programs.queue_more", "messages"),
    "decoding commands": ("controlplane.daemon.pipeline.decode_commands", "messages"),
    "recalling": ("controlplane.core.scheduling.controller.apply_command", "messages"),
    "deciding": ("controlplane.core.scheduling.controller.in_turn", "ticks"),
    "enacting": ("controlplane.core.scheduling.controller.apply_command", "ticks"),
    "following": ("controlplane.core.scheduling.controller.Controller.following", "ticks"),
    "mending": ("controlplane.core.scheduling.controller.mend", "mending"),
    "writing down": ("test_pipeline.RecorderDouble.tick", "RecorderDouble"),
    "hearing beside": ("test_pipeline.ObserverDouble.observe", "ObserverDouble"),
}


@pytest.mark.parametrize("stage", POISONED)
@pytest.mark.parametrize("error", [KeyError("odd"), RecursionError("deep"), MemoryError()], ids=repr)
def test_an_error_at_any_stage_costs_its_message_and_nothing_else(
    stage: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded()
    recorded.ask("a")
    assert recorded.decide()
    granted = encode_commands([cmd.Admit(command_id=7, program_id="b", ttl_ns=seconds(9), reason="-")])
    pipeline, (raises, what) = recorded.pipeline, POISONED[stage]
    with monkeypatch.context() as poisoned:
        poisoned.setattr(raises, Mock(side_effect=error))
        if stage == "mending":
            poisoned.setattr("controlplane.core.ledger.programs.Programs.queue_more", Mock(side_effect=error))
        queued = ev.TurnQueued(program_id="poison", turn_id="poison.1")
        pipeline.feed(encode_events("node/gate/1", 2, [(0, queued)]), seconds(2), event_subject("node", "gate"))
        run(pipeline.recalling(granted, seconds(3)))
        pipeline.decide(seconds(4))
        run(pipeline.following(seconds(5)))
        pipeline.record()
    counts = {each.what: each.count for each in pipeline.failures.rows()}
    assert counts[what] >= 1
    assert pipeline.set_aside.count == counts.get("messages", 0)
    pipeline.feed(
        encode_events("node/gate/1", 3, [(0, replace(queued, program_id="c", turn_id="c.1"))]), seconds(9)
    )
    assert "c" in {each.program_id for each in of(cmd.Admit, [*pipeline.decide(seconds(10))])}
    assert pipeline.decides
    ledger = pipeline.controller.ledger
    assert sums(ledger) == sums(recounted(ledger))


def test_what_is_set_aside_is_bounded(tmp_path: Path) -> None:
    aside = SetAside()
    for number in range(1000):
        aside.add(b"x" * 100_000, "there", f"the {number}th")
        write_messages(tmp_path, aside.take())
    files = list((tmp_path / "set-aside").iterdir())
    assert (aside.count, aside.last) == (1000, "there: the 999th")
    assert 0 < sum(path.stat().st_size for path in files) <= 4 << 20
    again = SetAside()
    for _ in range(100):
        again.add(b"y", "", "-")
    write_messages(tmp_path, again.take())
    assert len(list((tmp_path / "set-aside").iterdir())) <= 64
