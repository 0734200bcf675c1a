"""From where in the stream a daemon reads on that has a snapshot."""

from pathlib import Path

import pytest

from controlplane.config import Resolved, Source, parse
from controlplane.shell.bus import Bus, StreamInfo
from controlplane.shell.daemon import Daemon


@pytest.mark.parametrize(
    ("created", "last", "read_up_to"),
    [("then", 12, 10), ("then", 8, 8), ("now", 12, 2)],
    ids=["behind the snapshot", "at the end of a stream that lost its tail", "from the beginning of a new stream"],
)
def test_it_reads_what_the_snapshot_does_not_have(tmp_path: Path, created: str, last: int, read_up_to: int) -> None:
    path = tmp_path / "snapshot.json"
    resolved = Resolved(config=parse({"node": "node"}), origins={})
    daemon = Daemon(Source(), resolved, Bus("nats://nowhere", "node"), path)
    daemon.position, daemon._stream_created = 10, "then"
    path.write_bytes(b"".join(daemon._snapshot(1)))
    assert daemon._load(StreamInfo(created=created, first_sequence=3, last_sequence=last)) == read_up_to
