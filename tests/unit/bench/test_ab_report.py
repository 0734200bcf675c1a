"""The A/B's ratios, their intervals, and which targets they meet."""

import json
import random

import numpy as np
import pytest
from ab import bootstrap, page, report
from ab.bootstrap import Bootstrap, Run, jct_percentile, mean_jct, ttft_percentile
from ab.comparison import MET, MISSED, NOISE, Comparison
from ab.results import RUN, TUNE, Row
from ab_rows import SCENARIO, row

from controlplane.lab.workload.telemetry import Telemetry


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "RESAMPLES", 200)


def some(mean_s: float, seed: int, programs: int = 40) -> list[float]:
    """Completion times of that mean."""
    rng = random.Random(seed)
    times = [rng.uniform(0.5, 1.5) for _ in range(programs)]
    return [time * mean_s * programs / sum(times) for time in times]


def three(stock_s: float, static_s: float, mars_s: float, *, rate: float = 0.15, seeds: int = 4) -> list[Row]:
    """Stock, a static window and mars at these means; a program is as long under each of them."""
    means = {"stock": stock_s, "static-8": static_s, "mars": mars_s}
    return [
        row(name, some(mean_s, seed), rate=rate, seed=seed, makespan_s=10 * mean_s)
        for seed in range(1, seeds + 1)
        for name, mean_s in means.items()
    ]


def verdicts(rows: list[Row], rate: float = 0.15, saturated_from: float = 0.15) -> dict[str, str]:
    targets = Comparison(rows, SCENARIO, rate).targets("mars", saturated_from)
    return {target.what: target.verdict for target in targets}


def test_figures_are_those_of_the_programs() -> None:
    run = Run(row(jct_s=(10.0, 20.0, None, 40.0), ttft_s=((1.0, 2.0), (3.0,), (), (5.0, 6.0, 7.0))))
    everyone = np.arange(4)
    assert mean_jct(run, everyone) == pytest.approx(70 / 3)
    assert jct_percentile(50)(run, everyone) == 20.0
    assert ttft_percentile(50)(run, everyone) == 4.0
    assert mean_jct(run, np.array([0, 0, 3, 2])) == pytest.approx(20.0)


def test_a_ratio_of_programs_that_are_all_twice_as_fast_is_sure() -> None:
    slow = [Run(row(jct_s=some(40, seed), seed=seed)) for seed in (1, 2, 3)]
    fast = [Run(row(jct_s=[time / 2 for time in some(40, seed)], seed=seed)) for seed in (1, 2, 3)]
    draws = Bootstrap([40, 40, 40])
    ratio = draws.sample(slow, mean_jct).over(draws.sample(fast, mean_jct))
    assert (ratio.value, ratio.low, ratio.high) == (pytest.approx(2), pytest.approx(2), pytest.approx(2))


def test_an_interval_holds_the_truth_and_narrows_with_more_seeds() -> None:
    def interval(seeds: int) -> tuple[float, float]:
        rng = random.Random(7)
        systems = [
            [Run(row(jct_s=[rng.expovariate(1 / mean_s) for _ in range(60)], seed=n)) for n in range(seeds)]
            for mean_s in (60.0, 40.0)
        ]
        draws = Bootstrap([60] * seeds, resamples=300)
        ratio = draws.sample(systems[0], mean_jct).over(draws.sample(systems[1], mean_jct))
        assert ratio.low < ratio.value < ratio.high
        return ratio.low, ratio.high

    few, many = interval(2), interval(12)
    assert many[0] < 1.5 < many[1]
    assert many[1] - many[0] < few[1] - few[0]


def test_the_same_rows_give_the_same_interval() -> None:
    rows = three(60, 50, 40)
    first, again = (Comparison(rows, SCENARIO, 0.15).ratio("stock", "mars") for _ in range(2))
    assert first == again


def test_targets_above_saturation_are_against_stock_and_the_best_window() -> None:
    assert set(verdicts(three(60, 50, 30)).values()) == {MET}
    worse = verdicts(three(60, 30, 50))
    assert worse["mean JCT / stock"] == MET
    assert worse["mean JCT / static-8"] == MISSED
    assert worse["p95 JCT / best (static-8)"] == MISSED
    assert worse["makespan / stock"] == MET


def test_below_saturation_five_percent_above_stock_are_allowed() -> None:
    assert verdicts(three(40, 39, 41.9, rate=0.13), rate=0.13)["mean JCT / stock"] == MET
    assert "mean JCT / static-8" not in verdicts(three(40, 39, 41.9, rate=0.13), rate=0.13)
    assert verdicts(three(40, 39, 43, rate=0.13), rate=0.13)["mean JCT / stock"] == MISSED
    assert verdicts(three(40, 39, 41.9), saturated_from=0.15)["mean JCT / stock"] == MISSED


def test_a_miss_that_could_be_chance_is_told_from_a_sure_one() -> None:
    rng = random.Random(3)
    rows = [
        row(name, [rng.expovariate(1 / 40) for _ in range(30)], seed=seed, makespan_s=rng.uniform(90, 110))
        for seed in range(1, 5)
        for name in ("stock", "mars")
    ]
    comparison = Comparison(rows, SCENARIO, 0.15)
    means = {name: comparison.mean(name, "jct_mean_s") for name in ("stock", "mars")}
    slower = max(means, key=lambda name: means[name])
    renamed = rows if slower == "mars" else [_swapped(found) for found in rows]
    assert verdicts(renamed)["mean JCT / stock"] == NOISE


def _swapped(found: Row) -> Row:
    name = {"stock": "mars", "mars": "stock"}[found.cell.system]
    return row(name, found.jct_s, seed=found.cell.seed, makespan_s=found.figures.makespan_s)


def test_only_seeds_that_every_system_has_are_compared() -> None:
    rows = [*three(60, 50, 30, seeds=2), row("stock", some(900, 3), seed=3)]
    comparison = Comparison(rows, SCENARIO, 0.15)
    assert (comparison.seeds, comparison.seeds_left_out) == ([1, 2], [3])
    assert comparison.mean("stock", "jct_mean_s") == pytest.approx(60)


def test_a_system_with_few_seeds_can_be_left_out() -> None:
    rows = [
        *three(60, 50, 30),
        row("ablation", some(20, 1), seed=1),
        row("static-8", [1.0], purpose=TUNE, seed=101),
    ]
    assert Comparison(rows, SCENARIO, 0.15).seeds == [1]
    chosen = report.only(rows, frozenset({"stock", "static-8", "mars"}))
    comparison = Comparison(chosen, SCENARIO, 0.15)
    assert (comparison.seeds, comparison.tuned) == ([1, 2, 3, 4], 8)
    assert report.only(rows, frozenset()) == rows


def test_the_static_window_compared_with_is_the_tuned_one() -> None:
    rows = [*three(60, 50, 30), *(row("static-4", some(40, seed), seed=seed) for seed in range(1, 5))]
    assert Comparison(rows, SCENARIO, 0.15).static == "static-4", "untuned: the best of those run"
    for window, mean_s in ((4, 30.0), (8, 20.0)):
        rows.append(row(f"static-{window}", [mean_s], purpose=TUNE, seed=101))
    assert Comparison(rows, SCENARIO, 0.15).static == "static-8"


def test_the_report_has_every_rate_also_where_it_misses() -> None:
    rows = [*three(60, 50, 30), *three(40, 40, 60, rate=0.2)]
    text = report.show(rows, SCENARIO, 0.15)
    assert "poisson:0.15, seeds 1, 2, 3, 4" in text
    assert "poisson:0.2, seeds 1, 2, 3, 4" in text
    assert "mars: mean JCT / stock = 1.50 [1.50, 1.50], at most 1: MISSED" in text
    assert "mars: at its best rate, 0.15/s, mean JCT 2.00 times lower than stock's (at least 1.5): met" in text
    assert "2.00 [2.00, 2.00]" in text
    assert "CAREFUL" not in text


def test_the_report_says_what_speaks_against_its_figures() -> None:
    failed = row("mars", (10.0, None, 30.0, 40.0), seed=1)
    mixed = [row("mars", seed=2, code="one"), row("mars", seed=3, code="two", revision="new")]
    others = [row("stock", seed=seed, others_ratio=0.4) for seed in (1, 2, 3)]
    elsewhere = row("mars", scenario="another load")
    text = report.show([elsewhere, failed, *mixed, *others], SCENARIO, 0.15)
    assert "CAREFUL: programs failed under mars" in text
    assert "CAREFUL: runs of several versions of the code: mars" in text
    assert "1 rows of other loads, telemetry or engines are left out" in text
    assert "CAREFUL: other work took more than 10% during 3 runs" in text
    assert "was not tuned" in text
    assert "several machines" not in text


def test_the_report_names_the_telemetry_and_leaves_rows_of_another_one_out() -> None:
    full, none = (
        three(60, 50, 30),
        [row(name, some(40, 1), scenario="load-a-none", telemetry=Telemetry.NONE) for name in ("stock", "mars")],
    )
    text = report.show([*full, *none], SCENARIO, 0.15)
    assert text.splitlines()[0] == "made up; telemetry full"
    assert "2 rows of other loads, telemetry or engines are left out" in text
    rows = [*none, *full]
    assert report.latest_scenario(rows) == SCENARIO
    assert report.latest_scenario(rows, Telemetry.NONE) == "load-a-none"
    assert report.latest_scenario(rows, Telemetry.TURNS) is None
    assert json.loads(report.to_json(rows, "load-a-none", 0.15))["telemetry"] == "none"


def test_a_stock_engine_by_priority_is_what_others_are_measured_against() -> None:
    rows = [*three(60, 50, 30), *(row("priority", some(40, seed), seed=seed) for seed in range(1, 5))]
    comparison = Comparison(rows, SCENARIO, 0.15)
    assert comparison.systems == ["stock", "priority", "static-8", "mars"]
    assert comparison.candidates == ["mars"]
    assert "mean JCT / priority" in verdicts(rows)
    assert "p95 JCT / best (priority)" in verdicts(rows)


def test_first_turns_are_told_from_later_ones_and_the_engines_cpu_by_turn() -> None:
    ttft_s = ((5.0, 1.0), (7.0, 2.0, 3.0), ())
    one = row("mars", (10.0, 20.0, None), ttft_s=ttft_s, engine_cpu_s=2.5, tpot_mean_s=0.02)
    assert (one.first_ttft_p50_s, one.later_ttft_p50_s, one.engine_cpu_turn_s) == (6.0, 2.0, 0.5)
    text = report.show([one, row("stock", (10.0, 20.0, 30.0), ttft_s=ttft_s)], SCENARIO, 0.15)
    heads, stock, mars = text.splitlines()[text.splitlines().index(_line_with(text, "first TTFT p50")) :][:3]
    assert " ".join(heads.split()) == "system first TTFT p50 p99 later p50 p99 TPOT engine CPU a turn"
    assert stock.split()[0] == "stock" and stock.split()[-2:] == ["0.0000", "0.000"], "older rows say nothing"
    assert mars.split()[:2] == ["mars", "6.00"] and mars.split()[-2:] == ["0.0200", "0.500"]


def _line_with(text: str, part: str) -> str:
    return next(line for line in text.splitlines() if part in line)


def test_the_page_has_a_row_for_each_rate_and_system() -> None:
    rows = [*three(60, 50, 30), *three(80, 50, 40, rate=0.2)]
    lines = page.table(rows, SCENARIO).splitlines()
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    assert {line.count("|") for line in lines} == {13}
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["0.15", "", "", "0.2", "", ""]
    assert [line.split("|")[2].strip() for line in lines[2:]] == ["stock", "static-8", "mars"] * 2
    assert cells[4][-1] == "0.50 [0.50, 0.50]"
    assert lines[2].split("|")[-2].strip() == "", "stock over itself says nothing"


def test_runs_on_several_machines_are_named() -> None:
    rows = [row("stock", seed=1, cpu="Intel"), row("mars", seed=1, cpu="AMD, 3.1 ms")]
    assert "CAREFUL: runs on several machines: AMD; Intel" in report.show(rows, SCENARIO, 0.15)
    assert "several" not in report.show([row(cpu="AMD"), row("mars", cpu="AMD, 3.2 ms")], SCENARIO, 0.15)


def test_a_report_of_too_little_says_so() -> None:
    text = report.show([row("stock", seed=1), row("mars", seed=2)], SCENARIO, 0.15)
    assert "no rate has yet been run with one seed for every system" in text
    assert report.latest_scenario([]) is None


def test_a_run_of_which_every_program_failed_does_not_stop_the_report() -> None:
    dead = row("mars", (None, None), ttft_s=((), ()))
    text = report.show([dead, row("stock", (10.0, 20.0))], SCENARIO, 0.15)
    assert "CAREFUL: programs failed under mars" in text
    assert "mars: mean JCT / stock = nan, at most 1: MISSED" in text


def test_the_report_as_json_has_the_same_figures() -> None:
    found = json.loads(report.to_json(three(60, 50, 30), SCENARIO, 0.15))
    (rate,) = found["rates"]
    assert (rate["rate"], rate["seeds"], rate["static"]) == (0.15, [1, 2, 3, 4], "static-8")
    assert rate["times_lower_than"]["mars"]["stock"] == pytest.approx([2, 2, 2])
    assert {target["verdict"] for target in rate["targets"]} == {MET}
    assert rate["systems"]["stock"]["jct_mean_s"] == pytest.approx(60)
    assert {row.cell.purpose for row in three(1, 1, 1)} == {RUN}
