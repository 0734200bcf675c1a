"""``penstock doctor`` on a node that is well, and on several that are not."""

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import penstock
from support.daemon_process import DaemonProcess, bus_of, listening, queued, running, says, until
from support.nats import NatsServer, nats_server_binary
from support.pages import one_page
from support.ports import free_port, is_listening

from controlplane.core.model import events as ev


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with running(tmp_path_factory.mktemp("doctor")) as process:
        asyncio.run(listening(process))
        yield process


def doctor(folder: Path, *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit status, and the findings by what they are about."""
    done = penstock("doctor", "--node", "test", "--state-dir", str(folder), "--json", *arguments)
    return done.returncode, {finding["what"]: finding for finding in json.loads(done.stdout)}


async def asked(daemon: DaemonProcess) -> tuple[int, dict[str, dict[str, str]]]:
    """In a thread: it has an event loop of its own."""
    return await asyncio.to_thread(doctor, daemon.folder)


async def test_a_node_that_is_well(daemon: DaemonProcess) -> None:
    ours = (
        "penstock",
        "nats-server",
        "configuration",
        "bus",
        "JetStream",
        "clocks",
        "daemon",
        "engine",
        "tool socket",
    )
    async with bus_of(daemon) as bus:
        await bus.publish("test/engine/one", 1, [ev.PoolSampled(total_blocks=1000, free_blocks=900)])
        await bus.status_where(lambda s: s["status"]["pressure"]["kv_total_blocks"], "a pool")
    status, found = await asked(daemon)
    assert status == 0
    assert {what: found[what]["state"] for what in ours} == dict.fromkeys(ours, "ok")
    assert found["engine"]["found"].startswith("0% of 1,000 blocks in demand (room to grow), 900 free")


async def test_who_hangs_with_turns_does_not_pass_for_well(tmp_path: Path) -> None:
    begun = ev.TurnSubmitted(program_id="p", turn_id="t", projected_blocks=1)
    with running(tmp_path, "--time-scale", "20") as hasty:
        await listening(hasty)
        async with bus_of(hasty) as bus:
            await bus.publish("test/gate/one", 1, queued("q"))
            await says(hasty, "gate down")
            await bus.publish("test/engine/one", 1, [ev.PoolSampled(total_blocks=9, free_blocks=9), begun])
            await says(hasty, "engine down")
            status, found = await asked(hasty)
    assert status == 1
    assert found["engine down"]["found"] == "1 of 1 engines do not answer: test/engine"
    assert found["gate down"]["found"] == "gates do not answer: test/gate"


async def test_a_daemon_that_is_frozen_is_named_and_nobody_is_told_to_start_another(daemon: DaemonProcess) -> None:
    """Its lock is held, so that another one would be refused."""
    assert daemon.process is not None
    daemon.send_signal(signal.SIGSTOP)
    status, found = await asked(daemon)
    daemon_is = f"`kill -CONT {daemon.process.pid}`"
    assert status == 1
    assert daemon_is in found["daemon"]["advice"]
    assert "penstock up" not in found["daemon"]["advice"]
    refused = await asyncio.to_thread(daemon.penstock, "status")
    assert refused.returncode == 1
    assert daemon_is in refused.stderr
    daemon.send_signal(signal.SIGCONT)
    await says(daemon, "was frozen")
    _, found = await asked(daemon)
    assert "the daemon was frozen for" in found["frozen"]["found"]


def test_nothing_runs(tmp_path: Path) -> None:
    status, found = doctor(tmp_path)
    assert status == 1
    assert found["bus"]["state"] == found["daemon"]["state"] == "bad"
    assert found["bus"]["advice"] == "start `penstock up --node test`"


def test_tools_on_another_machine_are_told_as_such(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[host]\ncpus = 64\nelsewhere = true\n")
    _, found = doctor(tmp_path, "--config", str(file))
    assert found["host"]["found"] == "64 CPUs for tools on another machine, whose use and stalls are not known"
    file.write_text("[host]\nelsewhere = true\n")
    _, found = doctor(tmp_path, "--config", str(file))
    assert "penstock.toml:2: $.host.elsewhere: say how many CPUs" in found["configuration"]["found"]


def test_a_wrong_file_is_told_first(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[admission]\nbeta = 2\n")
    status, found = doctor(tmp_path, "--config", str(tmp_path / "penstock.toml"))
    assert status == 1
    assert found["configuration"]["found"].endswith(
        "penstock.toml:2: $.admission.beta: expected 0 < beta < 1, got 2"
    )
    assert "bus" not in found


def test_a_server_of_ones_own_and_no_daemon_yet(tmp_path: Path, nats_server: NatsServer) -> None:
    status, found = doctor(tmp_path / "state", "--nats", nats_server.url)
    assert status == 1
    assert found["JetStream"]["state"] == "look"
    assert found["clocks"]["state"] == "ok"
    assert found["daemon"]["state"] == "bad"
    port = free_port()
    server = subprocess.Popen([nats_server_binary(), "-a", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        until(lambda: is_listening(port), "a server without JetStream")
        status, found = doctor(tmp_path, "--nats", f"nats://127.0.0.1:{port}")
        assert status == 1
        assert found["JetStream"]["state"] == "bad"
        assert "-js" in found["JetStream"]["advice"]
    finally:
        server.kill()
        server.wait()


WAITED = {"held": 310, "held_long": 4}
LOCKED = {"size": 2, "compared": 9, "passive_because": ""}
PAGES = [  # of a gate; a finding's name, state and words
    ({"mode": "governed", "held_turns": 2}, "gate", "ok", "governed, 2 turns waiting"),
    ({"mode": "passive"}, "gate", "look", "passive"),
    (
        {"held_turns": 10, "counters": WAITED},
        "patience",
        "look",
        "4 of 300 turns that waited did so for more than 50 s",
    ),
    ({}, "gate", "bad", "no plugin runs there"),
    ({"plugin": {"vllm": "0.32.0"}}, "plugin", "ok", "bound, vLLM 0.32.0"),
    ({"plugin": {"passive_because": "tp_size is 2"}}, "plugin", "bad", "tp_size is 2"),
    ({"plugin": {"passive_because": "", "hook_failures": {"probe": 3}}}, "hooks", "bad", "probe 3 times"),
    ({"scheduler": {"lockstep": LOCKED}}, "lockstep", "ok", "2 ranks decide alike"),
    ({"scheduler": {"lockstep": {"passive_because": "rank 1 is late"}}}, "lockstep", "bad", "rank 1 is late"),
]


@pytest.mark.parametrize(("page", "what", "state", "said"), PAGES)
def test_what_a_gate_tells(daemon: DaemonProcess, page: dict[str, Any], what: str, state: str, said: str) -> None:
    body = json.dumps({"mode": "governed"} | page if page else page).encode()
    with one_page(body, 200 if page else 404) as url:
        _, found = doctor(daemon.folder, "--engine", url)
    assert found[what]["state"] == state
    assert said in found[what]["found"]
