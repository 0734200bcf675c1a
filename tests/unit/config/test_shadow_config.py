"""What a shadow decides by, and what becomes of a configuration when it is promoted."""

from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.config import Source, promoted
from controlplane.config.shadow import setting, written
from controlplane.core.errors import ConfigError
from controlplane.core.presets import PRESETS
from controlplane.core.retention.never import Never

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


def test_without_a_preset_there_is_none(tmp_path: Path) -> None:
    assert source(tmp_path, 'preset = "mars"').read().shadow is None


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


def test_what_is_promoted_is_what_the_shadow_was_and_it_can_be_taken_back(tmp_path: Path) -> None:
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


def test_a_value_that_somebody_gave_comes_back_as_it_was(tmp_path: Path) -> None:
    first = source(tmp_path, FILE.replace("beta = 0.6", "beta = 0.6\nkv_high = 0.8"))
    once = next_source(first)
    assert once.read().config.policies.admission.kv_high == 0.9  # type: ignore[attr-defined]
    assert next_source(once).read().config == first.read().config
