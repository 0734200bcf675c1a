"""What the environment may say to the plugin, and what a mistake there is answered with."""

from pathlib import Path

import pytest

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.types import seconds
from engine_hooks.engine.settings import PluginMode, Settings, settings_from


def test_an_empty_environment_gives_the_defaults() -> None:
    assert settings_from({}) == Settings()
    assert settings_from({"PENSTOCK_NODE": " ", "PENSTOCK_GATE_HOLD_S": ""}) == Settings()


def test_every_setting_comes_from_its_variable(tmp_path: Path) -> None:
    settings = settings_from(
        {
            "PENSTOCK_PLUGIN": "Probe",
            "PENSTOCK_NODE": "n1",
            "PENSTOCK_NATS_URL": "nats://host:1",
            "PENSTOCK_STATE_DIR": str(tmp_path),
            "PENSTOCK_PIN_BUDGET_RATIO": "0.25",
            "PENSTOCK_PLUGIN_TIMING": "1",
            "PENSTOCK_PREFIX_IDENTITY": "0",
            "PENSTOCK_GATE_HOLD_S": "1.5",
            "PENSTOCK_GATE_MAX_HELD": "7",
            "PENSTOCK_GATE_MAX_HELD_MIB": "2",
            "PENSTOCK_GATE_KEEP_S": "0",
        }
    )
    assert settings.mode is PluginMode.PROBE
    assert (settings.node, settings.state_dir, settings.pin_budget_ratio) == ("n1", tmp_path, 0.25)
    assert (settings.gate.hold_ns, settings.gate.max_held, settings.gate.keep_ns) == (seconds(1.5), 7, 0)
    assert settings.gate.max_held_bytes == 2 << 20
    assert settings.timed
    assert not settings.continuity and settings_from({}).continuity
    assert settings.bus() == "nats://host:1"


@pytest.mark.parametrize(("mode", "obeys"), [("on", True), ("probe", False), ("off", False)])
def test_only_a_plugin_that_is_on_obeys(mode: str, obeys: bool) -> None:
    assert settings_from({"PENSTOCK_PLUGIN": mode}).obeys is obeys


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("PENSTOCK_PLUGIN", "yes", "expected on, probe or off, got 'yes'"),
        ("PENSTOCK_NODE", "a b", "letters, digits"),
        ("PENSTOCK_PIN_BUDGET_RATIO", "1.5", "0 <= pin_budget_ratio <= 1, got 1.5"),
        ("PENSTOCK_PIN_BUDGET_RATIO", "nan", "expected a number"),
        ("PENSTOCK_PLUGIN_TIMING", "yes", "expected 0 or 1, got 'yes'"),
        ("PENSTOCK_GATE_HOLD_S", "soon", "expected a number, got 'soon'"),
        ("PENSTOCK_GATE_HOLD_S", "0", "expected more than 0"),
        ("PENSTOCK_GATE_KEEP_S", "-1", "expected 0 or more"),
        ("PENSTOCK_GATE_MAX_HELD", "1e300", "expected a number"),
        ("PENSTOCK_GATE_HOLD", "5", "did you mean PENSTOCK_GATE_HOLD_S?"),
        ("PENSTOCK_GATE_COLOUR", "5", "unknown variable"),
    ],
)
def test_a_mistake_is_told_in_one_line_that_names_the_variable(variable: str, value: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_from({variable: value})
    assert str(caught.value).startswith(variable)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
