"""The A/B's ratios, their intervals, and what speaks against them."""

import json
import random

import numpy as np
import pytest
from ab import report
from ab.report import Comparison, Run, mean_jct, p99_ttft
from ab.results import Row
from ab_rows import SCENARIO, row

from controlplane.lab.workload.telemetry import Telemetry


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESAMPLES", 200)


def some(mean_s: float, seed: int, programs: int = 40) -> list[float]:
    """Completion times of that mean."""
    rng = random.Random(seed)
    times = [rng.uniform(0.5, 1.5) for _ in range(programs)]
    return [time * mean_s * programs / sum(times) for time in times]


def three(stock_s: float, static_s: float, mars_s: float, *, rate: float = 0.15, seeds: int = 4) -> list[Row]:
    """Stock, a static window and mars at these means; a program is as long under each of them."""
    means = {"stock": stock_s, "static-8": static_s, "mars": mars_s}
    return [
        row(name, some(mean_s, seed), rate=rate, seed=seed)
        for seed in range(1, seeds + 1)
        for name, mean_s in means.items()
    ]


def test_figures_are_those_of_the_programs_and_turns() -> None:
    run = Run(row(jct_s=(10.0, 20.0, None, 40.0), ttft_s=((1.0, 2.0), (3.0,), (), (5.0, 6.0, 7.0))))
    assert mean_jct(run, np.arange(4)) == pytest.approx(70 / 3)
    assert mean_jct(run, np.array([0, 0, 3, 2])) == pytest.approx(20.0)
    assert 6.9 < p99_ttft(run, np.arange(4)) <= 7.0
    one = row("mars", (10.0, 20.0, None), ttft_s=((5.0, 1.0), (7.0, 2.0, 3.0), ()), engine_cpu_s=2.5)
    assert (one.ttft_s_of(50, first=True), one.ttft_s_of(50, first=False)) == (6.0, 2.0)
    assert one.engine_cpu_turn_s == 0.5


def test_a_ratio_of_programs_that_are_all_twice_as_fast_is_sure_and_the_same_again() -> None:
    rows = three(60, 50, 30)
    first, again = (Comparison(rows, SCENARIO, 0.15).over_stock("mars", mean_jct) for _ in range(2))
    assert first is not None and first == again
    assert (first.value, first.low, first.high) == (pytest.approx(0.5), pytest.approx(0.5), pytest.approx(0.5))
    assert Comparison(rows, SCENARIO, 0.15).over_stock("stock", mean_jct) is None


def test_only_seeds_that_every_system_has_are_compared() -> None:
    rows = [*three(60, 50, 30, seeds=2), row("stock", some(900, 3), seed=3)]
    comparison = Comparison(rows, SCENARIO, 0.15)
    assert (comparison.seeds, comparison.seeds_left_out) == ([1, 2], [3])
    assert comparison.mean("stock", "jct_mean_s") == pytest.approx(60)
    assert "seed 3: left out" in report.show(rows, SCENARIO)
    alone = report.show([row("stock", seed=1), row("mars", seed=2)], SCENARIO)
    assert "no rate has yet been run with one seed for every system" in alone


def test_the_table_has_a_row_for_each_rate_and_system_and_the_budgets_verdict() -> None:
    rows = [
        *three(60, 50, 30),
        *three(40, 40, 60, rate=0.2),
        *(row("priority", some(60, n), seed=n) for n in range(1, 5)),
    ]
    text = report.show(rows, SCENARIO)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert {len(row) for row in cells} == {14}
    assert [row[:2] for row in cells[2:]] == [
        *(["0.15", "stock"], ["", "priority"], ["", "static-8"], ["", "mars"]),
        *(["0.2", "stock"], ["", "static-8"], ["", "mars"]),
    ]
    assert (cells[2][-2:], cells[5][-2]) == (["", ""], "0.50 [0.50, 0.50]")
    assert text.endswith("MISSED by mars at 0.2/s: 1.50 [1.50, 1.50]")
    assert "CAREFUL" not in text
    assert report.show(three(60, 50, 61), SCENARIO).endswith("of stock's: met.")
    (found,) = json.loads(report.to_json(three(60, 50, 30), SCENARIO))["rates"]
    assert found["mean_jct_over_stock"]["mars"] == pytest.approx([0.5, 0.5, 0.5])
    assert found["systems"]["stock"]["mean JCT"] == "60.0"


def test_the_report_names_what_speaks_against_its_figures() -> None:
    rows = [
        *(row("stock", seed=seed, others_ratio=0.4, cpu="Intel") for seed in (1, 2, 3)),
        row("mars", (None, None, 30.0, 40.0), seed=1, cpu="AMD, 3.1 ms"),
        row("mars", seed=2, code="one", transform_ms=(2.2, 2.0)),
        row("mars", seed=3, code="two", transform_ms=(2.3, 4.6)),
        row("static-8", seed=3, transform_ms=(2.2, 2.1)),
    ]
    text = report.show(rows, SCENARIO)
    for expected in (
        "2 programs failed",
        "CAREFUL: runs on several machines",
        "CAREFUL: other work took more than 10% of the CPUs during 3 runs",
        "CAREFUL: the machine was slower than for the others (--redo-slow): mars at 0.15/s, seed 3",
        "CAREFUL: runs of several versions of the code: mars",
    ):
        assert expected in text
    dead = row("mars", (None, None), ttft_s=((), ()))
    assert "MISSED by mars at 0.15/s: nan" in report.show([dead, row("stock", (10.0, 20.0))], SCENARIO)


def test_the_latest_scenario_may_be_asked_for_by_its_telemetry() -> None:
    rows = [row("stock", scenario="load-a-none", telemetry=Telemetry.NONE), row("stock")]
    assert report.latest_scenario(rows) == SCENARIO
    assert report.latest_scenario(rows, Telemetry.NONE) == "load-a-none"
    assert report.latest_scenario(rows, Telemetry.TURNS) is report.latest_scenario([]) is None
