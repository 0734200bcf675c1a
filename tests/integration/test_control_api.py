"""The control API of a daemon in a process of its own, over its Unix socket and over TLS."""

import asyncio
import itertools
import json
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from support.daemon_process import (
    TIMEOUT_S,
    BusClient,
    DaemonProcess,
    bus_of,
    eventually,
    listening,
    queued,
    running,
)
from support.nats import NatsServer
from support.ports import free_port

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.errors import ConfigError, EngineUnavailable, UnknownProgram
from controlplane.operate import client as control_client
from controlplane.operate.client import CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE, ControlClient, connect
from controlplane.transport.endpoint import control_path
from controlplane.wire.control import SERVICE

GATE, ENGINE, TOOL = "test/gate/one", "test/engine/one", "test/tool/one"
POOL = ev.PoolSampled(total_blocks=1000, free_blocks=900, block_tokens=16)
# Nobody here runs a turn: slots that are not used would be taken back, and the idle engine given who waits.
TWO_SLOTS = (
    'preset = "fcfs"\n[admission]\nwindow = 2\n[control]\nstall_s = 3600\n[control.silence]\nunused_slot_s = 600\n'
)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with running(tmp_path, config=TWO_SLOTS) as process:
        yield process


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "penstock.toml"


@pytest.fixture
async def client(daemon: DaemonProcess) -> AsyncIterator[ControlClient]:
    await listening(daemon)
    with connect(None, "test", daemon.folder) as found:
        yield found


async def publish(daemon: DaemonProcess, *batches: tuple[str, int, list[ev.Event]]) -> None:
    bus = await BusClient.connect(await daemon.url())
    for publisher, first, events in batches:
        await bus.publish(publisher, first, events)
    await bus.close()


def rows(client: ControlClient) -> dict[str, Any]:
    return {row.program_id: row for row in client.call("ListPrograms", ended=False).programs}


def statuses(client: ControlClient) -> dict[str, str]:
    return {name: row.status for name, row in rows(client).items()}


async def test_a_node_and_its_programs_are_told(daemon: DaemonProcess, client: ControlClient) -> None:
    await publish(
        daemon,
        (ENGINE, 1, [POOL]),
        (GATE, 1, queued("a", "b", "c")),
        (ENGINE, 2, [ev.TurnSubmitted(program_id="a", turn_id="a.1", projected_blocks=11, prompt_tokens=160)]),
        (TOOL, 1, [ev.ToolStarted(program_id="b", call_id="1", tool="bash")]),
    )
    found = await eventually(
        lambda: (r := rows(client)) and r["b"].phase == "acting" and r, what="a tool that runs"
    )
    assert {name: (row.status, row.phase) for name, row in found.items()} == {
        "a": ("active", "reasoning"),
        "b": ("active", "acting"),
        "c": ("waiting", "held"),
    }
    assert (found["c"].queue_position, found["b"].tool, found["a"].kv_blocks) == (1, "bash", 11)
    assert found["c"].hold_ns > 0
    status = client.call("GetStatus")
    assert (status.node, status.preset, status.window.limit, status.bus_connected) == ("test", "fcfs", 2, True)
    assert (status.pressure.programs_active, status.pressure.queue_length) == (2, 1)
    assert status.pressure.kv_total_blocks == 1000
    assert status.config.version == 1
    assert (status.engines.known, status.engines.serving, status.engines.silent) == (1, 1, 0)
    assert found["c"].waits_for == "all slots are taken"
    listed = client.call("ListEngines")
    (engine,) = listed.engines
    assert (engine.place, engine.kv_total_blocks, engine.turns, engine.programs) == ("test/engine", 1000, 1, 1)
    assert (listed.total, list(listed.moves)) == (1, [])
    assert status.now_ns < client.call("GetStatus").now_ns
    assert list(status.passive_engines) == []
    why = "rank 1 decided otherwise than rank 0"
    await publish(daemon, (ENGINE, 3, [replace(POOL, reason=why)]))
    status = await eventually(
        lambda: (s := client.call("GetStatus")).passive_engines and s, what="an engine that is passive"
    )
    assert list(status.passive_engines) == [f"engine: {why}"]
    assert f"engine: {why}" in daemon.penstock("status").stdout
    for order in ("Hold", "Release"):
        with pytest.raises(UnknownProgram, match="no program 'nobody' here"):
            client.call(order, program_id="nobody")
    with grpc.insecure_channel(client.address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        ask = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        reply = next(stub.ServerReflectionInfo(iter([ask])))
        assert reply.file_descriptor_response.file_descriptor_proto
    assert daemon.stop() == 0
    assert not control_path("test", daemon.folder).exists()


async def test_hold_and_release_and_orders_survive_a_kill(daemon: DaemonProcess, client: ControlClient) -> None:
    await publish(daemon, (ENGINE, 1, [POOL]), (GATE, 1, queued("a", "b", "c", "d")))
    await eventually(lambda: list(statuses(client).values()).count("active") == 2, what="two that run")
    assert client.call("Hold", program_id="a").held == ["a"]
    await eventually(
        lambda: statuses(client)["a"] == "paused" and statuses(client)["c"] == "active",
        what="the next in its place",
    )
    assert client.call("Hold", program_id="d").held == ["a", "d"]
    await publish(daemon, (TOOL, 1, [ev.ProgramEnded(program_id="b"), ev.ProgramEnded(program_id="c")]))
    await eventually(lambda: "c" not in statuses(client), what="an end")
    assert statuses(client)["d"] == "waiting"
    assert rows(client)["d"].held_by_operator
    assert client.call("Release", program_id="d").held == ["a"]
    await eventually(lambda: statuses(client)["d"] == "active", what="it is let in")
    assert client.call("Drain", undo=False).draining
    daemon.kill()
    daemon.log_path.write_text("")
    daemon.start()
    await listening(daemon)
    with connect(None, "test", daemon.folder) as again:
        orders = again.call("GetStatus").orders
        assert (orders.held, orders.draining) == (["a"], True)
        await publish(daemon, (GATE, 5, queued("new")))
        await eventually(lambda: statuses(again).get("new") == "waiting", what="a newcomer")
        assert not again.call("Drain", undo=True).draining
        await eventually(lambda: statuses(again)["new"] == "active", what="it is let in")
        assert again.call("Release", program_id="a").held == []


async def test_presets_and_files_are_taken_over_by_command_and_decisions_told(
    daemon: DaemonProcess, client: ControlClient, file: Path
) -> None:
    with pytest.raises(ConfigError, match=r"--preset: \$\.preset: no preset 'marz'; there are: autellix"):
        client.call("SetPreset", preset="marz")
    assert client.call("GetStatus").preset == "fcfs"
    assert client.call("SetPreset", preset="continuum").version == 2
    file.write_text("lease_s = 700\n")
    with pytest.raises(ConfigError, match=r"penstock\.toml:1: \$\.lease_s: expected 0\.5 <= lease_s <= 600"):
        client.call("Reload")
    assert client.call("GetStatus").config.refused
    file.write_text("lease_s = 7\n")  # everybody is let in
    assert client.call("Reload").refused == ""
    assert client.call("GetStatus").preset == "continuum"  # what was set by command goes before the file
    told: list[Any] = []
    stream = client.watch("WatchDecisions", program_id="")
    threading.Thread(target=lambda: told.append(next(stream)), daemon=True).start()
    async with bus_of(daemon) as bus:
        numbers = itertools.count(1)

        async def has_told() -> bool:
            """Until the watcher was heard of, and then hears."""
            number = next(numbers)
            await bus.publish(GATE, number, queued(f"p{number}"))
            return bool(told)

        await eventually(has_told, what="a decision", every_s=0.1)
    assert isinstance(told[0].command, cmd.Admit | cmd.SetWindow)
    assert told[0].command.reason
    assert told[0].missed == 0


async def test_who_only_listens_waits_for_a_quiet_daemon_and_is_told_of_a_frozen_one(
    daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = dict(control_client._STILL_THERE) | {"grpc.keepalive_time_ms": 1500}
    monkeypatch.setattr(control_client, "_STILL_THERE", tuple(often.items()))
    await listening(daemon)
    with connect(None, "test", daemon.folder) as client:
        watched = asyncio.create_task(asyncio.to_thread(list, client.watch("WatchDecisions", program_id="")))
        await asyncio.sleep(8)  # a server hangs up on who asks it too often, at the fifth time at the latest
        assert not watched.done()
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGSTOP)
        with pytest.raises(EngineUnavailable, match="does not answer"):
            await asyncio.wait_for(watched, TIMEOUT_S)


async def test_while_the_bus_is_away_nothing_is_changed_and_what_came_late_is_obeyed(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    with running(tmp_path, "--nats", nats_server.url) as daemon:
        await listening(daemon)
        with connect(None, "test", daemon.folder) as client:
            nats_server.kill()
            await eventually(lambda: not client.call("GetStatus").bus_connected, what="a loss")
            with pytest.raises(
                EngineUnavailable, match=r"^the bus is away, or keeps nothing: nothing was changed$"
            ):
                client.call("Drain", undo=False)
            nats_server.restart()
            await eventually(lambda: client.call("GetStatus").bus_connected, what="the bus")
            nats_server.suspend()
            with pytest.raises(EngineUnavailable, match=r"^the bus did not confirm the order"):
                client.call("Drain", undo=False)
            nats_server.resume()
            await eventually(lambda: client.call("GetStatus").orders.draining, what="the order, though late")
            assert not client.call("Drain", undo=True).draining


# TCP


async def test_tls_lets_only_signed_clients_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    own, clients, others = authority.issue_cert("localhost"), authority.issue_cert("me"), stranger.issue_cert("me")
    files = {"ca": authority.cert_pem, "own": own.cert_chain_pems[0], "own_key": own.private_key_pem}
    files |= {"client": clients.cert_chain_pems[0], "client_key": clients.private_key_pem}
    files |= {"other": others.cert_chain_pems[0], "other_key": others.private_key_pem}
    for name, blob in files.items():
        blob.write_to_path(tmp_path / f"{name}.pem")
    address = f"localhost:{free_port()}"
    pem = {name: str(tmp_path / f"{name}.pem") for name in files}
    config = (
        f'[api]\nlisten = "{address}"\ncertificate = "{pem["own"]}"\nprivate_key = "{pem["own_key"]}"\n'
        f'client_ca = "{pem["ca"]}"\n'
    )
    with running(tmp_path, config=config) as daemon:
        await listening(daemon)
        monkeypatch.setenv(CA_VARIABLE, pem["ca"])
        monkeypatch.setenv(CERTIFICATE_VARIABLE, pem["client"])
        monkeypatch.setenv(KEY_VARIABLE, pem["client_key"])
        with connect(address, "test") as client:
            assert client.call("GetStatus").node == "test"
        second = DaemonProcess(tmp_path / "second", "--config", str(tmp_path / "penstock.toml"))
        second.start()
        assert await asyncio.to_thread(second.wait) == 1
        assert f"$.api.listen: cannot listen at {address}" in second.log
        assert "Traceback" not in second.log
        monkeypatch.setenv(CERTIFICATE_VARIABLE, pem["other"])
        monkeypatch.setenv(KEY_VARIABLE, pem["other_key"])
        with connect(address, "test") as client, pytest.raises(EngineUnavailable):
            client.call("GetStatus")
        for variable in (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE):
            monkeypatch.delenv(variable)
        with connect(address, "test") as client, pytest.raises(EngineUnavailable):
            client.call("GetStatus")


# The commands


async def test_the_commands(daemon: DaemonProcess, client: ControlClient) -> None:
    await publish(daemon, (ENGINE, 1, [POOL]), (GATE, 1, queued("a", "b", "c")))
    await eventually(lambda: list(statuses(client).values()).count("active") == 2, what="two that run")
    asked = (
        "status --wait 50",
        "engines",
        "programs",
        "queue",
        "hold a",
        "drain",
        "release a",
        "drain --undo",
        "reload",
    )
    said = {name: daemon.penstock(*name.split()) for name in asked}
    assert {name: done.returncode for name, done in said.items()} == dict.fromkeys(said, 0)
    assert "2 active, 1 waiting, 3 known" in said["status --wait 50"].stdout
    assert [line.split()[0] for line in said["programs"].stdout.splitlines()] == ["program", "c", "a", "b"]
    assert [line.split()[:2] for line in said["queue"].stdout.splitlines()[1:]] == [["c", "waiting"]]
    assert said["queue"].stdout.splitlines()[1].endswith("all slots are taken")
    assert [line.split()[0] for line in said["engines"].stdout.splitlines()] == ["engine", "test/engine"]
    assert said["hold a"].stdout == "orders: on hold by operator: a\n"
    assert said["drain"].stdout == "orders: draining: no new program is let in; on hold by operator: a\n"
    assert said["drain --undo"].stdout == "orders: none\n"
    assert said["reload"].stdout == "configuration 1 is in force\n"
    assert json.loads(daemon.penstock("status", "--json").stdout)["window"]["limit"] == 2
    head, back = daemon.penstock("set-preset", "continuum").stdout.splitlines()
    assert head == "preset continuum is in force, as configuration 2; it was fcfs"
    assert back.startswith("Back: `penstock set-preset fcfs`;")
    in_force = daemon.penstock("config", "show", "--running").stdout
    assert 'preset = "continuum"  # --preset\n' in in_force
    assert f"window = 2  # {daemon.folder.parent}/penstock.toml:3\n" in in_force
    told = daemon.penstock("explain", "a").stdout
    assert "admit for 15m00s: slot 1 of 2" in told
    assert "rule: preset fcfs, admission fixed, packing fcfs; window 2, " in told
    assert "pause: an operator holds it" in told
    assert len(daemon.penstock("explain", "a", "--last", "1", "--json").stdout.splitlines()) == 1
    nobody = daemon.penstock("explain", "nobody")
    assert nobody.returncode == 1
    assert "nothing was decided about 'nobody'" in nobody.stderr
    missing = daemon.penstock("hold", "nobody")
    assert missing.returncode == 1
    assert missing.stderr == "penstock: no program 'nobody' here: `penstock programs` lists them\n"


def test_where_no_daemon_is_the_commands_say_what_to_do(tmp_path: Path) -> None:
    """Also after ``--wait``, and at an address where nobody speaks."""
    nobody = DaemonProcess(tmp_path)
    for words in (("status",), ("status", "--wait", "0.5")):
        done = nobody.penstock(*words)
        assert done.returncode == 1
        assert done.stderr.startswith("penstock: no daemon serves node 'test' here: there is no ")
        assert "Start `penstock up --node test`" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = nobody.penstock("status", "--api", f"127.0.0.1:{silent.getsockname()[1]}")
    assert done.returncode == 1
    assert "no connection within 3 s" in done.stderr
