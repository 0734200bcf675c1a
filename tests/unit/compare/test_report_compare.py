"""What the comparison says: best values, ratios, and where the control plane does not help."""

import io
from dataclasses import replace

from made_up_runs import made_up_run
from rich.console import Console

from controlplane.lab.compare.beside import outcome, rows_beside
from controlplane.lab.compare.rows import column_names, group_runs, lines, lower_is_better
from controlplane.lab.compare.terminal import comparison_tables, print_comparison
from controlplane.lab.compare.words import run_caveats, verdict
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.summary import ROWS


def with_mean(run: RunResult, mean_s: float) -> RunResult:
    return replace(run, summary=replace(run.summary, jct_mean_s=mean_s))


def runs_at(rate: float, fcfs_s: float, ours_s: float) -> list[RunResult]:
    return [
        with_mean(made_up_run("penstock", rate, slowdown=2, programs=5), ours_s),
        with_mean(made_up_run("fcfs", rate, slowdown=2, programs=5), fcfs_s),
    ]


def test_groups_come_by_rate_with_the_baseline_first_and_the_best_values() -> None:
    group, later = group_runs([*runs_at(0.3, 10, 5), *runs_at(0.1, 200, 150)])
    assert (group.rate, later.rate) == (0.1, 0.3)
    assert column_names(group) == ["fcfs", "penstock"]
    by_label = {row.label: row.cells for row in lines(group)}
    assert [cell.text for cell in by_label["mean JCT vs fcfs"]] == ["1.00x", "0.75x"]
    assert [cell.best for cell in by_label["mean JCT vs fcfs"]] == [False, True]
    assert [cell.best for cell in by_label["JCT mean (s)"]] == [False, True]
    assert not any(cell.best for cell in by_label["programs ended"])


def test_what_was_not_measured_is_unknown_and_not_zero() -> None:
    run = made_up_run("fcfs", 0.1, slowdown=2, programs=3)
    run = replace(run, programs=tuple(replace(p, ideal_ns=0) for p in run.programs))
    (group,) = group_runs([run])
    texts = {row.label: row.cells[0].text for row in lines(group)}
    assert texts["goodput, JCT <= 2x ideal (programs/s)"] == "–"
    assert texts["Jain index of slowdowns"] == "–"

    def cells(*ratios: float) -> list[tuple[str, bool]]:
        runs = runs_at(0.1, 200, 150)
        runs = [
            replace(run, summary=replace(run.summary, tool_slowdown_ratio=ratio))
            for run, ratio in zip(runs, ratios, strict=True)
        ]
        (group,) = group_runs(runs)
        (row,) = (row for row in lines(group) if row.label == "tool time / without contention")
        return [(cell.text, cell.best) for cell in row.cells]

    assert cells(1.5, 4.0) == [("4.00x", False), ("1.50x", True)]  # the baseline comes first
    assert cells(0.0, 0.0) == [("–", False), ("–", False)]


def test_the_verdict_names_the_loads_at_which_the_default_does_not_help() -> None:
    groups = group_runs([*runs_at(0.1, 100, 110), *runs_at(0.2, 300, 200)])
    assert verdict(groups) == (
        "penstock is NOT better than fcfs in mean JCT at 0.1 programs/s (1.10x); "
        "penstock is better at 0.2 programs/s (0.67x)."
    )
    assert "at every load measured" in verdict(group_runs(runs_at(0.2, 300, 200)))
    even = verdict(group_runs([*runs_at(0.1, 1000, 1019), *runs_at(0.2, 1000, 981)]))
    assert even == "penstock and fcfs are even (within 2%) at 0.1 programs/s (1.02x), 0.2 programs/s (0.98x)."
    assert verdict(group_runs([made_up_run("mori", 0.1, slowdown=2, programs=3)])) == ""


def test_what_limits_a_comparison_is_said() -> None:
    failing = made_up_run("fcfs", 0.1, slowdown=2, programs=5, failed=2)
    cut = replace(made_up_run("penstock", 0.1, slowdown=2, programs=5), cut=True)
    closed = made_up_run("penstock", 0.0, slowdown=2, programs=5)
    said = " ".join(run_caveats(group_runs([failing, cut, closed])))
    assert "2 of 5 programs failed" in said
    assert "stopped before every program had ended" in said
    assert "Little's law" in said


def test_runs_of_different_telemetry_are_named_as_such() -> None:
    full, none = (
        replace(run, facts=run.facts | {"telemetry": told})
        for run, told in zip(runs_at(0.1, 100, 80), ("full", "none"), strict=True)
    )
    (table,) = comparison_tables([full, none])
    assert table.caption == "* best of its load; telemetry full, none"
    (caveat,) = run_caveats(group_runs([full, none]))
    assert caveat == "The runs differ in what their programs told (telemetry full, none)."
    same = [full, replace(none, facts=full.facts)]
    assert comparison_tables(same)[0].caption == "* best of its load; telemetry full"
    assert run_caveats(group_runs(same)) == []
    assert comparison_tables(runs_at(0.1, 100, 80))[0].caption == "* best of its load", "older runs do not say"


def test_a_table_that_is_too_wide_is_split_between_rates_and_between_runs() -> None:
    runs = [*runs_at(0.1, 10, 5), *runs_at(0.2, 10, 5), *runs_at(0.3, 10, 5)]
    assert len(comparison_tables(runs, width=200)) == 1
    assert len(comparison_tables(runs, width=70)) == 3
    assert comparison_tables([]) == []
    names = ("fcfs", "penstock", "continuum", "autellix", "infercept")
    runs = [made_up_run(name, 0.1, slowdown=2, programs=3) for name in names]
    first, second, third = comparison_tables(runs, width=70)
    heads = [[str(column.header).split("\n")[-1] for column in table.columns] for table in (first, second, third)]
    assert heads == [["", "fcfs", "penstock"], ["", "continuum", "autellix"], ["", "infercept"]]
    assert len({table.row_count for table in (first, second, third)}) == 1


def test_live_runs_stand_above_what_was_predicted_of_them_and_no_figure_is_cut() -> None:
    live = [run for rate in (0.05, 0.12) for run in runs_at(rate, 12_345, 6_789)]
    predicted = [run for rate in (0.05, 0.08, 0.12) for run in runs_at(rate, 10_000, 8_000)]
    output = io.StringIO()
    (table,) = comparison_tables(live, width=80, rows=rows_beside(predicted))
    Console(file=output, width=80).print(table)
    said = output.getvalue()
    rows = {
        label.strip(): cells for label, *cells in (line.strip("│").split("│") for line in said.splitlines()[4:])
    }
    assert len(rows) - 2 == 8, "the table's end and caption aside"
    assert [cell.strip(" *") for cell in rows["mean JCT (s)"]] == ["12345.0", "6789.0"] * 2
    assert [cell.strip(" *") for cell in rows["mean JCT vs fcfs, simulated"]] == ["1.00x", "0.80x"] * 2
    assert "…" not in said
    (alone,) = comparison_tables(live[:1], rows=rows_beside([]))
    assert alone.row_count == 4, "neither a ratio nor what was predicted"


def test_the_outcome_is_that_of_the_highest_rate_first() -> None:
    first, second = outcome([*runs_at(0.05, 100, 110), *runs_at(0.12, 300, 150)])
    assert first.startswith("At 0.12 programs/s a program takes 150 s with penstock and 300 s with fcfs")
    assert "mean JCT 0.50x, better. Cache hit rate" in first
    assert second == "At 0.05 programs/s: mean JCT 1.10x, NOT better."
    assert outcome([made_up_run("fcfs", 0.1, slowdown=2, programs=3)]) == [], "the other one had no time to run"


def test_the_printed_comparison_shows_ratio_verdict_and_marks() -> None:
    output = io.StringIO()
    print_comparison(runs_at(0.2, 300, 200), Console(file=output, width=120))
    text = output.getvalue()
    assert "0.67x *" in text
    assert "0.2/s" in text
    assert "programs failed" not in text, "it would be a row of zeros"
    assert "lower mean JCT than fcfs at every load measured" in text


def test_whose_higher_end_is_the_better_one_is_said_figure_by_figure() -> None:
    """A time or a loss that is taken for a rate would get the star for the worst."""
    within = [f"ttft_within_{n}s_ratio" for n in (10, 30, 60)]
    goodput = [f"goodput_{n}x_per_s" for n in (1, 2, 3)]
    rates = {"steps_per_min", "output_tokens_per_s", "cache_hit_ratio", "jain_index", "pool_decode_ratio"}
    assert {name for name, _, _ in ROWS if lower_is_better(name) is False} == {*rates, *within, *goodput}
