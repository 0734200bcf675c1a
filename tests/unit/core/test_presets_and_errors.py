"""Presets by name, and how an error says what it expected."""

import pytest

from controlplane.core.model.errors import UnknownPolicy, allowed
from controlplane.core.policies.admission.aimd import Aimd
from controlplane.core.policies.presets import POLICIES, policy_name, preset


def test_an_unknown_preset_lists_those_there_are() -> None:
    with pytest.raises(UnknownPolicy, match=r"no preset 'marz'; there are: .*fcfs.*mars"):
        preset("marz")


def test_a_preset_that_knows_the_future_is_no_live_ones() -> None:
    with pytest.raises(UnknownPolicy, match="'clairvoyant' knows the future"):
        preset("clairvoyant")


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
