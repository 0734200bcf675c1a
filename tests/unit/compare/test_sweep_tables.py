"""What a sweep's rows say: intervals, paired ratios, who wins and who loses, and what a reader must know first."""

import io
from math import inf

import pytest
from rich.console import Console
from sweep_rows import made_up_row, rows_of

from controlplane.lab.compare.rows import Grid, Row, Section
from controlplane.lab.compare.terminal import print_sweep, tables
from controlplane.lab.compare.words import against_best, grid_caveats, headlines, losses, plus_minus, winners
from controlplane.lab.workload.interval import mean_interval


def section_of(rows: list[Row]) -> Section:
    (section,) = Grid(rows).sections
    return section


# Rows together


def test_loads_and_presets_are_in_order() -> None:
    section = section_of(
        rows_of(("penstock", 10.0, [1]), ("zebra", 0.2, [1]), ("autellix", 0.2, [1]), ("fcfs", 2.0, [1]))
    )
    assert section.presets == ["fcfs", "autellix", "penstock", "zebra"]
    assert [load.title for load in section.loads] == ["0.2/s", "2/s", "10/s"]


def test_closed_arrivals_are_by_concurrency_and_apart_from_open_ones() -> None:
    rows = [
        *(made_up_row("penstock", 1, float(n), f"closed:{n}") for n in (16, 8)),
        *rows_of(("penstock", 0.1, [5])),
    ]
    titles = {section.title: [load.title for load in section.loads] for section in Grid(rows).sections}
    assert titles == {"w on h, closed arrivals": ["8 at once", "16 at once"], "w on h": ["0.1/s"]}
    assert "Little's law" in " ".join(grid_caveats(Grid(rows)))


def test_a_ratio_is_of_seeds_that_both_have() -> None:
    section = section_of(rows_of(("fcfs", 0.1, [10, 100, 1000]), ("penstock", 0.1, [5, 50])))
    (load,) = section.loads
    ratio = section.ratio("penstock", "fcfs", load, "jct_mean_s")
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((0.5, 0.5, 0.5))
    assert section.ratio("penstock", "continuum", load, "jct_mean_s") is None


def test_a_run_of_which_no_program_ended_is_in_no_mean() -> None:
    without = made_up_row("penstock", 2, 0.0, programs_ended=0, programs_failed=10)
    rows = [*rows_of(("penstock", 0.1, [30])), without]
    section = section_of(rows)
    (load,) = section.loads
    found = section.interval("penstock", load, "jct_mean_s")
    assert found is not None
    assert (found.value, found.is_known) == (30.0, False)
    assert section.values("penstock", load, "programs_failed") == {"1": 0.0, "2": 10.0}
    assert "Programs failed, and are in no time figure: penstock 10." in grid_caveats(Grid(rows))


def test_rows_of_other_parameters_are_left_out_and_told() -> None:
    rows = [
        *rows_of(("fcfs", 0.1, [10]), digest="old-fcfs"),
        *rows_of(("penstock", 0.1, [10]), digest="old-ours"),
        *rows_of(("penstock", 0.1, [20]), digest="new-ours"),
    ]
    grid = Grid(rows)
    assert (grid.outdated, grid.presets) == (2, ["penstock"])
    assert grid_caveats(grid)[0].startswith("2 rows of other parameters")
    only_its_policies = [
        *rows_of(("fcfs", 0.1, [10]), digest="same-fcfs"),
        *rows_of(("penstock", 0.1, [10]), digest="same-slow"),
        *rows_of(("penstock", 0.1, [20]), digest="same-fast"),
    ]
    assert (Grid(only_its_policies).outdated, Grid(only_its_policies).presets) == (1, ["fcfs", "penstock"])


# In words


@pytest.mark.parametrize(
    ("values", "figure", "text"),
    [
        ([10.0, 12.0, 14.0], "jct_mean_s", "12.0 ± 5.0"),
        ([1210.0, 1212.0, 1214.0], "jct_mean_s", "1,212.0 ± 5.0"),
        ([1000.0, 2000.0], "jct_mean_s", "1,500 ± 6,353"),
        ([0.91, 0.92], "cache_hit_ratio", "91.5% ± 6.4"),
        ([7.0], "jct_mean_s", "7"),
        ([123456.0], "recomputed_tokens", "123,456"),
        ([3.0, 3.0], "retractions", "3"),
    ],
)
def test_means_are_written_to_two_digits_of_their_interval(values: list[float], figure: str, text: str) -> None:
    assert plus_minus(mean_interval(values), figure) == text
    assert plus_minus(None, figure) == "–"


def test_an_interval_is_cut_where_the_figure_cannot_be_and_then_both_ends_are_written() -> None:
    assert plus_minus(mean_interval([1000.0, 2000.0]).within(0.0, inf), "ttft_p95_s") == "1,500 (0 to 7,853)"
    assert plus_minus(mean_interval([0.9, 0.99]).within(0.0, 1.0), "cache_hit_ratio") == "94% (37 to 100)"


def rows_with_a_loss() -> list[Row]:
    """penstock wins at 0.4, is even at 0.2, loses to continuum at 0.1, and to it within noise at 0.3."""
    return rows_of(
        *(("fcfs", rate, [100.0, 110.0, 120.0]) for rate in (0.1, 0.2, 0.3, 0.4)),
        ("continuum", 0.1, [50, 55, 60]),
        ("penstock", 0.1, [60, 66, 72.01]),
        ("continuum", 0.2, [50, 55, 60]),
        ("penstock", 0.2, [50.5, 55.5, 60.5]),
        ("continuum", 0.3, [50, 55, 60]),
        ("penstock", 0.3, [40, 55, 90]),
        ("continuum", 0.4, [50, 55, 60]),
        ("penstock", 0.4, [25, 27.5, 30.1]),
    )


def test_wins_ties_and_losses_are_counted() -> None:
    said = " ".join(headlines(Grid(rows_with_a_loss()), "fcfs"))
    assert "Of 4 cases" in said
    assert "lowest mean JCT of all presets in 1, is not told from the best of the others in 2" in said
    assert "and is beaten in 1." in said
    assert "Against fcfs its mean JCT is 0.25 [0.25, 0.25] times as long at best (w on h, 0.4/s)" in said


def test_where_the_default_loses_is_said_with_its_noise() -> None:
    lost = losses(Grid(rows_with_a_loss()))
    assert lost[0] == "w on h, 0.1/s: 1.20 [1.20, 1.20] times continuum's"
    assert lost[1].startswith("w on h, 0.3/s: 1.06 [")
    assert lost[1].endswith("times continuum's, within noise")
    assert len(lost) == 2


def test_for_a_figure_whose_higher_end_is_better_less_is_a_loss() -> None:
    (match,) = against_best(Grid(rows_of(("fcfs", 0.1, [20, 22]), ("penstock", 0.1, [80, 88]))), "cache_hit_ratio")
    assert (match.other, match.ratio.value < 0.5, match.standing) == ("fcfs", True, "worse")


def test_winners_come_with_whom_they_are_not_told_from() -> None:
    (line,) = winners(Grid(rows_with_a_loss()))
    assert line == (
        "w on h: continuum at 0.1/s, 0.2/s (not told from penstock), 0.3/s (not told from penstock); "
        "penstock at 0.4/s."
    )


# What to know first


def test_one_seed_is_told_and_so_are_seeds_that_differ() -> None:
    assert "One seed" in grid_caveats(Grid(rows_of(("penstock", 0.1, [1.0]))))[0]
    assert "Means over 3 seeds, with 95% intervals by Student's t" in grid_caveats(Grid(rows_with_a_loss()))[0]
    one_each = [*rows_of(("penstock", 0.1, [5])), made_up_row("penstock", 2, 6.0, "poisson:0.2")]
    assert any("One seed was run of each case" in said for said in grid_caveats(Grid(one_each)))
    differing = rows_of(("penstock", 0.1, [1.0, 2.0]), ("fcfs", 0.1, [1.0]))
    assert "1 to 2 seeds (CAREFUL: they differ)" in grid_caveats(Grid(differing))[0]


def test_several_versions_of_the_code_are_told() -> None:
    rows = [*rows_of(("penstock", 0.1, [1.0])), *rows_of(("fcfs", 0.1, [1.0]), code="0ther", revision="4d5e6f+")]
    (careful, *_) = grid_caveats(Grid(rows))
    assert careful.startswith(
        "CAREFUL: runs of several versions of the code are mixed: 1a2b3c (1 runs), 4d5e6f+ (1"
    )
    same_code = [*rows_of(("penstock", 0.1, [1.0])), *rows_of(("fcfs", 0.1, [1.0]), revision="4d5e6f")]
    assert "CAREFUL" not in " ".join(grid_caveats(Grid(same_code))), "a commit that changes no decision"


def test_runs_that_went_wrong_are_told_with_their_reasons() -> None:
    rows = [*rows_of(("penstock", 0.1, [1.0, 2.0])), made_up_row("penstock", 3, error="stuck")]
    assert "1 runs went wrong and are in no figure: stuck (1)." in grid_caveats(Grid(rows))


# On a terminal


def test_a_table_has_intervals_and_one_of_ratios_follows_it() -> None:
    (title, means), (over, ratios) = tables(section_of(rows_with_a_loss()), width=200)
    assert (title, over) == ("JCT mean (s): w on h", "JCT mean (s): w on h, over fcfs's")
    columns = [list(column.cells) for column in means.columns]
    assert columns[0] == ["fcfs", "continuum", "penstock"]
    assert ["110 ± 25" in str(text) for text in columns[1]] == [True, False, False]
    assert ["*" in str(text) for text in columns[1]] == [False, True, False]
    assert ["*" in str(text) for text in columns[4]] == [False, False, True]
    assert list(ratios.columns[0].cells) == ["continuum", "penstock"]
    assert len(list(tables(section_of(rows_of(("penstock", 0.1, [1.0]))), baseline="fcfs"))) == 1


def test_all_of_it_is_printed() -> None:
    text = io.StringIO()
    print_sweep(Grid(rows_with_a_loss()), Console(file=text, width=160))
    for words in ("JCT mean (s): w on h", "Of 4 cases", "Where penstock has a higher", "Note: Means over 3 seeds"):
        assert words in text.getvalue()
    many = rows_of(
        *(row for n in range(1, 20) for row in (("fcfs", n / 10, [1.0, 1.1]), ("penstock", n / 10, [2.0, 2.2])))
    )
    text = io.StringIO()
    print_sweep(Grid(many), Console(file=text, width=160))
    assert "and at 7 loads more" in text.getvalue()
