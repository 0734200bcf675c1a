"""The HTML report of a sweep: it stands alone, shows every preset at every load, and says what it cannot draw."""

import time
from pathlib import Path

import pytest
from made_up_runs import assert_stands_alone
from sweep_rows import csv_of, made_up_row, rows_of
from typer.testing import CliRunner

from controlplane.cli.app import app
from controlplane.core.model.errors import ConfigError
from controlplane.core.policies.presets import PRESETS
from controlplane.lab.compare.html import sweep_html, write
from controlplane.lab.compare.markdown import markdown
from controlplane.lab.compare.plots import lines_figure
from controlplane.lab.compare.rows import Grid, Row
from controlplane.lab.compare.style import colour_of, marks_of, plot_style


def rows(seeds: int = 3) -> list[Row]:
    return rows_of(
        *(
            (preset, rate, [(40 + 3 * number) * (1 + seed / 50) * (1 + rate) for seed in range(seeds)])
            for number, preset in enumerate(PRESETS)
            for rate in (0.1, 0.2, 0.4)
        )
    )


@pytest.fixture(scope="module")
def page() -> str:
    return sweep_html(rows(), baseline="fcfs", command=["penstock", "sweep-report", "two words.csv"])


def test_it_stands_alone_shows_every_preset_and_says_who_wins(page: str) -> None:
    assert_stands_alone(page)
    assert page.count("<svg") == 1
    for preset in PRESETS:
        assert page.count(f"</span>{preset}</td>") == 3, preset
    assert "Of 3 cases" in page
    assert "times fcfs&#39;s" in page
    assert "w on h: fcfs at 0.1/s" in page
    assert 'class="worse"' in page
    assert "1a2b3c (code c0de)" in page
    assert "penstock sweep-report &#39;two words.csv&#39;" in page
    assert page == sweep_html(rows(), baseline="fcfs", command=["penstock", "sweep-report", "two words.csv"])


def test_lines_are_told_by_more_than_their_colour() -> None:
    names = [*PRESETS, "mars, no admission", "mars, no coordinator"]
    assert len({(marks_of(names)[name], colour_of(name)) for name in names}) == len(names)


def test_lines_carry_their_error_bars_and_the_legend_names_them() -> None:
    (section,) = Grid(rows()).sections
    with plot_style():
        figure = lines_figure(section, ["fcfs", "mars"], "fcfs")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fcfs", "mars"]
    mean, *_, throughput = figure.axes
    assert (mean.get_title(loc="left"), throughput.get_title(loc="left")) == ("Mean JCT", "Throughput")
    assert [label.get_text() for label in mean.get_xticklabels()] == ["0.1", "0.2", "0.4"]
    (bars, _) = (container.lines[2][0].get_segments() for container in mean.containers)
    assert all(top > bottom for (_, bottom), (_, top) in bars)


def test_a_single_seed_is_drawn_without_bars_and_closed_arrivals_by_concurrency() -> None:
    (section,) = Grid([made_up_row("mars", 1, 9.0 * n, f"closed:{n}") for n in (8, 4)]).sections
    figure = lines_figure(section, ["mars"], "fcfs")
    assert figure.axes[0].get_xlabel() == "programs at once"
    assert [axes.get_visible() for axes in figure.axes] == [True] * 5 + [False], "there is no ratio to fcfs"
    assert "w on h, closed arrivals" in sweep_html([made_up_row("mars", 1, 9.0, "closed:4")], baseline="mars")


def test_thousands_of_rows_take_seconds() -> None:
    many = [
        made_up_row(preset, seed, 40 + seed, f"poisson:{rate}", workload=workload)
        for workload in ("a", "b")
        for preset in PRESETS
        for rate in (0.1, 0.2, 0.3, 0.4, 0.5)
        for seed in range(50)
    ]
    assert len(many) >= 5000
    began_s = time.process_time()
    assert f"{len(many):,} simulated runs" in sweep_html(many, baseline="fcfs")
    assert time.process_time() - began_s < 30


def test_what_cannot_be_drawn_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a successful run: stuck"):
        sweep_html([made_up_row("mars", error="stuck")], baseline="mars")
    with pytest.raises(ConfigError, match=r"--baseline: expected one of fcfs, .*, got 'marz'"):
        sweep_html(rows(1), baseline="marz")
    with pytest.raises(ConfigError, match="cannot write the report"):
        write("page", tmp_path / "no" / "page.html")


def test_the_command_writes_each_form(tmp_path: Path) -> None:
    path = csv_of(tmp_path, rows(2))

    def told(*options: str) -> str:
        done = CliRunner().invoke(app, ["sweep-report", str(path), *options])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert told("--markdown") == markdown(Grid(rows(2)))
    assert told("--regret", "--markdown").startswith("# Penstock: regrets of ")
    assert list(tmp_path.iterdir()) == [path]
    told("--baseline", "continuum")
    assert "over continuum&#39;s" in (tmp_path / "out.html").read_text()
    told("--regret", "-o", str(tmp_path / "regret.html"))
    assert (tmp_path / "regret.html").read_text().startswith("<!doctype html>")
    wrong = CliRunner().invoke(app, ["report", str(path)], env={"COLUMNS": "200"})
    assert wrong.exit_code == 2
    assert "penstock sweep-report" in wrong.output
