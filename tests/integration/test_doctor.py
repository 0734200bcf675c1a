"""``penstock doctor`` on a node that is well, and on several that are not."""

import http.server
import json
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio
from support.daemon_process import BusClient, DaemonProcess, listening, says
from support.nats import NatsServer, nats_server_binary
from support.ports import free_port

from controlplane.core import events as ev


@pytest_asyncio.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[DaemonProcess]:
    process = DaemonProcess(tmp_path / "state")
    process.start()
    try:
        await listening(process)
        yield process
    finally:
        process.clean_up()


def doctor(folder: Path, *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit status, and the findings by what they are about."""
    command = [
        sys.executable,
        "-m",
        "controlplane",
        "doctor",
        "--node",
        "test",
        "--state-dir",
        str(folder),
        "--json",
    ]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, {finding["what"]: finding for finding in json.loads(done.stdout)}


def refused_status(folder: Path) -> str:
    """What `status` says where it fails."""
    command = [sys.executable, "-m", "controlplane", "status", "--node", "test", "--state-dir", str(folder)]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert asked.returncode == 1
    return asked.stderr


@pytest.mark.asyncio
async def test_a_node_that_is_well(daemon: DaemonProcess) -> None:
    bus = await BusClient.connect(await daemon.url())
    await bus.publish("test/engine/one", 1, [ev.PoolSampled(total_blocks=1000, free_blocks=900)])
    await bus.status_where(lambda s: s["status"]["pressure"]["kv_total_blocks"], "a pool")
    await bus.close()
    status, found = doctor(daemon.folder)
    assert status == 0
    for what in (
        "penstock",
        "nats-server",
        "configuration",
        "bus",
        "JetStream",
        "clocks",
        "daemon",
        "engine",
        "tool socket",
    ):
        assert found[what]["state"] == "ok", found[what]
    assert found["engine"]["found"].startswith("0% of 1,000 blocks in demand (slack), 900 free")


@pytest.mark.asyncio
async def test_a_daemon_that_is_frozen_is_named_and_nobody_is_told_to_start_another(daemon: DaemonProcess) -> None:
    """Its lock is held, so that another one would be refused."""
    assert daemon.process is not None
    await (await BusClient.connect(await daemon.url())).status_where(
        lambda s: s["status"]["bus_connected"], "a life"
    )
    daemon.process.send_signal(signal.SIGSTOP)
    status, found = doctor(daemon.folder)
    daemon_is = f"`kill -CONT {daemon.process.pid}`"
    assert status == 1
    assert daemon_is in found["daemon"]["advice"]
    assert "penstock up" not in found["daemon"]["advice"]
    assert daemon_is in refused_status(daemon.folder)
    daemon.process.send_signal(signal.SIGCONT)
    await says(daemon, "was frozen")
    _, found = doctor(daemon.folder)
    assert "the daemon was frozen for" in found["frozen"]["found"]


@pytest.mark.asyncio
async def test_an_engine_that_hangs_with_turns_does_not_pass_for_well(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "state", "--time-scale", "20")
    daemon.start()
    try:
        await listening(daemon)
        bus = await BusClient.connect(await daemon.url())
        turn = ev.TurnSubmitted(program_id="p", turn_id="p.1", projected_blocks=5)
        await bus.publish("test/engine/one", 1, [ev.PoolSampled(total_blocks=1000, free_blocks=900), turn])
        await says(daemon, "engine down")
        status, found = doctor(daemon.folder)
        assert status == 1
        assert found["engine down"]["found"] == "1 of 1 engines do not answer: test/engine"
        await bus.close()
    finally:
        daemon.clean_up()


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


def test_a_server_without_jetstream(tmp_path: Path) -> None:
    port = free_port()
    server = subprocess.Popen([nats_server_binary(), "-a", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            status, found = doctor(tmp_path, "--nats", f"nats://127.0.0.1:{port}")
            if found["bus"]["state"] == "ok":
                break
        assert status == 1
        assert found["JetStream"]["state"] == "bad"
        assert "-js" in found["JetStream"]["advice"]
    finally:
        server.kill()
        server.wait()


def test_a_server_of_ones_own_and_no_daemon_yet(tmp_path: Path, nats_server: NatsServer) -> None:
    status, found = doctor(tmp_path / "state", "--nats", nats_server.url)
    assert status == 1
    assert found["JetStream"]["state"] == "look"
    assert found["clocks"]["state"] == "ok"
    assert found["daemon"]["state"] == "bad"


class Health(http.server.BaseHTTPRequestHandler):
    """A double of a gate's health page."""

    page: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        body = json.dumps(self.page).encode()
        self.send_response(200 if self.page else 404)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("page", "what", "state", "said"),
    [
        ({"mode": "governed", "held_turns": 2}, "gate", "ok", "governed, 2 turns held"),
        ({"mode": "passive"}, "gate", "look", "passive"),
        ({}, "gate", "bad", "no plugin runs there"),
        ({"mode": "governed", "plugin": {"vllm": "0.32.0"}}, "plugin", "ok", "bound, vLLM 0.32.0"),
        ({"mode": "governed", "plugin": {"passive_because": "tp_size is 2"}}, "plugin", "bad", "tp_size is 2"),
        (
            {"mode": "governed", "plugin": {"passive_because": "", "hook_failures": {"probe": 3}}},
            "hooks",
            "bad",
            "probe 3 times",
        ),
        (
            {"mode": "governed", "scheduler": {"lockstep": {"size": 2, "compared": 9, "passive_because": ""}}},
            "lockstep",
            "ok",
            "2 ranks decide alike",
        ),
        (
            {"mode": "governed", "scheduler": {"lockstep": {"passive_because": "rank 1 decided otherwise"}}},
            "lockstep",
            "bad",
            "rank 1 decided otherwise",
        ),
    ],
)
def test_what_a_gate_tells(daemon: DaemonProcess, page: dict[str, Any], what: str, state: str, said: str) -> None:
    handler = type("Page", (Health,), {"page": page})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            _, found = doctor(daemon.folder, "--engine", f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
    assert found[what]["state"] == state
    assert said in found[what]["found"]
