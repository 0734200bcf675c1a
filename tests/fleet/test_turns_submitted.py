"""What engines took is read from a cluster whose leader was killed just before."""

import re
from pathlib import Path

from nats.js.api import StreamConfig

from controlplane.core.model.events import TurnSubmitted
from controlplane.lab.fleet.nats_cluster import LocalCluster
from controlplane.lab.fleet.submitted import turns_submitted
from controlplane.transport.subjects import all_events_subject, event_subject, stream_name
from controlplane.wire.codec import encode_events

from .nats_servers import connected, made, published, running

_LEADS = re.compile(r"^\[(\d+)\].*Self is new JetStream cluster metadata leader", re.MULTILINE)


def _turn(turn_id: str) -> TurnSubmitted:
    return TurnSubmitted(program_id="agent", turn_id=turn_id, projected_blocks=1)


async def test_it_is_asked_again_while_a_leader_is_elected(tmp_path: Path) -> None:
    cluster, log = LocalCluster.make(tmp_path / "cluster"), tmp_path / "log"
    with running(*(server.command for server in cluster.servers), log=log) as processes:
        async with await connected(cluster.url) as client:
            for node, turns in (("one", ("first", "second")), ("two", ("second", "second"))):
                config = StreamConfig(name=stream_name(node), subjects=[all_events_subject(node)], num_replicas=3)
                await made(client, config)
                batch = encode_events(f"{node}/engine", 1, [(0, _turn(turn)) for turn in turns])
                await published(client, event_subject(node, "engine"), batch)
            assert await turns_submitted(cluster.url, ["one", "two", "never-told"]) == {"agent": 3}
            *_, leader = _LEADS.findall(log.read_text(errors="replace"))
            next(process for process in processes if process.pid == int(leader)).kill()
            assert await turns_submitted(cluster.url, ["one", "two"]) == {"agent": 3}
