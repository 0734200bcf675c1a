"""A running daemon's configuration: edited, refused, switched, and nothing is lost."""

import random
import signal
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import BusClient, DaemonProcess, bus_of, eventually, queued, running

from controlplane.config import Config, Source, parse
from controlplane.config.changes import values
from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.errors import ConfigError
from controlplane.core.policies.engine_policies import EnginePolicies, loads
from controlplane.core.policies.presets import PRESETS
from controlplane.daemon.observe.log_replay import replay_log
from controlplane.transport.subjects import heartbeat_subject
from controlplane.wire.codec import decode_heartbeat

GATE = "test/gate/one"
ENGINE = "test/engine/one"
POOL = ev.PoolSampled(total_blocks=1000, free_blocks=1000, block_tokens=16)
BAD_FILES = 30
WINDOW = 'preset = "fcfs"\n\n[admission]\nwindow = {}\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "etc" / "penstock.toml"
    path.parent.mkdir()
    path.write_text(WINDOW.format(1))
    return path


@pytest.fixture
def daemon(tmp_path: Path, file: Path) -> Iterator[DaemonProcess]:
    with running(tmp_path, "--config", str(file), "--record", str(tmp_path / "run.jsonl")) as process:
        yield process


def written(file: Path, text: str) -> None:
    """As editors do: whoever reads it meanwhile, for whatever reason, has the old one or the new one."""
    draft = file.with_suffix(".new")
    draft.write_text(text)
    draft.replace(file)


async def version(bus: BusClient, number: int) -> dict[str, Any]:
    return await bus.status_where(lambda s: s["status"]["config"]["version"] == number, f"version {number}")


def active(status: dict[str, Any]) -> set[str]:
    return {name for name, program in status["programs"].items() if program["status"] == "active"}


async def test_an_edited_file_holds_at_the_next_tick(daemon: DaemonProcess, file: Path, tmp_path: Path) -> None:
    """But for what cannot change in a daemon that runs, which is told."""
    async with bus_of(daemon) as bus:
        await bus.publish(ENGINE, 1, [POOL])
        await bus.publish(GATE, 1, queued("a", "b", "c", "d"))
        before = await bus.status_where(lambda s: active(s) == {"a"} and len(s["queue"]) == 3, "one in")
        assert before["status"]["config"] == {
            "version": 1,
            "file": str(file),
            "refused": "",
            "refusals": 0,
            "until_restart": [],
        }
        written(file, 'node = "other"\ntime_scale = 2\n' + WINDOW.format(3))
        after = await version(bus, 2)
        assert after["status"]["window"]["limit"] in (1, 3)  # it holds from the tick on that follows at once
        assert after["status"]["config"]["until_restart"] == ["time_scale"]  # --node is an option: it goes before
        assert after["status"]["node"] == "test"
        await bus.status_where(lambda s: active(s) == {"a", "b", "c"}, "two more")
        told = await bus.hears(lambda c: isinstance(c, cmd.SetWindow) and c.limit == 3, "the new window")
        assert told.reason
    assert daemon.stop() == 0
    assert "admission.window: 1 -> 3" in daemon.log
    assert "not before a restart" in daemon.log
    assert replay_log(tmp_path / "run.jsonl").differences == []


async def test_bad_files_are_refused_and_the_daemon_goes_on(daemon: DaemonProcess, file: Path) -> None:
    """Each with the right place; what was in force stays, programs are served, and a good file is taken over."""
    chance = random.Random(7)
    async with bus_of(daemon) as bus:
        await bus.publish(ENGINE, 1, [POOL])
        for _ in range(BAD_FILES):
            written(file, bad(chance))
            with pytest.raises(ConfigError) as error:
                Source(path=file).read()
            daemon.send_signal(signal.SIGHUP)
            seen = await bus.status_where(
                lambda s, why=str(error.value): s["status"]["config"]["refused"] == why, str(error.value)
            )
            assert str(error.value).startswith(f"{file}:")
            assert (seen["status"]["config"]["version"], seen["status"]["preset"]) == (1, "fcfs")
        await bus.publish(GATE, 1, queued("a", "b"))
        await bus.status_where(lambda s: active(s) == {"a"} and s["queue"] == ["b"], "a window of one still")
        file.write_text(WINDOW.format(2))
        good = await version(bus, 2)
        assert good["status"]["config"]["refused"] == ""
        assert good["status"]["config"]["refusals"] >= BAD_FILES
        await bus.status_where(lambda s: active(s) == {"a", "b"}, "a window of two")
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log


def bad(chance: random.Random) -> str:
    """A file with one mistake, under some good lines."""
    numbers = [key for key, value in values(Config()).items() if type(value) in (int, float)]
    key = chance.choice(numbers)
    wrong = chance.choice(["-1e300", '"much"', "[1]", "true", "1e300", "nan"])
    mistakes = [f"{key} = {wrong}", f"{key}_ = 1", f"{key} =", f"{key} = 1\n{key} = 2", 'preset = "marz"']
    mistake = chance.choices(mistakes, weights=[6, 3, 1, 1, 1])[0]
    text = "\n".join([*chance.sample(["# a comment", "", 'state_dir = "x"'], chance.randint(0, 3)), mistake, ""])
    try:
        parse(tomllib.loads(text))
    except ValueError:
        return text
    return bad(chance)  # a number that this key does not mind


async def test_presets_are_switched_and_programs_stay(daemon: DaemonProcess, file: Path) -> None:
    """Each one's engine policies are in the heartbeat, with what the file says otherwise."""
    told: list[str] = []

    async def hear(message: Any) -> None:
        told.append(decode_heartbeat(message.data).engine_policies)

    mars = PRESETS["mars"]
    shares = replace(mars.priority, shares=(0.25, 0.5), promote_s=3)  # type: ignore[type-var]
    changed = EnginePolicies(priority=shares, memory=replace(mars.memory, shrink=False))  # type: ignore[type-var]
    more = "[priority]\nshares = [0.25, 0.5]\npromote_s = 3\n[memory]\nshrink = false\n"
    files = [
        (name, "", EnginePolicies(priority=preset.priority, memory=preset.memory))
        for name, preset in PRESETS.items()
        if name != "fcfs"
    ]
    async with bus_of(daemon) as bus:
        await bus.client.subscribe(heartbeat_subject("test"), cb=hear)
        await bus.publish(ENGINE, 1, [POOL])
        await bus.publish(GATE, 1, queued("a", "b"))
        await bus.status_where(lambda s: active(s) == {"a"}, "one in")
        turn = ev.TurnSubmitted(program_id="a", turn_id="a.1", projected_blocks=10)
        await bus.publish(ENGINE, 2, [turn])  # however long the switches take: who never comes loses the slot
        for number, (preset, rest, policies) in enumerate([*files, ("mars", more, changed)], start=2):
            written(file, f'preset = "{preset}"\nheartbeat_s = 0.1\n{rest}')
            daemon.send_signal(signal.SIGHUP)
            seen = await version(bus, number)
            assert seen["status"]["preset"] == preset
            assert set(seen["programs"]) == {"a", "b"}
            await eventually(lambda p=policies: told and loads(told[-1]) == p, what=f"{preset} in the engine")
        await bus.grant("b")
        assert "a" in active(await bus.status())
    assert daemon.stop() == 0


async def test_a_config_map_that_is_swapped_as_kubernetes_does(tmp_path: Path) -> None:
    """The file is a link to a link, and the folder behind both is another one at once."""
    folder = tmp_path / "etc"
    for number, window in ((1, 1), (2, 3)):
        (folder / f"..{number}").mkdir(parents=True)
        (folder / f"..{number}" / "penstock.toml").write_text(WINDOW.format(window))
    (folder / "..data").symlink_to("..1")
    (folder / "penstock.toml").symlink_to("..data/penstock.toml")
    with running(tmp_path, "--config", str(folder / "penstock.toml")) as daemon:
        async with bus_of(daemon) as bus:
            (folder / "..data_tmp").symlink_to("..2")
            (folder / "..data_tmp").replace(folder / "..data")
            await version(bus, 2)
        assert "admission.window: 1 -> 3" in daemon.log
