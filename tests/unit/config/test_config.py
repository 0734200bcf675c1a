"""Configuration: every wrong value is refused with its path, and what is in force can be written down and read."""

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane import config
from controlplane.config import Config, load, parse, show
from controlplane.config.parse import mistakes
from controlplane.core.model.errors import ConfigError, UnknownPolicy
from controlplane.core.policies.admission.fixed import Fixed
from controlplane.core.policies.presets import POLICIES, PRESETS

DIGITS = "9" * 400


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in config.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def read(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "penstock.toml"
    path.write_text(text)
    return load(path)


BAD = """
nod = "a"                                 | $.nod: unknown key; did you mean 'node'?
zzz = 1                                   | $.zzz: unknown key; there are: node, preset
policies = 1                              | $.policies: unknown key
[admision]                                | $.admision: unknown key; did you mean 'admission'?
[hots]                                    | $.hots: unknown key; did you mean 'host'?
"a.b" = 1                                 | $.a.b: unknown key
"" = 1                                    | $.: unknown key
node = ""                                 | $.node: expected node to be 1 to 64
node = "a b"                              | $.node: expected node to be 1 to 64
node = "a.b"                              | $.node: expected node to be 1 to 64
node = "*"                                | $.node: expected node to be 1 to 64
node = 1                                  | $.node: expected `str`, got `int`
node = ["a"]                              | $.node: expected `str`, got `array`
preset = "marz"                           | $.preset: no preset 'marz'; there are:
preset = 1                                | $.preset: expected `str`
preset = ["mars"]                         | $.preset: expected `str`
[preset]                                  | $.preset: expected `str`
nats_url = 4222                           | $.nats_url: expected `str`
state_dir = true                          | $.state_dir: expected `str`
time_scale = 0                            | $.time_scale: expected 0 < time_scale <= 100, got 0
time_scale = 101                          | $.time_scale: expected 0 < time_scale <= 100, got 101
time_scale = nan                          | $.time_scale: expected 0 < time_scale <= 100, got nan
time_scale = inf                          | $.time_scale: expected 0 < time_scale <= 100, got inf
time_scale = "1"                          | $.time_scale: expected `float`, got `str`
time_scale = DIGITS                       | $.time_scale: number out of range
heartbeat_s = 0                           | $.heartbeat_s: expected 0.01 <= heartbeat_s
heartbeat_s = 2024-01-01                  | $.heartbeat_s: expected `float`
lease_s = 0.4                             | $.lease_s: expected 0.5 <= lease_s <= 600, got 0.4
heartbeat_s = 5                           | $.lease_s: expected 10 <= lease_s <= 600, got 5
snapshot_s = 0                            | $.snapshot_s: expected 0.05 <= snapshot_s <= 3600, got 0
host = 3                                  | $.host:
host = [3]                                | $.host:
[host]; cpus = -1                         | $.host.cpus: expected 0 <= cpus
[host]; cpus = true                       | $.host.cpus: expected `float`, got `bool`
[host]; cpu = 1                           | $.host.cpu: unknown key; did you mean 'cpus'?
[host]; probe_interval_s = 0              | $.host.probe_interval_s: expected 0.05
[host.cpus]; x = 1                        | $.host.cpus: expected `float`
control = "fast"                          | $.control:
[control]; interval_s = 0                 | $.control.interval_s: expected 0.01
[control]; overload = 1                   | $.control.overload:
[control]; silense = 1                    | $.control.silense: unknown key; did you mean 'silence'?
[control.overload]; persistence = 1.5     | $.control.overload.persistence: expected `int`
[control.overload]; kv_slack = 0.96       | $.control.overload.kv_slack: expected kv_slack <= kv_low
[control.silence]; end_after_s = 0        | $.control.silence.end_after_s: expected 0 <
[control.silence]; nap_s = 1              | $.control.silence.nap_s: unknown key
admission = 3                             | $.admission: expected a table, got 3
admission = "aimd"                        | $.admission: expected a table, got 'aimd'
[[admission]]                             | $.admission: expected a table
[admission]; beta = 1.5                   | $.admission.beta: expected 0 < beta < 1, got 1.5
[admission]; beta = "0.5"                 | $.admission.beta: expected `float`, got `str`
[admission]; gamma = 1                    | $.admission.gamma: unknown key; there are: alpha, beta
[admission]; bata = 0.5                   | $.admission.bata: unknown key; did you mean 'beta'?
[admission]; window = 5                   | $.admission.window: unknown key
[admission]; window_initial = 9999        | $.admission.window_initial: expected window_min
[admission]; window_min = 5000            | $.admission.window_max: expected 5000 <=
[admission]; policy = "aimed"             | $.admission.policy: no admission policy 'aimed'; there are: capacity
[admission]; policy = 1                   | $.admission.policy: no admission policy 1; there are:
[admission]; policy = ["aimd"]            | $.admission.policy: no admission policy ['aimd']; there are:
[admission.policy]; x = 1                 | $.admission.policy: no admission policy {'x': 1}; there are:
[admission]; policy="fixed"; window = -1  | $.admission.window: expected 0 <= window <= 1e+06, got -1
[admission]; policy="fixed"; window = 1.5 | $.admission.window: expected `int`
[admission]; policy="fixed"; beta = 0.5   | $.admission.beta: unknown key; there are: window
[admission]; policy="fixed"; window = DIGITS | $.admission.window: expected 0 <=
[packing]; policy = "lru"                 | $.packing.policy: no packing policy 'lru'; there are: by_tier, fcfs
[retention]; policy = "never"; kv_high=1  | $.retention.kv_high: unknown key; there are: none
[priority]; policy = "x"                  | $.priority.policy: no priority policy 'x'; there are: fcfs
[placement]; where = 1                    | $.placement.where: unknown key
[memory]; policy = ""                     | $.memory.policy: no memory policy ''; there are: lru
"""
CASES = [[part.strip() for part in line.split(" | ")] for line in BAD.strip().splitlines()]


@pytest.mark.parametrize(("text", "message"), CASES, ids=[case[0] for case in CASES])
def test_a_wrong_value_is_refused_with_its_path(tmp_path: Path, text: str, message: str) -> None:
    lines = text.replace("DIGITS", DIGITS).replace("; ", "\n")
    with pytest.raises(ConfigError) as error:
        read(tmp_path, f"# first\n\n{lines}")
    place, _, said = str(error.value).partition(": ")
    assert said.startswith(message)
    assert "\n" not in said
    file, _, line = place.partition("penstock.toml")
    assert file == f"{tmp_path}/"
    # The key's line; a range that another key narrowed may name one that is not in the file.
    key = message.partition(": ")[0].rpartition(".")[2]
    named = [number for number, each in enumerate(lines.splitlines(), start=3) if key and key in each]
    assert not named or line == f":{named[-1]}"


@pytest.mark.parametrize("kind", sorted(POLICIES))
def test_an_unknown_policy_is_answered_with_every_name(kind: str) -> None:
    with pytest.raises(UnknownPolicy):
        parse({"preset": "x"})
    with pytest.raises(UnknownPolicy) as error:
        parse({kind: {"policy": "?"}})
    assert all(known in str(error.value) for known in POLICIES[kind])


# Files


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: No such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="directory"):
        load(tmp_path)


@pytest.mark.parametrize(
    "data",
    [b"node = ", b"\xff\xfe", b"a = 1\na = 2", b"x = " + b"9" * 5000, b"x = " + b"[" * 5000, b"\x00"],
    ids=["cut off", "not UTF-8", "twice", "too many digits", "too deep", "a null byte"],
)
def test_what_is_not_toml(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "penstock.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"penstock\.toml: not TOML"):
        load(path)


def test_a_file_with_a_comment_alone_is_the_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, "# nothing") == Config() == load(None)


# What overrides what


def test_the_environment_overrides_the_file_and_arguments_override_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "penstock.toml"
    path.write_text('node = "file"\nnats_url = "nats://file"\nstate_dir = "file"\npreset = "mars"')
    monkeypatch.setenv("PENSTOCK_NODE", "environment")
    monkeypatch.setenv("PENSTOCK_PRESET", "fcfs")
    monkeypatch.setenv("PENSTOCK_NATS_URL", "nats://environment")
    monkeypatch.setenv("PENSTOCK_STATE_DIR", "")  # empty is not set
    seen = load(path, {"node": "argument", "nats_url": None})
    assert (seen.node, seen.nats_url, seen.state_dir) == ("argument", "nats://environment", "file")
    assert (seen.preset, seen.policies) == ("fcfs", PRESETS["fcfs"])


def test_a_wrong_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_NODE", "a/b")
    with pytest.raises(ConfigError, match=r"^PENSTOCK_NODE: \$\.node"):
        load(None)


def test_a_wrong_option_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"^--preset: \$\.preset: no preset 'marz'"):
        load(None, {"preset": "marz"})


def test_a_section_changes_one_parameter_of_the_presets_policy() -> None:
    seen = parse({"preset": "mars", "admission": {"beta": 0.6}}).policies
    assert (seen.admission.beta, seen.admission.alpha) == (0.6, PRESETS["mars"].admission.alpha)
    assert seen.packing == PRESETS["mars"].packing
    assert PRESETS["mars"].admission.beta == 0.7


def test_a_section_may_name_another_policy() -> None:
    assert parse({"admission": {"policy": "fixed", "window": 3}}).policies.admission == Fixed(window=3)
    assert parse({"preset": "fcfs", "admission": {"window": 3}}).policies.admission == Fixed(window=3)
    assert (
        parse({"preset": "fcfs", "admission": {"policy": "aimd"}}).policies.admission
        == POLICIES["admission"]["aimd"]()
    )


# What is in force


def assert_shown(seen: Config) -> None:
    assert parse(tomllib.loads(show(seen))) == seen


def test_a_table_may_be_left_out_with_those_in_it() -> None:
    whole, rest = show(Config()), show(Config(), without=["fleet"])
    assert "[fleet.kubernetes]" in whole
    assert "[fleet" not in rest
    assert parse(tomllib.loads(rest)) == Config()
    assert set(rest.split("\n\n")) <= set(whole.split("\n\n"))


@pytest.mark.parametrize("kind", sorted(POLICIES))
def test_every_registered_policy_is_shown(kind: str) -> None:
    for name in POLICIES[kind]:
        seen = parse({kind: {"policy": name}})
        assert f'[{kind}]\npolicy = "{name}"' in show(seen)
        assert_shown(seen)


unit_floats = st.floats(0.01, 0.99)
printable = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=30)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "node": st.text("abcXYZ019_-", min_size=1, max_size=64),
            "preset": st.sampled_from(sorted(PRESETS)),
            "nats_url": printable,
            "state_dir": printable,
            "time_scale": st.floats(1e-9, 100),
            "heartbeat_s": st.floats(0.01, 2),
            "host": st.fixed_dictionaries(
                {}, optional={"cpus": st.floats(0, 1e5), "probe_interval_s": st.floats(0.05, 3600)}
            ),
            "control": st.fixed_dictionaries(
                {},
                optional={
                    "overdue_s": st.floats(0, 86_400),
                    "overload": st.fixed_dictionaries({"persistence": st.integers(1, 1000)}),
                    "silence": st.fixed_dictionaries({"end_after_s": st.floats(1e-6, 86_400)}),
                },
            ),
            "admission": st.fixed_dictionaries(
                {"policy": st.just("aimd")}, optional={"beta": unit_floats, "alpha": st.floats(1e-9, 1000)}
            ),
            "packing": st.fixed_dictionaries({"policy": st.just("pressure_aware"), "long_share": unit_floats}),
        },
    )
)
def test_whatever_is_accepted_is_shown_and_reads_back(data: dict[str, Any]) -> None:
    assert_shown(parse(data))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    [item.name for item in fields(Config)] + [*POLICIES, "policy", "beta", "window", "overload"]
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.dictionaries(names, values | st.dictionaries(names, values, max_size=3), max_size=4))
def test_no_value_of_any_type_escapes_the_checks(data: dict[str, Any]) -> None:
    try:
        assert_shown(parse(data))
        assert mistakes(data) == []
    except ConfigError as error:
        assert str(error).startswith("$.")
        assert str(mistakes(data)[0]) == str(error)
