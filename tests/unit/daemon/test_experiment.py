"""A daemon's experiment: whatever happens to the daemon, it is off or goes on, and a loss is told."""

import msgspec
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.config import Source
from controlplane.core.experiment import SwitchbackState
from controlplane.core.model import events as ev
from controlplane.core.model.types import seconds
from controlplane.core.scheduling.rules_and_state import ControllerState
from controlplane.daemon.experiment import Experiment
from controlplane.daemon.process.reload import Reloader

OPTIONS = {"preset": "penstock", "experiment.slice_s": 400.0, "experiment.washout_s": 100.0}
STEP_S, NOON_S, END_S = 20.0, 10_000.0, 20_000.0


class Node:
    """A daemon's part that an experiment needs."""

    def __init__(self, state: SwitchbackState | None = None) -> None:
        source = Source(options=OPTIONS)
        self.reloader = Reloader(source, source.read(), lambda config: None)
        self.state = ControllerState(experiment=state or SwitchbackState())
        self.experiment = Experiment(self.reloader, lambda: self.state)

    @property
    def is_stock(self) -> bool:
        return self.reloader.config.is_stock

    def killed(self) -> "Node":
        """The daemon that starts with the snapshot of this one."""
        state = self.state.experiment
        return Node(msgspec.json.decode(msgspec.json.encode(state), type=SwitchbackState))


def step(now_s: float, leads: Node, *others: Node) -> None:
    """A program comes: it takes 40 s under stock; under the preset 30 s, and 60 s after noon."""
    leads.experiment.decide(seconds(now_s))
    took_s = (40.0 if leads.is_stock else 30.0 if now_s < NOON_S else 60.0) + now_s // STEP_S % 7
    name = f"{now_s}"
    for node in (leads, *others):
        if node is not leads:
            node.experiment.follow(seconds(now_s))
        node.experiment.event(ev.TurnQueued(program_id=name, turn_id="1"), seconds(now_s))
        ended = ev.TurnEnded(program_id=name, turn_id="1", prompt_tokens=10, output_tokens=500)
        node.experiment.event(ended, seconds(now_s + took_s))
        node.experiment.event(ev.ProgramEnded(program_id=name), seconds(now_s + took_s))


def times_s() -> list[float]:
    return [STEP_S * each for each in range(round(END_S / STEP_S))]


def told(node: Node) -> tuple[str, float, bool]:
    status = node.experiment.status(seconds(END_S))
    assert status is not None
    return status.standing, status.since_ns / 1e9, status.changes[0].low > 0


@settings(max_examples=5, deadline=None)
@given(st.sets(st.sampled_from(times_s()), max_size=20), st.sampled_from(times_s()))
def test_a_preset_that_gets_worse_is_given_up_whenever_daemons_die(killed: set[float], lost: float) -> None:
    """The one that leads is killed now and then, and at last is lost to the one that stands by."""
    leads, other = Node(), Node()
    for now_s in times_s():
        if now_s == lost:
            leads, other = other, leads
        if now_s in killed:
            leads = leads.killed()
        step(now_s, leads, other)
    standing, since_s, is_worse = told(leads)
    assert standing == "loss"
    assert NOON_S - 800 <= since_s <= NOON_S + 2400
    assert is_worse
    assert leads.is_stock, "fcfs is in force"
    assert told(other) == told(leads), "who stood by has heard the same"


def test_a_loss_is_logged_and_another_preset_ends_it() -> None:
    node = Node()
    with structlog.testing.capture_logs() as lines:
        for now_s in times_s():
            step(now_s, node)
    (line,) = [line for line in lines if line["event"] == "ended"]
    assert (line["log_level"], line["why"], line["preset"]) == ("warning", "loss", "penstock")
    assert line["completion"][1] > 0
    node.reloader.set_preset("mars")
    node.experiment.decide(seconds(END_S))
    assert not node.is_stock
    found = node.experiment.status(seconds(END_S))
    assert found is not None
    assert (found.preset, found.standing, found.blocks) == ("mars", "measures", 0)
    node.reloader.source = Source(options={**OPTIONS, "preset": "mars", "experiment.slice_s": 0.0})
    node.reloader.reload("it was switched off")
    node.experiment.decide(seconds(END_S))
    assert node.experiment.status(seconds(END_S)) is None
    assert not node.is_stock


def test_a_block_in_which_the_daemon_was_frozen_does_not_count() -> None:
    """Its clock did not run meanwhile."""
    node = Node()
    for now_s in times_s():
        if now_s == 2000.0:
            node.experiment.away(seconds(now_s), seconds(26))
        step(now_s, node)
    found = node.experiment.status(seconds(END_S))
    assert found is not None
    assert (found.left_out, found.absent) == (1, 1)


def test_an_error_in_it_leaves_no_node_under_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    for now_s in times_s():
        step(now_s, node)
        if node.is_stock:
            break

    def fails(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(node.experiment, "follow", fails)
    with pytest.raises(RuntimeError):
        node.experiment.decide(seconds(now_s))
    assert not node.is_stock
