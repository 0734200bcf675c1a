"""What automatic advice may change: bounds with a key, a range and a reason where they make no sense."""

from pathlib import Path

import pytest

from controlplane.config import Resolved, Source, overridden, show
from controlplane.core.errors import ConfigError
from controlplane.core.tuning import Bound


def read(tmp_path: Path, bounds: str, rest: str = "") -> Resolved:
    path = tmp_path / "penstock.toml"
    path.write_text(f"{rest}\n[advise]\nauto = true\nbounds = [{bounds}]\n")
    return Source(path=path).read()


def test_bounds_are_read_with_their_kind(tmp_path: Path) -> None:
    found = read(tmp_path, '"admission.kv_high = 0.7 .. 0.95", "retention.cold_start=10..200"').bounds
    assert found == (
        Bound(key="admission.kv_high", low=0.7, high=0.95),
        Bound(key="retention.cold_start", low=10, high=200, is_whole=True),
    )


def test_off_is_the_default() -> None:
    assert Source().read().config.advise.auto is False


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ("", r"toml:4: \$\.advise\.bounds: expected at least one KEY=LOW\.\.HIGH"),
        ('"admission.kv_high"', r"toml:4: \$\.advise\.bounds: admission\.kv_high: expected KEY=LOW\.\.HIGH"),
        ('"admission.kv_high=0.7"', r"expected KEY=LOW\.\.HIGH"),
        ('"admission.kv_high=a..b"', r"admission\.kv_high takes numbers"),
        ('"admission.kv_hig=0.7..0.9"', r"did you mean admission\.kv_high\?"),
        ('"http.listen=1..2"', r"expected a key of admission, packing, .*control"),
        ('"admission.kv_high=0.9..0.7"', r"expected LOW < HIGH, got 0\.9 and 0\.7"),
        ('"admission.beta=0.5..1.5"', r"\$\.admission\.beta: expected 0 < beta < 1, got 1\.5"),
        ('"admission.beta=0.5..0.9", "admission.beta=0.1..0.2"', r"admission\.beta has bounds already"),
        ('"admission.window=1.5..4"', r"admission\.window takes whole numbers"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(tmp_path: Path, bounds: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, bounds)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('goal = "speed"', r"\$\.advise\.goal: expected one of mean_jct_s, p95_ttft_s, hit_rate"),
        ("stretch_s = 1", r"\$\.advise\.stretch_s: expected 10 <= stretch_s"),
        ("step_ratio = 2", r"\$\.advise\.step_ratio: expected"),
        ("cooldown_s = 0", r"\$\.advise\.cooldown_s: expected"),
    ],
)
def test_the_other_keys_have_ranges(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "penstock.toml"
    path.write_text(f"[advise]\n{line}\n")
    with pytest.raises(ConfigError, match=said):
        Source(path=path).read()


def test_bounds_that_do_nothing_are_told(tmp_path: Path) -> None:
    bounds = '"retention.watermark_high=0.5..0.9", "admission.kv_high=0.5..0.6"'
    other, outside = read(tmp_path, bounds, "[admission]\nkv_high = 0.8").without_effect
    assert "retention.watermark_high has bounds, but preset penstock" in other
    assert "admission.kv_high is 0.8, outside its bounds 0.5..0.6" in outside


def test_a_recorded_configuration_can_be_read_again(tmp_path: Path) -> None:
    config = read(tmp_path, '"admission.kv_high=0.7..0.95"').config
    assert overridden(show(config)) == config
