"""Output tokens a second, over the time of a run."""

import numpy as np
import pytest

from controlplane.core.types import seconds
from controlplane.lab.compare.throughput import BINS, tokens_per_s
from controlplane.lab.workload.records import ProgramRecord, TurnRecord
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.summary import summarize


def a_run(*turns: TurnRecord) -> RunResult:
    programs = (ProgramRecord(program_id="p", arrived_ns=seconds(100), ended_ns=seconds(180), turns=len(turns)),)
    return RunResult(
        label="", preset="fcfs", summary=summarize(programs, turns, seconds(80)), programs=programs, turns=turns
    )


def a_turn(first_s: float, ended_s: float, tokens: int, error: str = "") -> TurnRecord:
    return TurnRecord(
        program_id="p",
        index=0,
        queued_ns=seconds(100),
        first_token_ns=seconds(first_s),
        ended_ns=seconds(ended_s),
        output_tokens=tokens,
        error=error,
    )


def test_a_turns_tokens_come_evenly_between_its_first_and_its_end() -> None:
    run = a_run(a_turn(110, 120, 50), a_turn(115, 135, 40), a_turn(160, 160, 7), a_turn(100, 110, 99, "gone"))
    edges, per_s = tokens_per_s(run, 80.0)
    assert (edges[0], edges[-1], len(per_s)) == (0.0, 80.0, BINS)
    at = dict(zip(edges[:-1], per_s, strict=True))
    assert [at[second] for second in (9.0, 10.0, 15.0, 20.0, 34.0, 35.0)] == pytest.approx([0, 5, 7, 2, 2, 0])
    assert at[60.0] == pytest.approx(7.0), "a turn of one token comes at once"
    assert np.sum(per_s * np.diff(edges)) == pytest.approx(97)


def test_a_run_without_turns_puts_nothing_out() -> None:
    edges, per_s = tokens_per_s(a_run(), 0.0)
    assert edges[0] == 0.0
    assert not per_s.any()
