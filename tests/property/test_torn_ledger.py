"""An error at any line of an event or a decision leaves a ledger that is mended: its records agree again."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from test_controller_machine import ControllerMachine, round_trip, snapshot_of

from controlplane.core.ledger.repair import mend
from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import seconds


class Torn(Exception):
    """What nobody expects."""


@contextmanager
def torn_at(lines: int) -> Iterator[None]:
    """Raise ``Torn`` at that line of the core's, counted as they are executed; not in what mends it."""
    left = lines

    def line(_: FrameType, event: str, __: object) -> Any:
        nonlocal left
        left -= event == "line"
        if event == "line" and not left:
            raise Torn
        return line

    def call(frame: FrameType, _: str, __: object) -> Any:
        return line if "/controlplane/core/" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(before)


class TornMachine(ControllerMachine):
    """As that one, but for an error now and then."""

    lines = 0

    @rule(lines=st.integers(1, 300))
    def tear_the_next(self, lines: int) -> None:
        self.lines = lines

    def torn(self, work: Callable[..., Any], *given: object) -> bool:
        """Whether it raised; the ledger is mended then."""
        lines, self.lines = self.lines, 0
        try:
            with torn_at(lines):
                work(*given)
        except Torn:
            return True
        return False

    def receive(self, event: ev.Event) -> None:
        self.seen.append(event)
        if self.torn(self.controller.receive, event, self.now_ns):
            self.controller.quarantine(event)
            self.controller.mend(self.now_ns)

    @rule(after_s=st.sampled_from([0, 0.01, 1, 5, 11, 35, 61, 121, 901]))
    def tick(self, after_s: float) -> None:
        self.now_ns += seconds(after_s)
        commands: list[cmd.Command] = []
        if self.torn(lambda: commands.extend(self.controller.tick(self.now_ns))):
            decided = self.controller.abort_tick()
            self.controller.mend(self.now_ns)
            assert all(each.command_id for each in decided)
            assert self.controller.next_deadline_ns() == 0
            commands = self.controller.tick(self.now_ns)
        self.check_commands(commands)

    @rule(after_s=st.sampled_from([0, 1, 61]))
    def tear_a_recall(self, after_s: float) -> None:
        """A daemon that reads what another one decided."""
        follows = type(self.controller)(self.preset, self.rules, round_trip(self.controller.state, self.preset))
        self.now_ns += seconds(after_s)
        for command in self.controller.tick(self.now_ns):
            if self.torn(follows.replay_command, command, self.now_ns):
                follows.mend(self.now_ns)
        if self.torn(follows.follow, self.now_ns):
            follows.mend(self.now_ns)
        self.controller = follows
        self.controller.take_over()

    @precondition(lambda self: not self.lines and self.seen)
    @rule(data=st.data())
    def deliver_again(self, data: st.DataObject) -> None:
        super().deliver_again(data)

    @invariant()
    def what_agrees_is_not_mended(self) -> None:
        state = self.controller.state
        before = snapshot_of(state)
        mend(state.ledger, self.now_ns)
        assert snapshot_of(state) == before


TestTorn = TornMachine.TestCase
TestTorn.settings = settings(
    deadline=None,
    max_examples=settings().max_examples // 2,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)  # explaining traces, too
