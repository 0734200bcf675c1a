"""From where in the stream a daemon reads on that has a snapshot, and until when."""

from pathlib import Path

import anyio
import pytest

from controlplane.config import Resolved, Source, parse
from controlplane.core.events import ProgramEnded
from controlplane.shell import daemon as daemons
from controlplane.shell.bus import Bus, Delivery, StreamInfo
from controlplane.shell.daemon import Daemon
from controlplane.wire.codec import encode_events
from controlplane.wire.subjects import event_subject


def new_daemon(path: Path) -> Daemon:
    resolved = Resolved(config=parse({"node": "node"}), origins={})
    return Daemon(Source(), resolved, Bus("nats://nowhere", "node"), path)


def delivery(number: int) -> Delivery:
    data = encode_events("node/gate/one", number, [(0, ProgramEnded(program_id="p"))])
    return Delivery(data, number, 0, event_subject("node", "gate"), False)


@pytest.mark.parametrize(
    ("created", "last", "read_up_to"),
    [("then", 12, 10), ("then", 8, 8), ("now", 12, 2)],
    ids=["behind the snapshot", "at the end of a stream that lost its tail", "from the beginning of a new stream"],
)
def test_it_reads_what_the_snapshot_does_not_have(tmp_path: Path, created: str, last: int, read_up_to: int) -> None:
    path = tmp_path / "snapshot.json"
    daemon = new_daemon(path)
    daemon.position, daemon._stream_created = 10, "then"
    path.write_bytes(b"".join(daemon._snapshot(1)))
    assert daemon._load(StreamInfo(created=created, first_sequence=3, last_sequence=last)) == read_up_to


async def reads(daemon: Daemon, comes: int, *, last: int, every_s: float = 0.1) -> None:
    """Read up to ``last`` while so many messages come, each after a time."""

    async def come() -> None:
        for number in range(1, comes + 1):
            await anyio.sleep(every_s)
            daemon.bus.inbox.put(delivery(number))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(come)
        with anyio.fail_after(30):
            await daemon._catch_up(last)
        tasks.cancel_scope.cancel()


@pytest.mark.asyncio
async def test_it_reads_as_long_as_something_comes_and_saves_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of a day takes minutes: who led before the end held all turns until then."""
    monkeypatch.setattr(daemons, "_STALLED_S", 3.0)
    monkeypatch.setattr(daemons, "_TELL_S", 0.2)
    daemon = new_daemon(tmp_path / "snapshot.json")
    await reads(daemon, 16, last=16, every_s=0.2)
    assert daemon.position == 16
    position = new_daemon(tmp_path / "snapshot.json")._load(
        StreamInfo(created="", first_sequence=1, last_sequence=16)
    )
    assert 1 <= position <= 16


@pytest.mark.asyncio
async def test_it_begins_when_nothing_comes_any_more_or_when_it_is_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last messages may have been deleted."""
    monkeypatch.setattr(daemons, "_STALLED_S", 0.5)
    daemon = new_daemon(tmp_path / "snapshot.json")
    await reads(daemon, 3, last=10)
    assert daemon.position == 3
    daemon.stop()
    await reads(daemon, 0, last=10)
    assert daemon.position == 3
