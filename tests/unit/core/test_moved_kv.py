"""Where a program's KV is known to be: what the engine answered to Demote, Prefetch and Discard."""

from dataclasses import replace

from support.core_driver import Driver

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import Tier


def asked(command: cmd.Command) -> Driver:
    """A driver whose program a has ended a turn and whose controller has sent ``command``."""
    d = Driver()
    d.run_turn("a")
    assert d.program("a").kv_tier is Tier.HBM
    replay_command(d, command)
    return d


def replay_command(d: Driver, command: cmd.Command) -> None:
    """As if the controller had issued it: policies that move KV come with their presets."""
    d.controller.replay_command(replace(command, command_id=d.controller.numbering.sent + 1), d.now_ns)


def answer(d: Driver, kind: type[ev.CommandApplied] | type[ev.CommandRejected], program_id: str = "a") -> None:
    d.send(d.engine(kind, command_id=d.controller.numbering.sent, program_id=program_id))


def test_a_rejected_move_changes_nothing_and_leaves_a_pin_as_it_was() -> None:
    d = asked(cmd.Retain(program_id="a", ttl_ns=50))
    replay_command(d, cmd.Prefetch(program_id="a"))
    answer(d, ev.CommandRejected)
    program = d.program("a")
    assert (program.kv_tier, program.retained_until_ns) == (Tier.HBM, d.now_ns + 50)
    answer(d, ev.CommandApplied)  # said twice: the first word holds
    assert program.kv_tier is Tier.HBM


def test_moves_that_nobody_answers_are_forgotten_some_day() -> None:
    d = asked(cmd.Demote(program_id="a"))
    for _ in range(5000):
        replay_command(d, cmd.Demote(program_id="a"))
    moving = d.controller.ledger.engines.moving
    assert len(moving) == 4096
    assert d.controller.numbering.sent in moving


# What the engine does untold


def moved(d: Driver, below_tokens: int, program_id: str = "a") -> None:
    d.send(d.engine(ev.ContextMoved, program_id=program_id, below_tokens=below_tokens))


def test_what_the_engine_evicted_lies_below_until_it_gives_its_copies_up() -> None:
    d = Driver()
    d.run_turn("a", prompt=1000)
    own_tokens = d.program("a").context_tokens
    moved(d, own_tokens)
    assert d.program("a").kv_tier is Tier.HOST
    moved(d, own_tokens // 2 + 1)
    assert d.program("a").kv_tier is Tier.HOST, "most of it is there"
    moved(d, own_tokens // 2 - 1)
    assert d.program("a").kv_tier is Tier.NONE, "a return would be a cold one"
    d.run_turn("a", "a.2", prompt=1000)
    assert d.program("a").kv_tier is Tier.HBM


def test_moves_of_whom_nobody_knows_or_waits_for_or_who_runs_are_harmless() -> None:
    d = Driver()
    moved(d, 100, "stranger")
    d.run_turn("a", prompt=1000)
    d.send(d.engine(ev.TurnSubmitted, program_id="a", turn_id="a.2", projected_blocks=1000))
    moved(d, 0)
    assert d.program("a").kv_tier is Tier.HBM, "a turn holds it"
    d.send(d.tools(ev.ProgramEnded, program_id="a"))
    moved(d, 1000)
    assert d.program("a").kv_tier is not Tier.HOST


def test_another_engine_s_old_copy_says_nothing() -> None:
    d = Driver()
    d.run_turn("a", prompt=1000)
    event = d.engine(ev.ContextMoved, program_id="a", below_tokens=1000)
    d.send(replace(event, publisher="n/engine-2/boot", sequence=1))
    assert d.program("a").kv_tier is Tier.HBM


def test_what_a_nodes_own_daemon_had_moved_is_known_to_a_fleet_that_hears_the_answer_alone() -> None:
    d = Driver()
    d.run_turn("a")
    number = d.controller.numbering.sent + 7  # another daemon's
    for told, known in (("host", Tier.HOST), ("attic", Tier.HOST), ("none", Tier.NONE), ("", Tier.NONE)):
        d.send(d.engine(ev.CommandApplied, command_id=number, program_id="a", moved_to=told))
        assert d.program("a").kv_tier is known
    d.submit("a", "a.2")
    d.send(d.engine(ev.CommandApplied, command_id=number, program_id="a", moved_to="host"))
    assert d.program("a").kv_tier is Tier.NONE, "what a turn uses is on the device"
