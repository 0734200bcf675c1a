"""The paper's tables: what is said of theirs and ours, and that each cell can be run."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import paper_tables
import pytest
from paper_tables import STUDIES, Figures


def row(*means: float, hits: Sequence[float] = ()) -> tuple[Figures, ...]:
    shares = hits or [0.9] * len(means)
    return tuple(Figures(mean=mean, p95=2 * mean, hits=share) for mean, share in zip(means, shares, strict=True))


@pytest.mark.parametrize(
    ("means", "said"),
    [
        ((1.0, 2.0, 3.0), "up"),
        ((3.0, 2.0, 1.0), "down"),
        ((1.0, 1.005, 1.0), "flat"),
        ((1.0, 1.005, 2.0), "up"),
        ((1.0, 2.0, 1.0), "both"),
    ],
)
def test_which_way_a_row_goes(means: tuple[float, ...], said: str) -> None:
    assert paper_tables.direction(row(*means)) == said


def test_pairs_within_a_hundredth_are_not_ordered() -> None:
    rows = {"a": row(100.0, 100.0), "b": row(100.9, 102.0)}
    assert paper_tables.orders(rows, 2) == [[], [("a", "b")]]


def test_the_agreement_counts_what_the_paper_orders() -> None:
    study = STUDIES[6]
    alike = paper_tables.agreement(study, study.theirs)
    assert alike[0] == "  order: 4 of the paper's 4 pairs alike, 0 the other way round, the others within 1%"
    assert "  mean JCT along JPS, caching off: up there, up here" in alike
    assert "  caching off beside caching on: -96.30 to -96.30 points of hits" in alike[-1]
    assert "  mean JCT: +0 to +0% off the paper's, median +0%, MAPE 0%" in alike
    half = {
        series: [replace(cell, mean=cell.mean / 2, hits=cell.hits - 0.01) for cell in cells]
        for series, cells in study.theirs.items()
    }
    off = paper_tables.agreement(study, half)
    assert "  mean JCT: -50 to -50% off the paper's, median -50%, MAPE 50%" in off
    assert "  hits: -1.0 to -1.0 points off the paper's, median -1.0" in off
    turned = dict(zip(study.theirs, reversed(study.theirs.values()), strict=True))
    against = paper_tables.agreement(study, turned)
    assert "0 of the paper's 4 pairs alike, 4 the other way round" in against[0]
    assert "  at JPS 0.04: caching on is faster than caching off there, slower here" in against


@pytest.mark.parametrize("number", STUDIES)
def test_every_cell_can_be_run(number: int) -> None:
    study = STUDIES[number]
    for theirs in study.theirs.values():
        assert len(theirs) == len(study.points)
    for series in study.theirs:
        figures = paper_tables.run(number, series, study.points[0], seed=1, programs=1)
        assert figures.p95 >= figures.mean > 0


def test_a_cell_is_the_median_over_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_tables, "run", lambda number, series, point, seed, programs: row(point * seed)[0])
    with ThreadPoolExecutor(1) as workers:
        found = paper_tables.measure(6, (1, 2, 9), 2, workers)
    for cells in found.values():
        assert [cell.mean for cell in cells] == pytest.approx([2 * point for point in STUDIES[6].points])
