"""How far presets are from the best, the clairvoyant and the bound; and where the subject loses."""

import re
from pathlib import Path

import pytest
from sweep_rows import made_up_row, rows_of

from controlplane.core.model.errors import ConfigError
from controlplane.lab.compare.cases import cases
from controlplane.lab.compare.demands import DemandResult, answers
from controlplane.lab.compare.html import write_regret
from controlplane.lab.compare.markdown import regret_markdown
from controlplane.lab.compare.regret import standings
from controlplane.lab.compare.rows import Grid, Row

KNOWN = {"saturation_rate": 1.0, "bound_jct_mean_s": 20.0}
# Below saturation penstock costs 4% of fcfs; above it, it is 20% behind mori and twice the clairvoyant.
ROWS = [
    *rows_of(("fcfs", 0.5, (40, 44)), ("mori", 0.5, (41, 45)), **KNOWN),
    *rows_of(("penstock", 0.5, (41.6, 45.76)), ("clairvoyant", 0.5, (40, 44)), **KNOWN),
    *rows_of(("fcfs", 2, (200, 220)), ("mori", 2, (100, 110)), **KNOWN),
    *rows_of(("penstock", 2, (120, 132)), ("clairvoyant", 2, (60, 66)), **KNOWN),
]


def test_the_clairvoyant_is_not_the_best_that_a_node_can_run() -> None:
    light, heavy = cases(Grid(ROWS))
    assert (light.best, heavy.best) == ("fcfs", "mori")
    assert (light.load_ratio, heavy.load_ratio) == (0.5, 2.0)
    regret = heavy.over("penstock", "clairvoyant")
    assert regret is not None
    assert regret.value == pytest.approx(2.0)
    bound = heavy.over_bound("clairvoyant")
    assert bound is not None
    assert bound.value == pytest.approx((60 * 66) ** 0.5 / 20)
    assert heavy.over("penstock", "penstock") is None


def asked(rows: list[Row], title: str) -> DemandResult:
    """The one answer whose title begins so."""
    (found,) = [answer for answer in answers(cases(Grid(rows)), "fcfs") if answer.title.startswith(title)]
    return found


def test_below_saturation_the_baseline_is_the_goal_and_everywhere_the_best() -> None:
    light = asked(ROWS, "mean JCT over fcfs's")
    assert [(miss.other, miss.is_sure) for miss in light.missed] == [("fcfs", True)]
    assert light.ratios == pytest.approx([1.04])
    best = asked(ROWS, "mean JCT over that of the best")
    assert [miss.text.split(" [")[0] for miss in best.missed] == ["w on h, 2/s, load 2: 1.20"]
    assert (best.ratios, best.worst) == (pytest.approx([1.04, 1.2]), pytest.approx(1.2))
    regret = asked(ROWS, "mean JCT over the clairvoyant's")
    assert ([round(miss.ratio.value, 2) for miss in regret.missed], round(regret.median, 3)) == ([2.0], 1.52)


def test_a_load_whose_saturation_is_not_known_is_not_below_it() -> None:
    rows = rows_of(("fcfs", 0.5, (40,)), ("mori", 0.5, (30,)), ("penstock", 0.5, (42,)), saturation_rate=0.0)
    assert not any("below saturation" in answer.title for answer in answers(cases(Grid(rows)), "fcfs"))
    assert [miss.other for miss in asked(rows, "mean JCT over that of the best").missed] == ["mori"]
    closed = [made_up_row(name, arrival="closed:4", **KNOWN) for name in ("fcfs", "penstock")]
    assert cases(Grid(closed))[0].load_ratio == 0.0


def test_where_it_is_the_best_itself_its_ratio_is_one() -> None:
    rows = rows_of(("fcfs", 2, (200,)), ("penstock", 2, (100,)), **KNOWN)
    assert asked(rows, "mean JCT over that of the best").ratios == [1.0]
    assert asked(rows, "mean JCT over that of the best").missed == []


def test_tails_and_fairness_are_asked_of_the_best_mean_and_of_the_best_there_is() -> None:
    """mori has the best mean; fcfs is fairer than mori and has the lower p95."""
    figures = {
        "fcfs": {"jct_p95_s": 100, "jain_index": 0.9, "makespan_s": 500, "ttft_p99_s": 3},
        "mori": {"jct_p95_s": 150, "jain_index": 0.4, "makespan_s": 450, "ttft_p99_s": 1},
        "penstock": {"jct_p95_s": 160, "jain_index": 0.5, "makespan_s": 520, "ttft_p99_s": 7},
    }
    times = {"fcfs": 80.0, "mori": 50.0, "penstock": 51.0}
    rows = [made_up_row(name, jct_s=times[name], arrival="poisson:2", **KNOWN, **figures[name]) for name in figures]
    found = {
        answer.title: [round(miss.ratio.value, 2) for miss in answer.missed]
        for answer in answers(cases(Grid(rows)), "fcfs")
    }
    assert found["p95 of JCT over that of the preset with the best mean"] == []
    assert found["p95 of JCT over the least of any preset"] == [1.6]
    assert found["Jain's index over that of the preset with the best mean"] == []
    assert found["Jain's index over the greatest of any preset"] == [0.56]
    assert found["makespan over fcfs's"] == [1.04]
    assert found["p99 of TTFT over fcfs's"] == [2.33]
    fair = asked(rows, "Jain's index over the greatest")
    assert (fair.demand.words, fair.missed[0].text) == (
        "≥ 0.9",
        "w on h, 2/s, load 2: 0.56 times fcfs's, of one seed",
    )


def test_standings_are_medians_and_worst() -> None:
    fcfs, ours, clairvoyant = standings(cases(Grid(ROWS)), ["fcfs", "penstock", "clairvoyant"], "fcfs")
    assert (fcfs.over_baseline, clairvoyant.regret) == (None, None)
    assert ours.over_best == pytest.approx((1.12, 1.2))
    assert ours.regret == pytest.approx((1.52, 2.0))
    assert ours.worst == "w on h, 2/s, load 2"
    assert ours.cases == 2


def test_telemetries_are_sections_of_their_own() -> None:
    rows = [*rows_of(("penstock", 1, (10,)), telemetry="none"), *rows_of(("penstock", 1, (9,)), telemetry="full")]
    titles = [section.title for section in Grid(rows).sections]
    assert titles == ["w on h, telemetry none", "w on h, telemetry full"]
    assert [section.title for section in Grid(rows[:1]).sections] == ["w on h"]


def test_the_page_is_markdown_or_html(tmp_path: Path) -> None:
    grid = Grid(ROWS)
    text = regret_markdown(grid, "fcfs")
    assert re.search(r"\| penstock \| 2 \| 0.8\d, 1.04 \| 1.1\d, 1.20 \| 1.5\d, 2.00 \|", text)
    assert "- w on h, 2/s, load 2: 1.20 [" in text
    assert re.search(r"\| mean JCT over fcfs's, below saturation \| ≤ 1.03 \| 1 of 1 \| 1.04 \| 1.04 \|", text)
    assert "## Where penstock loses: mean JCT over that of the best preset\n" in text
    assert re.search(r"\| 2/s \(2\) \| mori \(best\) \| 105 ± \d+ \| 0.50", text)
    write_regret(grid, tmp_path / "page.html", baseline="fcfs")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<table") == 3
    assert "http" not in page
    with pytest.raises(ConfigError, match="needs a successful run"):
        regret_markdown(Grid([]), "fcfs")
