"""A sweep's tables as Markdown."""

from sweep_rows import made_up_row, rows_of

from controlplane.lab.compare.markdown import markdown
from controlplane.lab.compare.rows import UNKNOWN, Grid


def test_mean_jct_at_every_load_then_all_figures_at_the_last_but_one() -> None:
    rows = rows_of(
        ("fcfs", 0.1, [50, 52]), ("fcfs", 0.2, [90, 94]), ("mars", 0.1, [51, 53]), ("mars", 0.2, [60, 62])
    )
    assert markdown(Grid(rows)).splitlines() == [
        "**w on h**",
        "",
        "| programs/s | 0.1 | 0.2 |",
        "| --- | ---: | ---: |",
        "| `fcfs` | **51 ± 13** | 92 ± 25 |",
        "| `mars` | 52 ± 13 | **61 ± 13** |",
        "",
        "**w on h, 0.1 programs/s**",
        "",
        "| preset | JCT mean (s) | JCT p95 (s) | TTFT mean (s) | p99 | steps/min | tok/s | hit rate "
        "| goodput 1x, 2x, 3x (programs/min) | recompute | caching |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| `fcfs` | 51 ± 13 | 102 | 1.0 | 1 | 1 | 1 | 0.28 | 60.00, 60.00, 60.00 | 10% | 30% |",
        "| `mars` | 52 ± 13 | 104 | 1.0 | 1 | 1 | 1 | 0.28 | 60.00, 60.00, 60.00 | 10% | 30% |",
    ]


def test_one_load_a_preset_that_was_not_run_there_and_closed_arrivals() -> None:
    rows = [*rows_of(("fcfs", 0.1, [50]), ("mars", 0.2, [60])), made_up_row("mars", 1, 8.0, "closed:8")]
    told = markdown(Grid(rows))
    assert f"| `mars` | {UNKNOWN} | 60 |" in told
    assert f"| `mars` | {UNKNOWN} | {UNKNOWN} | {UNKNOWN} |" in told
    assert "| programs at once | 8 |" in told
    assert "**w on h, closed arrivals, 8 programs at once**" in told
