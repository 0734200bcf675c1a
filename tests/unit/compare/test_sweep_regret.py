"""How far presets are from the best, the clairvoyant and the bound; and where the subject loses."""

import re
from pathlib import Path

import pytest
from sweep_rows import made_up_row, rows_of
from typer.testing import CliRunner

from controlplane.cli.app import app
from controlplane.core.errors import ConfigError
from controlplane.lab.compare.html import write_regret
from controlplane.lab.compare.markdown import regret_markdown
from controlplane.lab.compare.regret import cases, losses, standings
from controlplane.lab.compare.rows import Grid
from controlplane.lab.sweep import results

KNOWN = {"saturation_rate": 1.0, "bound_jct_mean_s": 20.0}
# Below saturation penstock costs 5% of fcfs; above it, it is 20% behind mori and twice the clairvoyant.
ROWS = [
    *rows_of(("fcfs", 0.5, (40, 44)), ("mori", 0.5, (41, 45)), **KNOWN),
    *rows_of(("penstock", 0.5, (42, 46.2)), ("clairvoyant", 0.5, (40, 44)), **KNOWN),
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


def test_below_saturation_the_baseline_is_the_goal_and_above_it_the_best() -> None:
    found = losses(cases(Grid(ROWS)), "penstock", "fcfs")
    assert [(loss.other, round(loss.ratio.value, 2)) for loss in found] == [("mori", 1.2), ("fcfs", 1.05)]
    assert found[0].text.startswith("w on h, 2/s, load 2: 1.20 [")
    assert losses(cases(Grid(ROWS)), "mori", "fcfs") == []


def test_a_load_whose_saturation_is_not_known_counts_as_heavy() -> None:
    rows = rows_of(("fcfs", 0.5, (40,)), ("mori", 0.5, (30,)), ("penstock", 0.5, (32,)), saturation_rate=0.0)
    assert [loss.other for loss in losses(cases(Grid(rows)), "penstock", "fcfs")] == ["mori"]
    closed = [made_up_row(name, arrival="closed:4", **KNOWN) for name in ("fcfs", "penstock")]
    assert cases(Grid(closed))[0].load_ratio == 0.0


def test_standings_are_medians_and_worst() -> None:
    fcfs, ours, clairvoyant = standings(cases(Grid(ROWS)), ["fcfs", "penstock", "clairvoyant"], "fcfs")
    assert (fcfs.over_baseline, clairvoyant.regret) == (None, None)
    assert ours.over_best == pytest.approx((1.125, 1.2))
    assert ours.regret == pytest.approx((1.525, 2.0))
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
    assert re.search(r"\| penstock \| 2 \| 0.8\d, 1.05 \| 1.1\d, 1.20 \| 1.5\d, 2.00 \|", text)
    assert "- w on h, 2/s, load 2: 1.20 [" in text
    assert re.search(r"\| 2/s \(2\) \| mori \(best\) \| 105 ± \d+ \| 0.50", text)
    write_regret(grid, tmp_path / "page.html", baseline="fcfs")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<table") == 2
    assert "http" not in page
    with pytest.raises(ConfigError, match="needs a successful run"):
        regret_markdown(Grid([]), "fcfs")


def test_the_command_writes_either(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    lines = [",".join(results.COLUMNS), *(",".join(row[name] for name in results.COLUMNS) for row in ROWS)]
    path.write_text("\n".join(lines) + "\n")
    told = CliRunner().invoke(app, ["sweep-report", str(path), "--regret", "--markdown"])
    assert told.stdout.startswith("# Penstock: regrets of 16 simulated runs")
    written = CliRunner().invoke(app, ["sweep-report", str(path), "--regret", "-o", str(tmp_path / "r.html")])
    assert written.exit_code == 0, written.output
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
