"""Where a program's KV is known to be: what the engine answered to Demote, Prefetch and Discard."""

from dataclasses import replace

import pytest
from support.core_driver import Driver

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.types import Status, Tier


def asked(command: cmd.Command) -> Driver:
    """A driver whose program a has ended a turn and whose controller has sent ``command``."""
    d = Driver()
    d.run_turn("a")
    assert d.program("a").kv_tier is Tier.HBM
    recall(d, command)
    return d


def recall(d: Driver, command: cmd.Command) -> None:
    """As if the controller had issued it: policies that move KV come with their presets."""
    d.controller.recall(replace(command, command_id=d.controller.numbering.sent + 1), d.now_ns)


def answer(d: Driver, kind: type[ev.CommandApplied] | type[ev.CommandRejected], program_id: str = "a") -> None:
    d.send(d.engine(kind, command_id=d.controller.numbering.sent, program_id=program_id))


@pytest.mark.parametrize(
    ("command", "tier"),
    [
        (cmd.Demote(program_id="a"), Tier.HOST),
        (cmd.Discard(program_id="a"), Tier.NONE),
        (cmd.Release(program_id="a"), Tier.HBM),
    ],
)
def test_kv_moves_when_the_engine_says_so_and_not_before(command: cmd.Command, tier: Tier) -> None:
    d = asked(command)
    assert d.program("a").kv_tier is Tier.HBM
    answer(d, ev.CommandApplied)
    assert d.program("a").kv_tier is tier


def test_what_was_demoted_is_back_after_a_prefetch_or_a_turn() -> None:
    d = asked(cmd.Demote(program_id="a"))
    answer(d, ev.CommandApplied)
    recall(d, cmd.Prefetch(program_id="a"))
    answer(d, ev.CommandApplied)
    assert d.program("a").kv_tier is Tier.HBM
    recall(d, cmd.Demote(program_id="a"))
    answer(d, ev.CommandApplied)
    assert d.program("a").kv_tier is Tier.HOST
    d.run_turn("a", "a.2")
    assert d.program("a").kv_tier is Tier.HBM


def test_a_rejected_move_changes_nothing_and_leaves_a_pin_as_it_was() -> None:
    d = asked(cmd.Retain(program_id="a", ttl_ns=50))
    recall(d, cmd.Prefetch(program_id="a"))
    answer(d, ev.CommandRejected)
    program = d.program("a")
    assert (program.kv_tier, program.retained_until_ns) == (Tier.HBM, d.now_ns + 50)
    answer(d, ev.CommandApplied)  # said twice: the first word holds
    assert program.kv_tier is Tier.HBM


def test_answers_about_programs_that_ended_or_are_unknown_are_harmless() -> None:
    d = asked(cmd.Demote(program_id="a"))
    answer(d, ev.CommandApplied, program_id="stranger")
    recall(d, cmd.Demote(program_id="a"))
    d.send(d.tools(ev.ProgramEnded, program_id="a"))
    answer(d, ev.CommandApplied)
    assert (d.program("a").status, d.program("a").kv_tier) == (Status.ENDED, Tier.NONE)


def test_moves_that_nobody_answers_are_forgotten_some_day() -> None:
    d = asked(cmd.Demote(program_id="a"))
    for _ in range(5000):
        recall(d, cmd.Demote(program_id="a"))
    moving = d.controller.ledger.engines.moving
    assert len(moving) == 4096
    assert d.controller.numbering.sent in moving
