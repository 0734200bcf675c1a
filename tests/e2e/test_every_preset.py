"""Presets in the daemon, over a real bus, with the engine double: programs run to their end, by its rules.

What its regret ledger says was computed again is what the clients read in the replies.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.daemon_process import NODE
from support.whole_loop import Loop, serving

from controlplane.core.model.events import TurnEnded
from controlplane.core.regret import Cause, Verdict
from controlplane.daemon.observe.log_replay import judge_log
from controlplane.lab.workload.records import TurnRecord
from controlplane.wire.decisions import VerdictRecord, log_path, read_decisions
from controlplane.wire.log import CommandRecord, EventRecord, read_log

PROGRAMS = 12
# What a preset's daemon says under such a load beside grants and windows, for one of each kind.
SAYS: dict[str, set[str]] = {"fcfs": set(), "continuum": {"Retain"}, "mori": {"Pause", "Label"}, "penstock": set()}
TELLING = {"Retain", "Label", "Demote"}


def computed_again(turns: Sequence[TurnRecord]) -> int:
    """Tokens that a turn did not find of those that the program's turn before it left, by the replies alone."""
    last: dict[str, TurnRecord] = {}
    again = 0
    for turn in sorted(turns, key=lambda turn: turn.ended_ns):
        former = last.get(turn.program_id)
        if former is not None and turn.prompt_tokens >= former.prompt_tokens:
            whole = former.prompt_tokens + former.output_tokens
            reusable = whole if turn.prompt_tokens >= whole else former.prompt_tokens
            again += max(0, reusable - turn.cached_tokens)
        last[turn.program_id] = turn
    return again


def wait_until_heard(loop: Loop, turns: int) -> None:
    """On a busy machine the daemon is behind the engine, and what it has not read when it stops is in no log."""
    deadline_s = time.monotonic() + 180.0
    while (heard := ended_turns(loop)) < turns:
        assert time.monotonic() < deadline_s, f"the daemon heard of {heard} of {turns} turns"
        time.sleep(0.2)


def ended_turns(loop: Loop) -> int:
    records = read_log(loop.folder / "run.jsonl")
    return sum(isinstance(record, EventRecord) and isinstance(record.event, TurnEnded) for record in records)


def check_verdicts(loop: Loop, turns: Sequence[TurnRecord]) -> None:
    """Of the recorded run; and those of the live daemon's log are among them."""
    judged = [verdict for verdict, _ in judge_log(loop.folder / "run.jsonl")]
    told = sum(verdict.again_tokens for verdict in judged if verdict.cause is not Cause.RETRACTED)
    assert told == pytest.approx(computed_again(turns), rel=0.01)
    live = [each.verdict for each in read_decisions(log_path(NODE, loop.folder)) if isinstance(each, VerdictRecord)]
    assert Counter(map(key, live)) == Counter(key(verdict) for verdict in judged if not verdict.is_rest)


def key(verdict: Verdict) -> tuple[str, int, str, str, str, int]:
    return (
        verdict.kind,
        verdict.number,
        verdict.program_id,
        verdict.outcome,
        verdict.cause,
        verdict.again_tokens,
    )


@pytest.fixture(params=SAYS)
def loop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Loop]:
    made = Loop(
        tmp_path, request.param, pool_tokens=24_000, rate=1.0, time_scale=60, engine=("--tier", "dram:40000:50")
    )
    yield from serving(made)


def test_a_saturating_load_is_served_to_its_end(loop: Loop) -> None:
    result = loop.run(PROGRAMS)
    assert (result.summary.programs_ended, result.summary.programs_failed) == (PROGRAMS, 0)
    preset = loop.daemon.arguments[1]
    wait_until_heard(loop, len(result.turns))
    loop.daemon.stop()
    said = Counter(
        type(record.command).__name__
        for record in read_log(loop.folder / "run.jsonl")
        if isinstance(record, CommandRecord)
    )
    check_verdicts(loop, result.turns)
    assert SAYS[preset] <= said.keys(), said
    if preset == "fcfs":
        assert not TELLING & said.keys(), said
