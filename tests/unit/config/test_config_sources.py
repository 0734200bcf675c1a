"""Where each value comes from, and on which line."""

import os
import re
import textwrap
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from support.commands import penstock
from typer.testing import CliRunner

from controlplane.cli.app import app
from controlplane.config import ENVIRONMENT, Config, Source, changes, keep_until_restart, parse, show, template
from controlplane.config.changes import UNTIL_RESTART, values
from controlplane.config.lines import lines_of
from controlplane.core.model.errors import ConfigError
from controlplane.core.policies.placement.session import Session
from controlplane.core.policies.presets import POLICIES, PRESETS


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def test_lines_of_keys_and_tables() -> None:
    text = textwrap.dedent(
        '''\
        # a comment
        node = "a"  # another

        control.overload.kv_high = 0.9
        state_dir = """
        [host]
        cpus = 3
        """
        [host]
        cpus = 2

        [priority]
        shares = [
          0.1,  # one
          0.2,
        ]
        [admission]
        "beta" = 0.6
        window_max = { x = 1 }
        '''
    )
    assert lines_of(text) == {
        "node": 2,
        "control": 4,
        "control.overload": 4,
        "control.overload.kv_high": 4,
        "state_dir": 5,
        "host": 9,
        "host.cpus": 10,
        "priority": 12,
        "priority.shares": 13,
        "admission": 17,
        "admission.beta": 18,
        "admission.window_max": 19,
        "admission.window_max.x": 19,
    }
    assert lines_of('node = "a"\r\n[host]\r\ncpus = 2\r\n') == {"node": 1, "host": 2, "host.cpus": 3}
    assert lines_of('node = "a\u2028b"\nlease_s = 3') == {"node": 1, "lease_s": 2}, "within a string it is no line"


def test_every_value_knows_where_it_is_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "penstock.toml"
    path.write_text('node = "file"\nlease_s = 4\n[admission]\nbeta = 0.6\n')
    monkeypatch.setenv("PENSTOCK_NODE", "environment")
    seen = Source(path=path, options={"preset": "mars", "nats_url": "nats://x", "state_dir": None}).read()
    assert seen.origins == {
        "node": "PENSTOCK_NODE",
        "lease_s": f"{path}:2",
        "admission": f"{path}:3",
        "admission.beta": f"{path}:4",
        "preset": "--preset",
        "nats_url": "--nats",
    }
    shown = show(seen.config, origins=seen.origins)
    assert 'node = "environment"  # PENSTOCK_NODE\n' in shown
    assert f"beta = 0.6  # {path}:4\n" in shown
    assert "alpha = 1.0\n" in shown


MISTAKEN = """\
nod = "a"                 # did you mean 'node'
preset = "penstok"        # did you mean 'penstock'
beta = 0.5                # 'beta' belongs into [admission]
[admission]
policy = "aimed"          # did you mean 'aimd'
[control.overload]
kv_hi = 0.9               # did you mean 'kv_high'
kv_low = 2                # expected 0 < kv_low <= 1
[http]
listen = "x"              # expected HOST:PORT or off
[fleet]
rank = "1"                # expected `int`, got `str`
"""


def test_all_mistakes_are_told_at_once_in_the_files_order(tmp_path: Path) -> None:
    path = tmp_path / "penstock.toml"
    path.write_text(MISTAKEN)
    wrong = {n: line.partition("# ")[2] for n, line in enumerate(MISTAKEN.splitlines(), 1) if "#" in line}
    done = penstock("config", "check", str(path))
    assert done.returncode == 1
    head, *told = done.stderr.splitlines()
    assert head == f"penstock: {path}: {len(wrong)} mistakes"
    for line, (number, said) in zip(told, wrong.items(), strict=True):
        assert line.startswith(f"{path}:{number}: $.")
        assert said in line
    path.write_text("[shadow]\npreset = 'marz'\n")
    done = penstock("config", "check", str(path))
    assert done.stderr.startswith(f"penstock: {path}:2: $.shadow.preset: ")
    assert "did you mean 'mars'" in done.stderr


def test_the_commented_configuration_reads_back_and_explains_every_key() -> None:
    for name in PRESETS:
        config = parse({"preset": name})
        shown = show(config, explained=True)
        assert show(config) == "".join(f"{line}\n" for line in shown.splitlines() if not line.startswith("#"))
        keys = [(above, line) for above, line in pairwise(["", *shown.splitlines()]) if _is_key(line)]
        assert not [line for above, line in keys if not re.match(r"# \w", above)]
    beta = "# factor by which an interval with overload cuts the window; factor; 0 < beta < 1\nbeta = 0.7\n"
    assert beta in show(Config(), explained=True)


def test_the_template_explains_every_key_and_changes_nothing() -> None:
    text = template(Config())
    assert parse(tomllib.loads(text)) == parse({})
    beta = "# factor by which an interval with overload cuts the window; factor; 0 < beta < 1\n#beta = 0.7\n"
    assert beta in text
    assert parse(tomllib.loads(text.replace("#beta = 0.7", "beta = 0.6"))).policies.admission.beta == 0.6
    named = text.replace('#preset = "penstock"', 'preset = "fcfs"')
    assert parse(tomllib.loads(named)) == parse({"preset": "fcfs"})


def _is_key(line: str) -> bool:
    return " = " in line and not line.startswith(("#", "policy = "))


# Differences


def test_what_differs_key_by_key() -> None:
    found = changes(parse({}), parse({"lease_s": 4, "admission": {"beta": 0.6}, "host": {"cpus": 2}, "node": "b"}))
    assert [(c.key, c.before, c.after, c.is_live) for c in found] == [
        ("node", "local", "b", False),
        ("lease_s", 5.0, 4.0, True),
        ("host.cpus", 0.0, 2.0, True),
        ("admission.beta", 0.7, 0.6, True),
    ]
    assert str(found[-1]) == "admission.beta: 0.7 -> 0.6"
    other = {c.key: (c.before, c.after) for c in changes(parse({}), parse({"admission": {"policy": "fixed"}}))}
    assert other["admission.policy"] == ("aimd", "fixed")
    assert (other["admission.beta"], other["admission.window"]) == ((0.7, None), (None, 0))
    keys = values(Config())
    assert {"control.overload.kv_high", *(f"{kind}.policy" for kind in POLICIES)} <= keys.keys()
    assert not [key for key in keys if key.startswith("policies")]


def test_what_cannot_change_in_a_running_daemon_stays() -> None:
    running, wanted = parse({"node": "a"}), parse({"node": "b", "time_scale": 2, "lease_s": 4})
    kept = keep_until_restart(running, wanted)
    assert (kept.node, kept.time_scale, kept.lease_s) == ("a", 1.0, 4.0)
    assert {c.key for c in changes(kept, wanted)} == {"node", "time_scale"} <= set(UNTIL_RESTART)


def test_a_pipe_is_no_configuration_but_standard_input_may_be_one_once(tmp_path: Path) -> None:
    """Nobody may ever write into it, and a daemon that is told to read it again would wait for that for ever."""
    pipe = tmp_path / "penstock.toml"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="expected a regular file; to read standard input, name /dev/stdin"):
        Source(path=pipe).read()
    with pytest.raises(ConfigError, match="expected a regular file; it cannot be read again"):
        Source(path=pipe).read(again=True)
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file:
        file.write('preset = "mori"')
    given = Source(path=Path(f"/dev/fd/{reading}"))
    assert given.read().config.preset == "mori"
    with pytest.raises(ConfigError, match="cannot be read again"):
        given.read(again=True)
    os.close(reading)


def test_what_no_engine_of_a_daemon_can_do_is_told_with_its_place_and_left_out(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('preset = "mars"\n\n[placement]\nhard = true\nlink_tokens_per_s = 5.0\n')
    found = Source(path=file).read()
    (told,) = found.without_effect
    assert told.startswith(f"{file}:5: link_tokens_per_s is for `penstock simulate`")
    assert found.config.policies.placement == Session(hard=True, link_tokens_per_s=5.0)
    assert found.for_a_daemon().config.policies.placement == Session(hard=True)
    file.write_text('[placement]\npolicy = "round_robin"\n')
    assert Source(path=file).read().without_effect == ()
    file.write_text('preset = "fcfs"\n[experiment]\nslice_s = 400\nwashout_s = 100\n')
    (told,) = Source(path=file).read().without_effect
    assert told.startswith(f"{file}:3: an experiment compares a preset with fcfs")
    file.write_text("[placement]\nlink_tokens_per_s = 5.0\n")
    checked = CliRunner().invoke(app, ["config", "check", str(file)])
    assert (checked.exit_code, "without effect" in checked.output) == (0, True)


@pytest.mark.parametrize(
    "text",
    [
        "a." * 100_000 + "a = 1",
        "[" + ".".join(['"a b"'] * 10_000) + "]",
        "a = [\n" + "1,\n" * 50_000 + "]",
        'a = """\n' + "x\n" * 50_000 + '"""',
        "a = " + "[" * 100_000,
        "a" * 250_000,
        "[[a]]\n" * 20_000,
    ],
    ids=["dots", "quoted", "list", "text", "brackets", "word", "tables"],
)
@pytest.mark.timeout(60)  # it took minutes, in the daemon's loop
def test_what_is_hard_to_parse_is_refused_soon(text: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="toml:"):
        Source(path=path).read()
