"""Tool times fitted to a trace: the distributions, what decides a draw, and the file."""

import json
import re
from math import exp
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from controlplane.cli.app import app
from controlplane.core.model.errors import ConfigError
from controlplane.lab.workload.durations import MOST_POINTS, Empirical, LogNormal, empirical, log_normal, uniform
from controlplane.lab.workload.tool_fits import Pooled, ToolFits, fit_tools, load_fits
from controlplane.lab.workload.trace import ProgramTrace, Turn

DURATIONS = st.lists(st.floats(0, 1e7), min_size=1, max_size=40)
SHARES = st.floats(1e-9, 1 - 1e-9)


def program(*calls: tuple[str, float | None], name: str = "p") -> ProgramTrace:
    turns = (Turn(input_tokens=10, output_tokens=1, tool=tool, tool_ms=ms) for tool, ms in calls)
    return ProgramTrace(program_id=name, source="s", turns=(*turns, Turn(input_tokens=10, output_tokens=1)))


def fitted(*calls: tuple[str, float | None]) -> ToolFits:
    return fit_tools([program(*calls)], "trace")


# Distributions


def test_an_empirical_distribution_by_hand() -> None:
    """Two points stand at 1/4 and 3/4, with a line between them and nothing beyond."""
    fit = empirical([20.0, 10.0])
    found = [fit.quantile_ms(p) for p in (0.0, 0.25, 0.5, 0.625, 0.75, 1.0)]
    assert found == [10.0, 10.0, 15.0, 17.5, 20.0, 20.0]
    assert fit.mean_ms == 15.0
    assert empirical([7.0]).quantile_ms(0.9) == 7.0


@given(durations=DURATIONS, p=SHARES, q=SHARES)
def test_quantiles_rise_and_stay_within_what_was_seen(durations: list[float], p: float, q: float) -> None:
    fit = empirical(durations)
    low, high = sorted((p, q))
    assert min(fit.ms) <= fit.quantile_ms(low) <= fit.quantile_ms(high) <= max(fit.ms)


@pytest.mark.parametrize("count", [MOST_POINTS + 1, 20_000])
def test_many_calls_become_few_points_of_the_same_mean_and_shape(count: int) -> None:
    durations = np.random.default_rng(3).lognormal(5.0, 1.5, count)
    fit = empirical([float(value) for value in durations])
    assert (fit.calls, len(fit.ms)) == (count, MOST_POINTS)
    assert fit.mean_ms == pytest.approx(durations.mean(), rel=1e-5)
    for p in (0.1, 0.5, 0.9, 0.99):
        found = fit.quantile_ms(p)
        assert np.quantile(durations, p, method="hazen") == pytest.approx(found, rel=0.02)


def test_a_log_normal_distribution_by_hand() -> None:
    """Logarithms 1 and 3: mean 2, deviation sqrt(2)."""
    fit = log_normal([exp(1.0), exp(3.0)])
    assert (fit.mu, fit.sigma) == pytest.approx((2.0, 2**0.5), abs=1e-6)
    assert fit.quantile_ms(0.5) == pytest.approx(exp(2.0))
    assert fit.quantile_ms(0.8413447) == pytest.approx(exp(2.0 + 2**0.5), rel=1e-5)
    assert fit.quantile_ms(1 - 1e-12) == pytest.approx(exp(2.0 + 3 * 2**0.5), rel=1e-5)
    steps = 100_000
    assert fit.mean_ms == pytest.approx(fmean(fit.quantile_ms((k + 0.5) / steps) for k in range(steps)), rel=1e-3)


# Fitting


def test_the_number_of_calls_with_a_time_decides_the_fit() -> None:
    fits = fitted(
        *[("human", 60_000.0), ("bash", None), ("", 3.0)],
        *[("many", float(k)) for k in range(20)],
        *[("some", 100.0 + k) for k in range(19)],
        *[("few", 1000.0)] * 5,
        *[("rare", 9.0)] * 4,
    )
    kinds = {name: type(fit) for name, fit in fits.tools.items()}
    assert kinds == {"many": Empirical, "some": LogNormal, "few": LogNormal, "rare": Pooled}
    assert list(fits.tools) == ["many", "some", "few", "rare"]  # the most called first
    assert fits.pool.calls == 48
    assert fits.of("rare") is fits.of("never seen") is fits.pool
    assert fits.of("few").quantile_ms(0.99) == pytest.approx(1000.0)
    with pytest.raises(ConfigError, match="trace: no tool call with a time"):
        fitted(("human", 5.0), ("bash", None))


# Drawing


def test_a_draw_is_decided_by_seed_program_and_turn_alone() -> None:
    drawn = {uniform(seed, name, turn) for seed in (1, 2) for name in ("p", "q") for turn in range(50)}
    assert len(drawn) == 200
    assert all(0 < u < 1 for u in drawn)
    assert uniform(1, "p", 0) == uniform(1, "p", 0)
    assert uniform(1, "11", 1) != uniform(1, "1", 11) != uniform(11, "1", 1)
    assert 0 < uniform(0, "\ud800", 0) < 1
    assert fmean(uniform(7, f"p{k}", 0) for k in range(4000)) == pytest.approx(0.5, abs=0.02)


def test_only_tool_times_are_drawn_and_the_scale_holds_for_them() -> None:
    fits = fitted(*[("bash", float(k)) for k in range(100)])
    before = program(("bash", 5.0), ("human", 60_000.0), ("other", 1.0), ("bash", None))
    one, four = fits.redraw(before, 3), fits.redraw(before, 3, factor=4.0)
    assert one.turns[1:2] + one.turns[3:] == before.turns[1:2] + before.turns[3:]
    assert one.turns[0].tool_ms != 5.0
    assert [turn.tool for turn in one.turns] == [turn.tool for turn in before.turns]
    for turn, scaled in zip(one.turns, four.turns, strict=True):
        if turn.calls_tool and turn.tool_ms is not None:
            assert scaled.tool_ms == 4.0 * turn.tool_ms
    assert fits.unknown([before]) == ["other"]
    assert fits.redraw(before, 3, factor=0.0).turns[0].tool_ms == 0.0


# The file


def test_fits_come_back_from_their_file(tmp_path: Path) -> None:
    fits = fitted(*[("a", float(k)) for k in range(30)], *[("b", 2.5 * k) for k in range(9)], ("c", 1.0))
    path = tmp_path / "tools.json"
    fits.save(path)
    assert load_fits(path) == fits
    assert str(fits) == "drawn, fitted to 40 calls of trace"
    with pytest.raises(ConfigError, match="cannot write the tool times"):
        fits.save(tmp_path / "none" / "tools.json")


GOOD = {
    "format": 1,
    "trace": "t",
    "pool": {"fit": "empirical", "calls": 2, "ms": [1.0, 2.0]},
    "tools": {"Bash:git": {"fit": "log-normal", "calls": 7, "mu": 1.0, "sigma": 0.5}},
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 2}, "$.format: expected 1, got 2"),
        ({"more": 1}, "unknown field `more`"),
        ({"pool": {"fit": "pool", "calls": 2}}, '$.pool.fit: expected "empirical"'),
        ({"pool": {"fit": "empirical", "calls": 2, "ms": [1, -2]}}, "$.pool.ms[1]: Expected `float` >= 0.0"),
        ({"pool": {"fit": "empirical", "calls": 2, "ms": [3, 2]}}, "$.pool: expected ms to ascend, got 2 after 3"),
        ({"tools": {"Bash:git": {"fit": "weibull", "calls": 7}}}, "$.tools.Bash:git.fit: Invalid value 'weibull'"),
        (
            {"tools": {"a.b": {"fit": "log-normal", "calls": 7, "mu": 1.0, "sigma": -1}}},
            "$.tools.a.b.sigma: Expected `float` >= 0.0",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_place(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(GOOD))
    assert load_fits(path).of("Bash:git").mean_ms > 0
    path.write_text(json.dumps(GOOD | changes))
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        load_fits(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("text", [b"[]", b"\xff", b"[" * 5000])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "tools.json"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match="no tool times"):
        load_fits(path)
    with pytest.raises(ConfigError, match="cannot read the tool times"):
        load_fits(tmp_path / "none.json")


# The command


def test_fits_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    made = CliRunner().invoke(app, ["tools", "fit", "synthetic:swe-bench", "-n", "30", "-o", str(path), "--json"])
    assert made.exit_code == 0, made.output
    first, *rows = json.loads(made.stdout)
    assert first["tool"] == "(all tools)"
    assert first["calls"] == sum(row["calls"] for row in rows)
    assert {row["tool"] for row in rows} == {"bash", "edit", "search", "test"}
    assert {row["fit"] for row in rows} <= {"empirical", "log-normal", "pool"}
    shown = CliRunner().invoke(app, ["tools", "show", str(path), "--json"])
    assert json.loads(shown.stdout) == [first, *rows]
    table = CliRunner().invoke(app, ["tools", "show", str(path)])
    assert all(word in table.stdout for word in ("calls", "p50", "p99", "mean", "fit", "bash"))
