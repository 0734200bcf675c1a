"""The HTML report stands alone, shows every run, and stays small."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_up_runs import made_up_run

from controlplane.core.errors import ConfigError
from controlplane.lab.compare.html import ReportOptions, runs_html, write_report
from controlplane.lab.compare.style import colour_of
from controlplane.lab.compare.timeline import caption, intervals_s, shared_scales, timeline_svg
from controlplane.lab.workload.series import Series


@pytest.fixture(scope="module")
def page() -> str:
    runs = [made_up_run(preset, rate, slowdown=2) for rate in (0.05, 0.2) for preset in ("fcfs", "mars")]
    command = ["penstock", "demo", "--label", "two words"]
    return runs_html(runs, ReportOptions(command=command, facts={"penstock": "0.1.0"}))


class Tags(HTMLParser):
    """Which elements open, and whether each closes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.counts: dict[str, int] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_nothing_is_loaded_from_elsewhere(page: str) -> None:
    tags = Tags(page)
    assert tags.open == []
    assert "script" not in tags.counts
    assert "link" not in tags.counts
    assert all(link.startswith("#") for link in tags.links)
    assert set(re.findall(r"url\(([^)]*)", page)) <= set(re.findall(r"url\((#[^)]*)", page))
    assert set(re.findall(r'https?://[^"\s<]+', page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_every_load_has_its_distributions_and_every_run_its_timeline(page: str) -> None:
    loads, runs = 2, 4
    assert Tags(page).counts["svg"] == 1 + 2 * loads + runs
    assert page.count("Waiting for admission") == runs


def test_the_page_follows_dark_mode_and_keeps_preset_colours(page: str) -> None:
    assert "prefers-color-scheme: dark" in page
    assert "fill: var(--ink)" in page
    for stand_in in ("#010101", "#020202", "#030303", "#040404", "#050505", "#060606"):
        assert stand_in not in page
    assert colour_of("mars") in page


def test_the_footer_says_how_to_run_it_again(page: str) -> None:
    assert "penstock demo --label &#39;two words&#39;" in page
    assert "made up" in page
    assert "2 CPUs" in page
    assert "0.1.0" in page


def test_a_long_run_does_not_make_a_large_plot() -> None:
    run = made_up_run("mars", 0.05, slowdown=2, programs=200)
    assert len(run.series.t_ns) > 3000
    assert len(timeline_svg(run, shared_scales([run]))) < 250_000


def test_runs_without_series_or_ended_programs_still_make_a_report() -> None:
    bare = replace(made_up_run("fcfs", 0.1, slowdown=2, programs=3, failed=3), series=Series())
    text = runs_html([bare], ReportOptions())
    assert "nothing ended" in text
    assert "Inside the runs" not in text


def test_names_are_escaped() -> None:
    run = replace(made_up_run("mars", 0.1, slowdown=2, programs=3), facts={"note": "<script>alert(1)</script>"})
    assert "<script>" not in runs_html([run], ReportOptions(title="a <b> & c"))


def test_a_report_of_nothing_or_into_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one run"):
        runs_html([], ReportOptions())
    with pytest.raises(ConfigError, match="cannot write the report"):
        write_report([made_up_run("mars", 0.1, slowdown=2, programs=3)], tmp_path / "missing" / "report.html")


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
