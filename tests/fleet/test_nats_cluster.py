"""Three real nats-servers as one cluster, and leaf nodes as ``deploy/nats`` has them."""

import re
import subprocess
from pathlib import Path

import pytest
from nats.errors import Error as NatsError
from nats.js.api import StreamConfig
from nats.js.errors import ServiceUnavailableError
from support.daemon_process import DaemonProcess, eventually
from support.nats import nats_server_binary
from support.ports import free_port

from controlplane.fleet.stream import FleetBus
from controlplane.lab.fleet.nats_cluster import LocalCluster

from .nats_servers import connected, made, published, running
from .test_fleet_stream import comes, publish, reading

DEPLOY = Path(__file__).parents[2] / "deploy" / "nats"


async def test_a_stream_of_three_copies_goes_on_without_a_server(tmp_path: Path) -> None:
    cluster = LocalCluster.make(tmp_path / "cluster")
    with running(*(server.command for server in cluster.servers), log=tmp_path / "log") as processes:
        async with await connected(cluster.url) as client:
            await made(client, StreamConfig(name="KEPT", subjects=["kept.>"], num_replicas=3))
            await published(client, "kept.1", b"before")
            led_by = (await client.jetstream(timeout=60).stream_info("KEPT")).cluster.leader
            which = next(n for n, server in enumerate(cluster.servers) if server.name != led_by)
            processes[which].kill()
            processes[which].wait(60)
            await published(client, "kept.2", b"after")
            assert (await client.jetstream(timeout=60).get_msg("KEPT", 1)).data == b"before"


async def test_a_daemon_waits_for_the_other_servers_of_a_cluster_that_begins(tmp_path: Path) -> None:
    cluster, log = LocalCluster.make(tmp_path / "cluster"), tmp_path / "log"
    first, *others = [server.command for server in cluster.servers]
    daemon = DaemonProcess(tmp_path / "state", "--nats", cluster.url)

    async def says_so() -> bool:
        try:
            await client.jetstream(timeout=1).stream_info("ANY")
        except ServiceUnavailableError:
            return True
        except (NatsError, TimeoutError):  # it still looks for a leader
            return False
        raise AssertionError("one of three servers leads alone")

    async def waits() -> bool:
        assert not daemon.has_ended, daemon.log
        return "JetStream system temporarily unavailable" in daemon.log

    async def is_up() -> bool:
        assert not daemon.has_ended, daemon.log
        return '"event": "up"' in daemon.log

    with running(first, log=log):
        try:
            async with await connected(cluster.url.partition(",")[0]) as client:
                await eventually(says_so, what="answer of a server that knows that it is alone")
            daemon.start()
            await eventually(waits, what="word of a cluster without a leader")
            with running(*others, log=log):
                await eventually(is_up, what="daemon")
                assert daemon.stop() == 0
        finally:
            daemon.clean_up()


async def test_a_site_takes_over_what_engines_tell_of_a_node_that_is_a_leaf(tmp_path: Path) -> None:
    site, leaves, node = (f"127.0.0.1:{free_port()}" for _ in range(3))
    settings = {
        "site.conf": {"0.0.0.0:4222": site, "0.0.0.0:7422": leaves, "http:.*": "", r"cluster \{[^}]*\}": ""},
        "node.conf": {
            "listen: 127.0.0.1:4222": f"listen: {node}",
            "urls:.*": f'urls: ["nats-leaf://gpu7:change-me-too@{leaves}"]',
        },
    }
    commands = []
    for name, changes in settings.items():
        text = (DEPLOY / name).read_text()
        for old, new in (*changes.items(), ("/var/lib/nats", str(tmp_path / name.removesuffix(".conf")))):
            text, count = re.subn(old, new, text)
            assert count == 1, f"{name}: {old}"
        (tmp_path / name).write_text(text)
        commands.append((str(nats_server_binary()), "-c", str(tmp_path / name)))
    with running(*commands, log=tmp_path / "log"):
        async with (
            await connected(f"nats://{node}") as leaf,
            await connected(f"nats://fleet:change-me@{site}") as fleet,
        ):
            own = FleetBus(f"nats://{node}", "gpu7")  # the node's daemon makes the node's stream, on its own server
            await own.connect()
            await own.first_stream()
            url = f"nats://fleet:change-me@{site}"
            async with reading(url, "gpu7", domains={"gpu7": "gpu7"}) as (bus, heard):

                async def joined() -> bool:
                    await bus.join(["gpu7"])
                    return not bus.missing

                await eventually(joined, what="the leaf's stream at its site")  # else tried again after a minute
                forged = await fleet.subscribe("penstock.v1.gpu8.>")
                for publisher in ("gpu8/engine-1/forged", "gpu7/gate/x", "gpu7/engine-1/x"):
                    await publish(leaf, publisher)
                await comes(lambda: bool(heard), "an event of the node at the site")
                assert heard == ["gpu7/engine-1/x"]
                assert forged.pending_msgs == 0
                streams = await fleet.jetstream(timeout=60).streams_info()
                assert [each.config.name for each in streams] == ["PENSTOCK-fleet"]
            await own.close()


@pytest.mark.parametrize("name", ["site.conf", "node.conf"])
def test_nats_server_accepts_the_files(name: str) -> None:
    said = subprocess.run(
        [str(nats_server_binary()), "-t", "-c", str(DEPLOY / name)], capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
