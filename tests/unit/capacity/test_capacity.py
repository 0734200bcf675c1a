"""The most agents that keep an SLO: the search, what is measured, and a small simulated answer."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.closed_loop import record
from typer.testing import CliRunner

from controlplane.cli.app import app
from controlplane.lab.capacity.search import most
from controlplane.lab.capacity.slo import Slo, point, served
from controlplane.lab.workload.records import ProgramRecord, TurnRecord
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.summary import Summary


@given(st.integers(0, 300), st.integers(1, 400), st.integers(1, 256))
def test_a_monotone_answer_is_found(truth: int, first: int, limit: int) -> None:
    found = most(lambda n: n <= truth, first=first, limit=limit)
    answer = min(truth, limit)
    assert answer - answer // 16 <= found.number <= answer
    assert (found.fails_at is None) == (truth >= limit)
    assert not found.holds_again
    assert len(found.tried) <= 20


@given(st.sets(st.integers(1, 64)), st.integers(1, 64))
def test_below_an_answer_nothing_that_was_tried_fails(holding: set[int], first: int) -> None:
    found = most(holding.__contains__, first=first, limit=64)
    assert all(found.tried[n] == (n in holding) for n in found.tried)
    assert all(holds for n, holds in found.tried.items() if n <= found.number)
    assert found.number == 0 or found.tried[found.number]
    assert found.holds_again == sorted(n for n in found.tried if n in holding and n > found.number)


def test_an_island_above_a_failure_is_told_and_is_no_answer() -> None:
    found = most(lambda n: n < 11 or n == 16, first=8, limit=512)
    assert (found.number, found.fails_at, found.holds_again) == (10, 11, [16])


def _turn(program: str, index: int, queued_s: float, first_s: float, ended_s: float) -> TurnRecord:
    queued_ns, first_ns, ended_ns = (round(at * 1e9) for at in (queued_s, first_s, ended_s))
    return TurnRecord(
        program_id=program,
        index=index,
        queued_ns=queued_ns,
        first_token_ns=first_ns,
        ended_ns=ended_ns,
        prompt_tokens=100,
        cached_tokens=50,
        output_tokens=11,
    )


def test_the_first_agents_count_nowhere_and_a_hold_in_both_bounds() -> None:
    """One place: ``a`` warms, ``b`` is held for 40 s, ``c`` ends alone."""
    turns = (
        _turn("a", 0, 0, 9, 10),
        _turn("b", 0, 10, 50, 55),
        _turn("b", 1, 56, 57, 62),
        _turn("c", 0, 62, 63, 64),
    )
    lives = (("a", 0, 10), ("b", 10, 62), ("c", 62, 64))
    programs = tuple(
        ProgramRecord(program_id=name, arrived_ns=begin * 10**9, ended_ns=end * 10**9, turns=1)
        for name, begin, end in lives
    )
    run = RunResult(label="", preset="", summary=Summary(), programs=programs, turns=turns)
    got = served(run, 1)
    assert got.ttft_s == (40.0, 1.0, 1.0)
    assert got.tokens_per_s == pytest.approx((22 / 51, 11 / 2))
    assert got.decode_tokens_per_s == pytest.approx((2.0, 2.0, 10.0))
    both = point(1, [got, got])
    assert (both.turns, both.cache_hit_ratio) == (6, 0.5)
    assert both.broken(Slo(ttft_s=60, tokens_per_s=0)) == ()
    assert [words.split()[0] for words in both.broken(Slo(ttft_s=30, tokens_per_s=10))] == ["TTFT", "0.4"]
    assert "too few turns" in point(1, []).broken(Slo())[0]


def test_stock_and_penstock_are_told_side_by_side(tmp_path: Path) -> None:
    machine = ["--pool-tokens", "60000", "--host-gb", "0", "--max-context", "50000", "--most", "4"]
    command = ["capacity", "synthetic:bfcl-v4", *machine, "--seed", "1", "--out", str(tmp_path)]
    ran = CliRunner().invoke(app, [*command, "--json", "--tokens-per-s", "20"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    stock, penstock = found["systems"]
    assert (stock["system"], penstock["system"]) == ("fcfs", "penstock")
    for system in found["systems"]:
        kept = [tried["agents"] for tried in system["tried"] if not tried["broken"]]
        assert system["agents"] in kept
    assert found == json.loads((tmp_path / "capacity.json").read_text())
    assert "<svg" in (tmp_path / "capacity.html").read_text()


def test_a_recording_is_asked_on_its_own_machine(tmp_path: Path) -> None:
    log = record(tmp_path / "run.jsonl", "fcfs", programs=12, rate=0.5, seed=3)
    run = CliRunner()
    ran = run.invoke(app, ["capacity", str(log), "--seed", "1", "--most", "3", "--json"])
    assert ran.exit_code == 0, ran.output
    assert [system["agents"] for system in json.loads(ran.stdout)["systems"]] == [3, 3]
    refused = run.invoke(app, ["capacity", str(log), "--host-gb", "64"])
    assert refused.exit_code == 2
    assert "--host-gb" in refused.output
