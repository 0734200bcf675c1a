"""Summaries, series and saved runs."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.types import Pressure, seconds
from controlplane.lab.workload.records import ProgramRecord, TurnRecord
from controlplane.lab.workload.run import RunResult, load_run
from controlplane.lab.workload.scale import Scale
from controlplane.lab.workload.series import Series
from controlplane.lab.workload.summary import summarize


def program(name: str, jct_s: float, ideal_s: float = 0, **changes: object) -> ProgramRecord:
    record = ProgramRecord(
        program_id=name,
        arrived_ns=seconds(5),
        ended_ns=seconds(5 + jct_s),
        turns=2,
        ideal_ns=seconds(ideal_s),
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def turn(ttft_s: float, hold_s: float = 0, **changes: object) -> TurnRecord:
    record = TurnRecord(
        program_id="p",
        index=0,
        queued_ns=seconds(7),
        first_token_ns=seconds(7 + ttft_s),
        ended_ns=seconds(9 + ttft_s),
        prompt_tokens=100,
        output_tokens=30,
        cached_tokens=60,
        hold_ns=seconds(hold_s),
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def test_every_figure_of_a_small_run() -> None:
    programs = [
        program("a", 10, 10),
        program("b", 20, 10),
        program("c", 29, 10),
        program("d", 41, 10),
        program("e", 1000, 10, failed=True),
    ]
    turns = [turn(1), turn(20, hold_s=15), turn(45), turn(70), turn(0, error="refused", prompt_tokens=10**6)]
    summary = summarize(programs, turns, seconds(100))
    assert summary.programs_ended == 4
    assert summary.programs_failed == 1
    assert (summary.turns_ended, summary.turns_failed) == (4, 1)
    assert summary.makespan_s == 100
    assert summary.jct_mean_s == 25
    assert summary.jct_p50_s == 24.5
    assert summary.jct_p99_s == pytest.approx(40.64)
    assert summary.ttft_mean_s == 34
    assert summary.ttft_p50_s == 32.5
    assert summary.steps_per_min == pytest.approx(2.4)
    assert summary.output_tokens_per_s == pytest.approx(1.2)
    assert summary.cache_hit_ratio == pytest.approx(0.6)
    assert (summary.goodput_1x_per_s, summary.goodput_2x_per_s, summary.goodput_3x_per_s) == pytest.approx(
        (0.01, 0.02, 0.03)
    )
    assert (summary.ttft_within_10s_ratio, summary.ttft_within_30s_ratio, summary.ttft_within_60s_ratio) == (
        0.2,
        0.4,
        0.6,
    )
    assert summary.longest_hold_s == 15
    assert summary.jain_index == pytest.approx(10.0**2 / (4 * (1 + 4 + 8.41 + 16.81)))


def test_a_hold_is_a_programs_over_its_turns() -> None:
    programs = [program("p", 10), program("q", 20), program("r", 30, failed=True)]
    turns = [turn(1, hold_s=4), turn(1, hold_s=2), turn(1, program_id="q"), turn(1, hold_s=99, program_id="r")]
    summary = summarize(programs, turns, seconds(100))
    assert (summary.hold_mean_s, summary.longest_hold_s) == (3, 99)


def test_time_per_output_token_leaves_the_first_one_out() -> None:
    """Each of these turns decodes for two seconds."""
    turns = [turn(1, output_tokens=21), turn(1, output_tokens=11), turn(1, output_tokens=1), turn(1, error="lost")]
    summary = summarize([program("p", 10)], turns, seconds(100))
    assert summary.tpot_mean_s == pytest.approx(0.15)
    assert summary.tpot_p99_s == pytest.approx(0.199)


def test_what_was_not_measured_is_none() -> None:
    told = summarize([], [], 0).to_json()
    counts = {"programs_ended", "programs_failed", "programs_broken"}
    counts |= {"turns_ended", "turns_failed", "turns_cut", "turns_refused"}
    assert {name for name in told if told[name] is not None} == counts | {"makespan_s"}
    failed = summarize([program("p", 10, failed=True)], [turn(0, error="refused")], seconds(10)).to_json()
    measured = (
        *("jct_mean_s", "ttft_mean_s", "tpot_mean_s", "cache_hit_ratio", "goodput_1x_per_s", "jain_index"),
        *("hold_mean_s", "pool_decode_ratio", "routed_new", "tool_slowdown_ratio"),
    )
    assert {failed[name] for name in measured} == {None}
    assert (failed["ttft_within_10s_ratio"], failed["steps_per_min"]) == (0, 0)


def test_what_the_engine_did_not_count_is_in_no_figure() -> None:
    """A turn without a token, one without usage, and one without cached tokens."""
    turns = [
        replace(turn(5, output_tokens=21), first_token_ns=0),
        replace(turn(1, output_tokens=21), counted=False),
        replace(turn(3, output_tokens=21), cache_counted=False),
    ]
    summary = summarize([program("p", 10)], turns, seconds(100))
    assert (summary.ttft_mean_s, summary.tpot_mean_s) == (2, pytest.approx(0.1))
    assert summary.output_tokens_per_s is None
    assert summarize([], turns[2:], seconds(100)).cache_hit_ratio is None
    assert summarize([], [turns[2], turn(1)], seconds(100)).cache_hit_ratio == pytest.approx(0.6)


def run_result() -> RunResult:
    series = Series()
    series.sample(seconds(1), Pressure(programs_active=3, kv_use_ratio=1.25), window=4.5, limit=4)
    return RunResult(
        label="mars poisson:0.2",
        preset="mars",
        rate=0.2,
        seed=7,
        scale=Scale(tokens=0.1),
        summary=summarize([program("a", 10, 5)], [turn(1)], seconds(10)),
        programs=(program("a", 10, 5),),
        turns=(turn(1), turn(2, admitted_ns=seconds(8), error="x")),
        series=series,
        facts={"trace": "isobench"},
    )


def test_a_run_survives_saving(tmp_path: Path) -> None:
    run_result().save(tmp_path / "run.json")
    assert load_run(tmp_path / "run.json") == run_result()


def test_a_series_keeps_its_columns_together() -> None:
    series = run_result().series
    assert {len(getattr(series, field.name)) for field in fields(series)} == {1}
    assert (series.limit, series.window, series.active, series.kv_use_ratio) == ([4], [4.5], [3], [1.25])


@pytest.mark.parametrize(
    ("content", "message"),
    [("{}", r"not a saved run: .*missing.*label"), ("{", "not a saved run"), ("[]", "Expected `object`")],
)
def test_a_file_that_is_no_run_is_explained(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_run(path)
    with pytest.raises(ConfigError, match="cannot read the run"):
        load_run(tmp_path / "none.json")
    replace(run_result(), format=99).save(path)
    with pytest.raises(ConfigError, match="expected format 1, got 99"):
        load_run(path)
