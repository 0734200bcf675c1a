"""Programs' time lines: what is kept of each, how much, and what the page is told."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
from support.core_driver import Driver, fixed

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.control import ControlRules
from controlplane.core.types import seconds
from controlplane.shell.regrets import Regrets
from controlplane.shell.timeline_view import MOST_RELATIVES, MOST_TOLD, Timeline, timeline
from controlplane.shell.timelines import Timelines


@dataclass
class Node:
    """A controller of one slot with what the daemon keeps beside it."""

    most: int = 1000
    driver: Driver = field(default_factory=lambda: Driver(fixed(1), ControlRules(stall_s=60)))

    def __post_init__(self) -> None:
        self.kept = Timelines(lambda: self.driver.controller, self.most)
        self.regrets = Regrets()
        self.regrets.heard.append(self.kept.verdict)
        self.regrets.lead((), self.driver.now_ns)

    def send(self, event: ev.Event) -> None:
        self.driver.send(event)
        for recorder in (self.kept, self.regrets):
            recorder.event(event, self.driver.now_ns)

    def engine(self, kind: type[ev.Event], **values: Any) -> None:
        self.send(self.driver.engine(kind, **values))

    def ask(self, name: str, turn: int = 1, **values: Any) -> None:
        self.send(self.driver.gate(ev.TurnQueued, program_id=name, turn_id=f"{name}.{turn}", **values))

    def tool(self, kind: type[ev.Event], name: str, **values: Any) -> None:
        self.send(kind(publisher="node/tool/1", program_id=name, **values))

    def tick(self, after_s: float = 0.0) -> None:
        for command in self.driver.tick(after_s):
            self.told(command)

    def told(self, command: cmd.Command) -> None:
        for recorder in (self.kept, self.regrets):
            recorder.command(command, self.driver.now_ns)

    def turn(self, name: str, turn: int = 1, *, tokens: int = 1000, cached: int = 0) -> None:
        """One that takes three seconds."""
        ids = {"program_id": name, "turn_id": f"{name}.{turn}"}
        self.engine(ev.TurnSubmitted, **ids, projected_blocks=tokens)
        self.driver.wait(1)
        self.engine(ev.FirstToken, **ids, prompt_tokens=tokens, cached_tokens=cached, prefill_ns=seconds(1))
        self.driver.wait(2)
        self.engine(ev.TurnEnded, **ids, prompt_tokens=tokens, output_tokens=10, tool="bash")

    def look(self, name: str) -> Timeline:
        found = timeline(self.kept, name, self.driver.now_ns)
        assert found is not None
        return found


def a_pin_that_is_too_short(node: Node) -> None:
    node.engine(ev.PoolSampled, total_blocks=10_000, free_blocks=0, evictable_blocks=10_000)
    node.ask("a")
    node.tick(2.0)
    node.turn("a")
    node.told(cmd.Retain(command_id=1000, program_id="a", ttl_ns=seconds(1), reason="bash"))
    node.tool(ev.ToolStarted, "a", call_id="1", tool="bash")
    node.driver.wait(5)
    node.tool(ev.ToolEnded, "a", call_id="1", tool="bash", duration_ns=seconds(5))
    node.turn("a", 2, tokens=1500, cached=10)


def test_a_program_is_told_with_its_turns_tools_decisions_and_their_verdicts() -> None:
    node = Node()
    a_pin_that_is_too_short(node)
    told = node.look("a")
    first, second = told.turns
    assert (first.submitted_ns - first.queued_ns, first.ended_ns - first.submitted_ns) == (seconds(2), seconds(3))
    assert first.first_token_ns - first.submitted_ns == seconds(1)
    assert (first.engine, first.prompt_tokens, first.output_tokens) == ("node/engine", 1000, 10)
    assert (second.queued_ns, second.cached_tokens) == (0, 10)
    (call,) = told.tools
    assert (call.tool, call.ended_ns - call.started_ns) == ("bash", seconds(5))
    admitted, pinned = told.decisions
    assert [verdict.kind for verdict in admitted.verdicts] == ["hold", "admit"]
    assert pinned.until_ns - pinned.at_ns == seconds(1)
    (verdict,) = pinned.verdicts
    assert verdict.happened == "its context was missed, as it came back after its pin had ended"
    assert verdict.again_tokens == 1000
    assert verdict.cost_s > verdict.gain_s
    assert (told.turn_count, told.left_out, told.tree) == (2, 0, [])
    assert msgspec.json.decode(msgspec.json.encode(told))["program_id"] == "a"


def test_what_nobody_decided_has_its_verdict_too() -> None:
    node = Node()
    node.engine(ev.PoolSampled, total_blocks=10_000, free_blocks=0, evictable_blocks=10_000)
    node.turn("a")
    node.turn("a", 2, tokens=1500)
    (missed,) = [each for each in node.look("a").decisions if not each.number]
    assert (missed.kind, missed.verdicts[0].again_tokens) == ("nobody", 1010)


def test_a_pin_ends_with_the_turn_that_it_was_for_or_is_given_up() -> None:
    node = Node()
    node.turn("a")
    for number, ends in ((1000, "turn"), (1001, "reclaimed"), (1002, "end")):
        node.told(cmd.Retain(command_id=number, program_id="a", ttl_ns=seconds(60), reason="bash"))
        node.driver.wait(2)
        if ends == "turn":
            node.turn("a", 2)
        else:
            event = ev.PinReclaimed if ends == "reclaimed" else ev.ProgramEnded
            node.engine(event, program_id="a")
    pins = [each for each in node.look("a").decisions if each.kind == "retain"]
    assert [each.until_ns - each.at_ns for each in pins] == [seconds(2)] * 3


def test_word_that_comes_late_opens_no_turn_again() -> None:
    """A gate and an engine tell of the same turn on connections of their own."""
    node = Node()
    node.turn("a")
    node.ask("a")
    node.engine(ev.FirstToken, program_id="a", turn_id="a.1", prompt_tokens=900, cached_tokens=5)
    (turn,) = node.look("a").turns
    assert (turn.queued_ns, turn.cached_tokens) == (0, 5)
    assert not node.kept.pasts["a"].open


def test_what_an_engine_rejects_and_who_gives_up_say_why() -> None:
    node = Node()
    node.ask("a")
    node.told(cmd.Demote(command_id=7, program_id="a", reason="idle"))
    node.engine(ev.CommandRejected, command_id=7, program_id="a", reason="no host memory")
    node.send(node.driver.gate(ev.TurnAbandoned, program_id="a", turn_id="a.1", reason="the client went"))
    told = node.look("a")
    (demoted,) = [each for each in told.decisions if each.kind == "demote"]
    assert demoted.rejected == "no host memory"
    assert told.turns[0].end == "the client went"


def test_of_all_programs_together_so_much_is_kept_and_what_is_open_longer() -> None:
    node = Node(most=100)
    node.ask("waits")
    for number in range(400):
        node.turn(f"p{number % 90}", number)
    kept = node.kept
    assert sum(len(past.entries) for past in kept.pasts.values()) == 100
    assert len(kept.pasts) <= 100
    (turn,) = node.look("waits").turns
    assert turn.queued_ns
    assert not turn.ended_ns


def test_open_turns_of_very_many_programs_are_bounded_too() -> None:
    node = Node(most=100)
    for number in range(1000):
        node.ask(f"p{number}")
    assert sum(len(past.entries) for past in node.kept.pasts.values()) == 100
    assert sum(len(past.open) for past in node.kept.pasts.values()) <= 100


def test_of_one_program_the_latest_are_told() -> None:
    node = Node(most=5 * MOST_TOLD)
    for number in range(2 * MOST_TOLD):
        node.turn("a", number)
    told = node.look("a")
    assert told.turns[-1].turn_id == f"a.{2 * MOST_TOLD - 1}"
    assert len(told.turns) + len(told.decisions) == MOST_TOLD
    assert told.left_out >= MOST_TOLD


def test_a_tree_is_told_from_each_of_its_programs() -> None:
    node = Node()
    node.turn("root")
    for number in (1, 2):
        node.ask(f"child-{number}", parent_id="root")
        node.turn(f"child-{number}")
        node.engine(ev.ProgramEnded, program_id=f"child-{number}")
    node.driver.wait(1)
    node.turn("root", 2)
    node.engine(ev.ProgramEnded, program_id="root")
    for name in ("root", "child-2"):
        told = node.look(name)
        assert [each.program_id for each in told.tree] == ["root", "child-1", "child-2"]
        assert [each.depth for each in told.tree] == [0, 1, 1]
        assert [each.own_path_ns for each in told.tree] == [seconds(7), seconds(3), seconds(3)]
        assert told.parent_id == ("" if name == "root" else "root")
    assert [stretch.program_id for stretch in node.look("root").path] == ["root", "child-1", "child-2", "root"]


def test_a_tree_without_end_is_cut() -> None:
    node = Node(most=10_000)
    node.turn("root")
    for number in range(MOST_RELATIVES + 50):
        node.ask(f"child-{number}", parent_id="root")
    told = node.look("root")
    assert len(told.tree) == MOST_RELATIVES
    assert told.tree_left_out == 51


def test_a_program_from_before_a_restart_is_told_as_far_as_it_is_known() -> None:
    node = Node()
    node.driver.ask("a")  # nobody kept that
    told = node.look("a")
    assert (told.turns, told.began_ns) == ([], node.driver.program("a").arrived_at_ns)
    assert timeline(node.kept, "who", node.driver.now_ns) is None
