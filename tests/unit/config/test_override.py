"""A configuration under another preset, or with other values."""

import pytest

from controlplane.config import overridden, parse_setting, show
from controlplane.config.model import Config
from controlplane.core.errors import ConfigError
from controlplane.core.presets import PRESETS


def test_a_preset_comes_with_its_own_parameters() -> None:
    text = show(Config(preset="mars", policies=PRESETS["mars"]))
    assert overridden(text).policies == PRESETS["mars"]
    assert overridden(text, preset="penstock").policies == PRESETS["penstock"]


def test_what_is_no_policys_stays() -> None:
    found = overridden('node = "a"\n[control]\ninterval_s = 2.0\n[admission]\nbeta = 0.5\n', preset="fcfs")
    assert (found.node, found.control.interval_s, found.policies) == ("a", 2.0, PRESETS["fcfs"])


def test_settings_come_last() -> None:
    found = overridden('preset = "mars"', preset="penstock", settings=("admission.beta=0.55", "node=b"))
    assert found.policies.admission.beta == 0.55  # type: ignore[attr-defined]
    assert found.node == "b"


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("admission.beta=0.6", ("admission.beta", 0.6)),
        ("$.memory.shrink = false", ("memory.shrink", False)),
        ('preset="mars"', ("preset", "mars")),
        ("preset=mars", ("preset", "mars")),
        ("priority.shares=[0.1, 0.2]", ("priority.shares", [0.1, 0.2])),
    ],
)
def test_a_setting_is_toml_or_text(text: str, setting: tuple[str, object]) -> None:
    assert parse_setting(text) == setting


@pytest.mark.parametrize("text", ["admission.beta", "=1", "admission..beta=1", ""])
def test_a_setting_has_a_key_and_a_value(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected KEY=VALUE, as admission\.beta=0\.6"):
        parse_setting(text)


def test_what_is_no_toml_is_told() -> None:
    with pytest.raises(ConfigError, match="not TOML"):
        overridden("preset = ")
