"""Values given as KEY=VALUE: what a shadow decides by, what becomes of it when promoted, and what-if's."""

from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.config import Source, overridden, parse_setting, promoted
from controlplane.config.settings import setting, written
from controlplane.core.model.errors import ConfigError
from controlplane.core.policies.presets import PRESETS
from controlplane.core.policies.retention.never import Never

FILE = """
preset = "mars"
[admission]
beta = 0.6
[shadow]
preset = "penstock"
settings = ["admission.kv_high=0.9", "retention.policy=never"]
"""


def source(tmp_path: Path, text: str = FILE) -> Source:
    path = tmp_path / "penstock.toml"
    path.write_text(text)
    return Source(path=path)


def next_source(before: Source) -> Source:
    resolved = before.read()
    return replace(before, promoted={**before.promoted, **promoted(resolved.config, [*resolved.origins])})


def test_it_has_what_the_file_says_of_the_live_one_with_its_own_preset_and_settings(tmp_path: Path) -> None:
    shadow = source(tmp_path).read().shadow
    assert shadow is not None
    assert shadow.preset == "penstock"
    assert shadow.policies.retention == Never()
    assert shadow.policies.packing == PRESETS["penstock"].packing
    assert (shadow.policies.admission.kv_high, shadow.policies.admission.beta) == (0.9, 0.6)  # type: ignore[attr-defined]
    assert shadow.shadow.preset == "", "a shadow has none of its own"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[shadow]\npreset = "marz"', r"toml:2: \$\.shadow\.preset: \$\.preset: no preset 'marz'"),
        ('[shadow]\npreset = "mars"\nsettings = ["beta"]', r"toml:3: \$\.shadow\.settings: expected KEY=VALUE"),
        ('[shadow]\npreset = "mars"\nsettings = ["http.listen=off"]', r"http\.listen: expected a key of admission"),
        ('[shadow]\npreset = "fcfs"\nsettings = ["admission.beta=1"]', r"\$\.shadow: \$\.admission\.beta: unknown"),
        ('[shadow]\nsettings = ["admission.beta=1"]', r"\$\.shadow\.preset: expected a preset"),
        ('[shadow]\npreset = "mars"\ncpu_ratio = 0.9', r"toml:3: \$\.shadow\.cpu_ratio: expected"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        source(tmp_path, text).read()


@pytest.mark.parametrize("value", [1, 0.5, True, False, "never", None])
def test_a_setting_is_read_as_it_is_written(value: object) -> None:
    assert setting(written("admission.x", value)) == ("admission.x", value)


def test_what_is_promoted_is_what_the_shadow_was_and_all_of_it_can_be_taken_back(tmp_path: Path) -> None:
    first = source(tmp_path)
    before, after = first.read(), next_source(first).read()
    assert before.shadow is not None
    assert after.shadow is not None
    assert after.config.policies == before.shadow.policies
    assert after.shadow.policies == before.config.policies
    again = next_source(next_source(first)).read()
    assert again.config == before.config
    assert again.shadow == before.shadow
    assert again.origins["preset"] == "penstock promote"
    first = source(tmp_path, FILE.replace("beta = 0.6", "beta = 0.6\nkv_high = 0.8"))
    once = next_source(first)
    assert once.read().config.policies.admission.kv_high == 0.9  # type: ignore[attr-defined]
    assert next_source(once).read().config == first.read().config


def test_another_preset_comes_with_its_own_parameters_and_settings_come_last() -> None:
    text = 'node = "a"\npreset = "mars"\n[control]\ninterval_s = 2.0\n[admission]\nbeta = 0.5\n'
    assert overridden(text).policies.admission.beta == 0.5  # type: ignore[attr-defined]
    found = overridden(text, preset="penstock", settings=("node=b",))
    assert (found.node, found.control.interval_s, found.policies) == ("b", 2.0, PRESETS["penstock"])
    with pytest.raises(ConfigError, match="not TOML"):
        overridden("preset = ")


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("$.memory.shrink = false", ("memory.shrink", False)),
        ('preset="mars"', ("preset", "mars")),
        ("preset=mars", ("preset", "mars")),
        ("priority.shares=[0.1, 0.2]", ("priority.shares", [0.1, 0.2])),
        ("=1", None),
        ("admission..beta=1", None),
        ("", None),
    ],
)
def test_a_setting_is_a_key_and_a_value_of_toml_or_text(text: str, parsed: tuple[str, object] | None) -> None:
    if parsed is not None:
        assert parse_setting(text) == parsed
        return
    with pytest.raises(ConfigError, match=r"expected KEY=VALUE, as admission\.beta=0\.6"):
        parse_setting(text)
