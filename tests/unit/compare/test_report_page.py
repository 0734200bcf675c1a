"""The HTML report stands alone, shows every run, and stays small."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_up_runs import assert_stands_alone, made_up_run

from controlplane.core.model.errors import ConfigError
from controlplane.lab.compare.html import ReportOptions, runs_html, write_report
from controlplane.lab.compare.timeline import caption, intervals_s, shared_scales, timeline_svg
from controlplane.lab.workload.series import Series


@pytest.fixture(scope="module")
def page() -> str:
    runs = [made_up_run(preset, rate, slowdown=2) for rate in (0.05, 0.2) for preset in ("fcfs", "mars")]
    command = ["penstock", "demo", "--label", "two words"]
    return runs_html(runs, ReportOptions(command=command, facts={"penstock": "0.1.0"}))


def test_it_stands_alone_shows_every_load_and_run_and_says_how_to_run_it_again(page: str) -> None:
    assert_stands_alone(page)
    loads, runs = 2, 4
    assert page.count("<svg") == 1 + 2 * loads + runs
    assert page.count("Waiting for admission") == runs
    assert "penstock demo --label &#39;two words&#39;" in page
    assert "made up" in page
    assert "2 CPUs" in page
    assert "0.1.0" in page


def test_what_was_predicted_stands_beside_the_runs() -> None:
    runs = [made_up_run(preset, 0.05, slowdown=2, programs=5) for preset in ("fcfs", "penstock")]
    more = [made_up_run(preset, 0.2, slowdown=3, programs=5) for preset in ("fcfs", "penstock")]
    options = ReportOptions(outcome=["First.", "Then."], notes=["One seed."], predicted=[*runs, *more])
    text = runs_html(runs, options)
    assert '<p class="verdict">First. Then.</p>' in text
    assert "<li>One seed.</li>" in text
    assert text.count("penstock,<br>simulated") == 1, "a column"
    assert text.count("penstock, simulated") == 1, "a line of the plot over rates"
    assert text.count("Inside the runs") == 1, "only of what ran"


def test_a_long_run_does_not_make_a_large_plot() -> None:
    run = made_up_run("mars", 0.05, slowdown=2, programs=200)
    assert len(run.series.t_ns) > 3000
    assert len(timeline_svg(run, shared_scales([run]))) < 250_000


def test_of_several_engines_the_timeline_shows_how_far_their_memory_is_apart() -> None:
    one = made_up_run("mars", 0.1, slowdown=2, programs=3)
    apart = [0.0, *[0.3] * (len(one.series.t_ns) - 1)]
    two = replace(one, series=replace(one.series, kv_imbalance_ratio=apart))
    older = replace(one, series=replace(one.series, kv_imbalance_ratio=[]))
    shown = ["engines apart" in timeline_svg(run, shared_scales([run])) for run in (older, two)]
    assert shown == [False, True]
    assert caption(two).endswith("; engines' KV 30% of a pool apart in the mean, 30% at most.")


def test_runs_without_series_or_ended_programs_still_make_a_report() -> None:
    failed = made_up_run("fcfs", 0.1, slowdown=2, programs=3, failed=3)
    bare = replace(failed, series=Series(), facts={"note": "<script>alert(1)</script>"})
    text = runs_html([bare], ReportOptions(title="a <b> & c"))
    assert "nothing ended" in text
    assert "Inside the runs" not in text
    assert "<script>" not in text
    assert "<b>" not in text


def test_a_report_of_nothing_or_into_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one run"):
        runs_html([], ReportOptions())
    with pytest.raises(ConfigError, match="cannot write the report"):
        run = made_up_run("mars", 0.1, slowdown=2, programs=3)
        write_report([run], tmp_path / "missing" / "report.html", ReportOptions())


def test_overload_intervals_and_the_caption() -> None:
    series = Series(
        t_ns=[0, 1_000_000_000, 2_000_000_000, 3_000_000_000],
        limit=[4, 3, 9, 9],
        active=[1, 1, 1, 1],
        kv_overloaded=[False, True, False, True],
        cpu_overloaded=[False] * 4,
    )
    assert intervals_s(series, series.kv_overloaded) == [(1.0, 2.0), (3.0, 3.0)]
    run = replace(made_up_run("mars", 0.1, slowdown=2, programs=3), series=series)
    assert caption(run) == "The admission limit moved between 3 and 9; KV overloaded 50% of the time."
