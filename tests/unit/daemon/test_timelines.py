"""Programs' time lines: what is kept of each, how much, and what the page is told."""

import msgspec
from support.journalled import Journalled

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import seconds
from controlplane.daemon.observe.timeline_view import MOST_ENTRIES, MOST_RELATIVES, Timeline, timeline


class Node(Journalled):
    """With a page that looks at it."""

    def look(self, name: str) -> Timeline:
        found = timeline(self.journal, name, self.driver.now_ns)
        assert found is not None
        return found


def test_a_program_is_told_with_its_turns_tools_decisions_and_their_verdicts() -> None:
    node = Node()
    node.pin_too_short()
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
        node.retain("a", number, 60)
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
    assert not node.journal.histories["a"].open


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
    kept = node.journal
    assert sum(len(past.entries) for past in kept.histories.values()) == 100 + 2 * 91  # two of each program beside
    assert len(kept.histories) <= 100
    (turn,) = node.look("waits").turns
    assert turn.queued_ns
    assert not turn.ended_ns


def test_open_turns_of_very_many_programs_are_bounded_too() -> None:
    node = Node(most=100)
    for number in range(1000):
        node.ask(f"p{number % 100}", number)
    kept = node.journal.histories.values()
    assert sum(len(past.entries) for past in kept) == 300 >= sum(len(past.open) for past in kept)


def test_of_one_program_the_latest_are_told() -> None:
    node = Node(most=5 * MOST_ENTRIES)
    for number in range(2 * MOST_ENTRIES):
        node.turn("a", number)
    told = node.look("a")
    assert told.turns[-1].turn_id == f"a.{2 * MOST_ENTRIES - 1}"
    assert len(told.turns) + len(told.decisions) == MOST_ENTRIES
    assert told.left_out >= MOST_ENTRIES


def test_a_tree_is_told_from_each_of_its_programs() -> None:
    node = Node()
    node.turn("root")
    for number in (1, 2):
        node.ask(f"child-{number}", parent_id="root")
        node.turn(f"child-{number}")
        node.end(f"child-{number}")
    node.driver.wait(1)
    node.turn("root", 2)
    node.end("root")
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
    assert timeline(node.journal, "who", node.driver.now_ns) is None


def test_word_of_a_turn_that_nobody_knows_leaves_nothing() -> None:
    node = Node()
    node.send(node.driver.gate(ev.TurnAbandoned, program_id="unknown", turn_id="unknown.1"))
    assert node.journal.histories == {}
