"""From where in the stream a daemon reads on that has a snapshot, and until when."""

from pathlib import Path

import anyio
import pytest

from controlplane.config import Resolved, Source, parse
from controlplane.core.model.events import ProgramEnded
from controlplane.daemon import daemon as daemons
from controlplane.daemon.bus import recovery as catching_up
from controlplane.daemon.bus.connection import Bus, Delivery, StreamInfo
from controlplane.daemon.bus.recovery import RecoveryMark
from controlplane.daemon.daemon import Daemon
from controlplane.transport.subjects import event_subject
from controlplane.wire.codec import Heartbeat, encode_events


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


async def test_it_reads_as_long_as_something_comes_and_saves_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of a day takes minutes: who led before the end held all turns until then."""
    monkeypatch.setattr(catching_up, "_STALLED_S", 3.0)
    monkeypatch.setattr(daemons, "_PROGRESS_S", 0.2)
    daemon = new_daemon(tmp_path / "snapshot.json")
    await reads(daemon, 16, last=16, every_s=0.2)
    assert daemon.position == 16
    position = new_daemon(tmp_path / "snapshot.json")._load(
        StreamInfo(created="", first_sequence=1, last_sequence=16)
    )
    assert 1 <= position <= 16


async def test_it_begins_when_nothing_comes_any_more_or_when_it_is_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last messages may have been deleted."""
    monkeypatch.setattr(catching_up, "_STALLED_S", 0.5)
    daemon = new_daemon(tmp_path / "snapshot.json")
    await reads(daemon, 3, last=10)
    assert daemon.position == 3
    daemon.stop()
    await reads(daemon, 0, last=10)
    assert daemon.position == 3


async def test_a_message_at_which_the_process_ended_twice_is_set_aside(tmp_path: Path) -> None:
    """Each other is read, also one at which it ended once; and how far that is was saved for the next start."""
    path, mark = tmp_path / "snapshot.json", tmp_path / "snapshot.mark"
    for ends in (2, 1):
        for _ in range(ends):
            assert RecoveryMark(mark).begin(2)  # and it is killed
        daemon = new_daemon(path)
        await reads(daemon, 4, last=4)
        assert (daemon.position, daemon.pipeline.set_aside.count) == (4, ends - 1)
        if ends == 2:
            assert (tmp_path / "set-aside" / "1.message").read_bytes() == delivery(2).data
            stream = StreamInfo(created="", first_sequence=1, last_sequence=4)
            assert new_daemon(path)._load(stream) == 2
        path.unlink(missing_ok=True)


class BusDouble(Bus):
    """Something comes all the time, and heartbeats are kept."""

    def __init__(self) -> None:
        super().__init__("nats://nowhere", "node")
        self.beats: list[Heartbeat] = []

    silent_s = 0.0

    async def beat(self, heartbeat: Heartbeat) -> None:
        self.beats.append(heartbeat)


async def test_gates_hear_of_it_once_it_has_read_what_happened_until_it_leads(tmp_path: Path) -> None:
    """A gate that hears a daemon lets nobody in by itself, however long that one has yet to read."""
    resolved = Resolved(config=parse({"node": "node", "heartbeat_s": 0.02}), origins={})
    daemon = Daemon(Source(), resolved, bus := BusDouble(), tmp_path / "snapshot.json")
    daemon._begin_to_lead()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(daemon._beat)
        await anyio.sleep(0.1)
        daemon._note_gap()
        assert not bus.beats
        sample = daemon._probe.sample(None, elsewhere=False)
        data = encode_events(daemon._host_publisher, daemon._proof, [(daemon.clock.now_ns(), sample)])
        daemon.pipeline.feed(data, daemon.clock.now_ns(), event_subject("node", "host"))
        daemon._note_gap()
        with anyio.fail_after(30):
            while not bus.beats:
                await daemon._decide()
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
