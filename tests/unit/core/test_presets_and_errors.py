"""Presets by name, and how an error says what it expected."""

import pytest

from controlplane.core.admission.aimd import Aimd
from controlplane.core.errors import ConfigError, UnknownPolicy, allowed, require
from controlplane.core.presets import POLICIES, PRESETS, policy_name, preset
from controlplane.core.types import seconds


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_is_made_of_registered_policies(name: str) -> None:
    chosen = preset(name)
    assert (chosen.name, bool(chosen.summary)) == (name, True)
    for kind, registry in POLICIES.items():
        assert type(getattr(chosen, kind)) in registry.values()


def test_an_unknown_preset_lists_those_there_are() -> None:
    with pytest.raises(UnknownPolicy, match=r"no preset 'marz'; there are: .*fcfs.*mars"):
        preset("marz")


def test_a_preset_that_knows_the_future_is_no_live_ones() -> None:
    with pytest.raises(UnknownPolicy, match="'clairvoyant' knows the future"):
        preset("clairvoyant")


@pytest.mark.parametrize(
    ("value", "low", "high", "ends", "text"),
    [
        (1.5, 0, 1, "()", "expected 0 < x < 1, got 1.5"),
        (1.5, 0, 1, "[]", "expected 0 <= x <= 1, got 1.5"),
        (0, 0, float("inf"), "(]", "expected 0 < x, got 0"),
        (float("inf"), 0, float("inf"), "[)", "expected 0 <= x, got inf"),
        (float("nan"), 0, 1, "[]", "expected 0 <= x <= 1, got nan"),
        (10**400, 0, 1_000_000, "[]", "expected 0 <= x <= 1e+06, got 1e+300"),
    ],
)
def test_a_range_is_written_as_in_mathematics(value: float, low: float, high: float, ends: str, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        require("x", value, low=low, high=high, ends=ends)
    assert str(error.value).startswith(text)
    assert error.value.field == "x"


@pytest.mark.parametrize(("value", "ends"), [(0, "[]"), (1, "[]"), (0.5, "()"), (1, "(]"), (0, "[)")])
def test_what_lies_within_is_accepted(value: float, ends: str) -> None:
    require("x", value, low=0, high=1, ends=ends)


def test_seconds_are_rounded_to_nanoseconds() -> None:
    assert (seconds(1.5), seconds(0.1), seconds(1e-9 * 1.6)) == (1_500_000_000, 100_000_000, 2)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, registry in POLICIES.items() for name in registry]
)
def test_a_policy_knows_its_registered_name(kind: str, name: str) -> None:
    assert policy_name(kind, POLICIES[kind][name]()) == name


@pytest.mark.parametrize(
    ("name", "default", "text"),
    [("kv_high", 1.0, "0 < kv_high <= 2"), ("beta", 0.7, "0 < beta < 1"), ("compute", False, "")],
)
def test_a_range_is_told_before_anybody_breaks_it(name: str, default: float, text: str) -> None:
    assert allowed(Aimd, name, default) == text
