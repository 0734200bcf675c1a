"""The emitter against a real nats-server: delivery, order, loss of the server, commands."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from controlplane.core.commands import Admit, Command, StateRequest
from controlplane.core.events import Grant, OpenTurn, PublisherState, ToolStarted, joined
from controlplane.emit import pump
from controlplane.emit.emitter import Emitter
from controlplane.emit.runtime import Runtime
from controlplane.wire import subjects
from controlplane.wire.codec import (
    DecodedBatch,
    Heartbeat,
    decode_events,
    encode_commands,
    encode_heartbeat,
)
from controlplane.wire.delivery import delivered

NODE = "node-1"
WAIT_S = 60.0  # only a failure waits so long
CONFIRMS_S = 600  # what a test gives a server whose confirmation nobody is to wait for


def tool(n: int) -> ToolStarted:
    return ToolStarted(program_id=f"program-{n}", call_id=f"call-{n}", tool="bash")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll the emitter's own counters, which have no event to wait for."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"still not: {what}"
        time.sleep(0.002)


class Listener:
    """Collects batches on a thread of its own, as a daemon would."""

    def __init__(self, url: str) -> None:
        self.batches: list[DecodedBatch] = []
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._client: Client = self._do(self._connect(url))

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    async def _connect(self, url: str) -> Client:
        client = await nats.connect(url, allow_reconnect=False, connect_timeout=round(WAIT_S), error_cb=_ignore)
        await client.subscribe(subjects.all_events_subject(NODE), cb=self._received)
        await delivered(client)
        return client

    async def _received(self, message: Any) -> None:
        with self._changed:
            self.batches.append(decode_events(message.data))
            self._changed.notify_all()

    def publish(self, subject: str, data: bytes) -> None:
        async def work() -> None:
            await self._client.publish(subject, data)
            await delivered(self._client)

        self._do(work())

    @property
    def events(self) -> list[Any]:
        return [event for batch in self.batches for event in batch.events]

    def wait_for(self, count: int) -> list[Any]:
        with self._changed:
            done = self._changed.wait_for(lambda: len(self.events) >= count, WAIT_S)
            assert done, f"{len(self.events)} of {count} events came"
            return self.events

    def close(self) -> None:
        self._do(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _ignore(error: Exception) -> None:
    """The connections of these tests are meant to break."""


@pytest.fixture
def listener(nats_server: Any) -> Any:
    one = Listener(nats_server.url)
    yield one
    one.close()


@pytest.fixture
def make_emitter(nats_server: Any) -> Any:
    made: list[Emitter] = []

    def make(**options: Any) -> Emitter:
        values: dict[str, Any] = {"url": lambda: nats_server.url, "node": NODE, "role": "tool", **options}
        emitter = Emitter(**values)
        made.append(emitter)
        return emitter

    yield make
    for emitter in made:
        emitter.close(0.5)


def test_events_arrive_in_order_with_contiguous_sequences(listener: Listener, make_emitter: Any) -> None:
    emitter = make_emitter()
    emitter.emit(tool(0))  # before start: kept
    emitter.start()
    emitter.start()
    for n in range(1, 1000):
        emitter.emit(tool(n))
    events = listener.wait_for(1000)
    assert [event.sequence for event in events] == list(range(1, 1001))
    assert [event.program_id for event in events] == [f"program-{n}" for n in range(1000)]
    assert {event.publisher for event in events} == {emitter.publisher}
    assert sorted(event.at_ns for event in events) == [event.at_ns for event in events]
    assert all(len(batch.events) <= 256 for batch in listener.batches)
    wait_until(lambda: emitter.stats.sent == 1000, "sent")
    assert emitter.stats.dropped == emitter.stats.rejected == 0
    assert emitter.stats.connected


def test_an_urgent_event_does_not_linger(listener: Listener, make_emitter: Any) -> None:
    emitter = make_emitter(linger_s=60)
    emitter.start()
    wait_until(lambda: emitter.stats.connected, "connected")
    emitter.emit(tool(0))
    emitter.emit(tool(1), urgent=True)
    listener.wait_for(2)


def test_close_sends_what_is_queued(listener: Listener, make_emitter: Any) -> None:
    emitter = make_emitter(linger_s=60)
    emitter.start()
    for n in range(3000):
        emitter.emit(tool(n))
    emitter.close(WAIT_S)
    assert emitter.stats.sent == 3000
    assert len(listener.wait_for(3000)) == 3000
    emitter.emit(tool(0))
    assert emitter.stats.dropped == 1
    emitter.close()


def test_what_a_dead_server_did_not_confirm_is_sent_to_the_next(nats_server: Any, make_emitter: Any) -> None:
    address = [nats_server.url]
    emitter = make_emitter(url=lambda: address[0], role="engine")
    first = Listener(nats_server.url)
    emitter.start()
    emitter.emit(tool(0))
    first.wait_for(1)
    first.close()
    wait_until(lambda: emitter.stats.sent == 1, "sent")
    nats_server.suspend()
    for n in range(1, 501):
        emitter.emit(tool(n))
    wait_until(lambda: emitter.stats.queued == 0, "under way to a server that does not read")
    nats_server.kill()
    wait_until(lambda: not emitter.stats.connected, "disconnected")
    emitter.emit(tool(501))
    nats_server.restart(move=True)
    second = Listener(nats_server.url)
    try:
        address[0] = nats_server.url
        events = second.wait_for(501)
        assert [event.sequence for event in events] == list(range(2, 503))
        wait_until(lambda: emitter.stats.sent == 502, "sent")
        assert emitter.stats.reconnects == 1
        assert emitter.stats.dropped == 0
    finally:
        second.close()


def test_close_does_not_wait_for_a_stuck_server(
    nats_server: Any, make_emitter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump, "_CONFIRM_TIMEOUT_S", CONFIRMS_S)
    emitter = make_emitter()
    emitter.start()
    wait_until(lambda: emitter.stats.connected, "connected")
    nats_server.suspend()
    emitter.emit(tool(0), urgent=True)
    began_s = time.monotonic()
    emitter.close(0.2)
    assert time.monotonic() - began_s < CONFIRMS_S / 10, "the server confirms nothing"
    nats_server.resume()
    wait_until(lambda: emitter.stats.sent == 1, "sent, though late")


def test_a_process_that_ends_while_it_still_imports_its_client_sends(listener: Listener, make_emitter: Any) -> None:
    """On a busy host a hook of Claude Code imports for seconds, and has then half a second of work."""

    def client() -> Client:
        time.sleep(4.0)
        return Client()

    emitter = make_emitter(runtime=Runtime(client=client))
    emitter.start()
    emitter.emit(tool(0), urgent=True)
    assert emitter.is_loading
    emitter.close(2.0)
    assert len(listener.wait_for(1)) == 1
    assert not emitter.is_loading


def test_a_program_that_does_not_close_still_sends(nats_server: Any, listener: Listener) -> None:
    program = f"""
from controlplane.core.events import ToolStarted
from controlplane.emit.emitter import Emitter
emitter = Emitter(url="{nats_server.url}", node="{NODE}", role="tool")
emitter.start()
emitter.emit(ToolStarted(program_id="p", call_id="c", tool="bash"))
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert [event.sequence for event in listener.wait_for(1)] == [1]


def test_a_full_queue_drops_the_oldest_and_leaves_a_gap(nats_server: Any, make_emitter: Any) -> None:
    address = ["nats://127.0.0.1:9"]  # the discard port: nothing listens
    emitter = make_emitter(url=lambda: address[0], capacity=100)
    emitter.start()
    for n in range(250):
        emitter.emit(tool(n))
    assert emitter.stats.dropped == 150
    assert emitter.stats.queued == 100
    listener = Listener(nats_server.url)
    try:
        address[0] = nats_server.url
        listener.wait_for(100)
        emitter.emit(tool(250))
        events = listener.wait_for(101)
        assert [event.sequence for event in events] == list(range(151, 252))
        assert [event.program_id for event in events] == [f"program-{n}" for n in range(150, 251)]
    finally:
        listener.close()


def test_a_stuck_server_blocks_nobody_and_loses_nothing(
    nats_server: Any, listener: Listener, make_emitter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump, "_CONFIRM_TIMEOUT_S", CONFIRMS_S)
    emitter = make_emitter()
    emitter.start()
    emitter.emit(tool(0))
    listener.wait_for(1)
    nats_server.suspend()
    try:
        began_s = time.monotonic()
        for n in range(1, 2001):
            emitter.emit(tool(n), urgent=True)
        assert time.monotonic() - began_s < CONFIRMS_S / 10, "the server confirms nothing"
    finally:
        nats_server.resume()
    wait_until(lambda: emitter.stats.sent == 2001, "sent")
    assert {event.sequence for event in listener.wait_for(2001)} == set(range(1, 2002))


def test_an_event_that_cannot_be_encoded_costs_only_itself(listener: Listener, make_emitter: Any) -> None:
    emitter = make_emitter(linger_s=0.05)
    emitter.emit(tool(0))
    emitter.emit(ToolStarted(program_id=None, call_id="c", tool="bash"))  # type: ignore[arg-type]
    emitter.emit("not an event")
    emitter.emit(ToolStarted(program_id="p", call_id="c" * 2_000_000, tool="bash"))
    emitter.emit(tool(1))
    emitter.start()
    events = listener.wait_for(2)
    assert [event.sequence for event in events] == [1, 5]
    wait_until(lambda: emitter.stats.rejected == 3, "rejected")


def test_commands_and_heartbeats_reach_their_callbacks(listener: Listener, make_emitter: Any) -> None:
    commands: list[Command] = []
    beats: list[Heartbeat] = []

    def on_command(command: Command) -> None:
        commands.append(command)
        raise ValueError("a callback that fails")

    emitter = make_emitter(on_command=on_command, on_heartbeat=beats.append)
    emitter.start()
    wait_until(lambda: emitter.stats.connected, "connected")
    sent = [Admit(command_id=1, program_id="a", ttl_ns=5), Admit(command_id=2, program_id="b")]
    beat = Heartbeat(node=NODE, boot_id="b", lease_ttl_ns=5, limit=3, window=3.5)
    listener.publish(subjects.tool_command_subject(NODE), b"\xff\xff not a batch")
    listener.publish(subjects.heartbeat_subject(NODE), b"\xff\xff not a heartbeat")
    listener.publish(subjects.tool_command_subject(NODE), encode_commands(sent))
    listener.publish(subjects.heartbeat_subject(NODE), encode_heartbeat(beat))
    wait_until(lambda: len(commands) == 2 and len(beats) == 1, "both called back")
    assert commands == sent
    assert beats == [beat]
    assert emitter.stats.callback_errors == 2
    assert emitter.stats.malformed == 2


def test_a_state_request_is_answered_in_sequence(listener: Listener, make_emitter: Any) -> None:
    turn = OpenTurn(program_id="p", turn_id="t", blocks=3)
    others: list[Command] = []
    emitter = make_emitter(
        state=lambda: PublisherState(
            open_turns=(turn,), grants=(Grant(program_id="p", command_id=7),), role="tool"
        ),
        on_command=others.append,
    )
    emitter.start()
    wait_until(lambda: emitter.stats.connected, "connected")
    emitter.emit(tool(0))
    listener.wait_for(1)
    ask = [StateRequest(publisher="somebody/else/1"), StateRequest(), StateRequest(publisher=emitter.publisher)]
    listener.publish(subjects.tool_command_subject(NODE), encode_commands(ask))
    listener.wait_for(3)
    emitter.emit(tool(1))
    events = listener.wait_for(4)
    assert [type(event) for event in events] == [ToolStarted, PublisherState, PublisherState, ToolStarted]
    assert [event.sequence for event in events] == [1, 2, 3, 4]
    state = events[1]
    assert isinstance(state, PublisherState)
    assert (state.open_turns, state.role) == ((turn,), "tool")
    assert state.grants == (Grant(program_id="p", command_id=7),)
    assert others == []


def test_what_may_be_lost_is_said_again_before_the_state(listener: Listener, make_emitter: Any) -> None:
    """A server that has read a batch may lose it with its stream."""
    emitter = make_emitter(state=lambda: PublisherState(role="tool"))
    emitter.start()
    wait_until(lambda: emitter.stats.connected, "connected")
    emitter.emit(tool(0))
    listener.wait_for(1)
    for asked in (1, 2):
        ask = [StateRequest(lost_ns=60 * 10**9)]
        listener.publish(subjects.tool_command_subject(NODE), encode_commands(ask))
        listener.wait_for(3 * asked)
    wait_until(lambda: len(listener.events) == 6, "all of it")
    assert [event.sequence for event in listener.events] == [1, 1, 2, 1, 2, 3]


def test_who_tells_states_says_nothing_again(listener: Listener, make_emitter: Any) -> None:
    """An engine's past turns are no news, and its state has the others."""
    emitter = make_emitter(role="engine", state=lambda: PublisherState(role="engine"))
    emitter.start()
    wait_until(lambda: emitter.stats.connected, "connected")
    emitter.emit(tool(0))
    listener.wait_for(1)
    listener.publish(subjects.command_subject(NODE), encode_commands([StateRequest(lost_ns=60 * 10**9)]))
    listener.wait_for(2)
    emitter.emit(tool(1))
    assert [event.sequence for event in listener.wait_for(3)] == [1, 2, 3]


def test_a_state_larger_than_a_message_arrives_in_parts(listener: Listener, make_emitter: Any) -> None:
    """Of 20,000 held turns: 2 MB, where the server takes 1 MiB."""
    turns = tuple(OpenTurn(program_id=f"program-{n:040}", turn_id=f"turn-{n:040}") for n in range(20_000))
    state = PublisherState(held_turns=turns, role="gate")
    emitter = make_emitter(state=lambda: state)
    emitter.start()
    wait_until(lambda: emitter.stats.connected, "connected")
    emitter.emit(tool(0))
    listener.wait_for(1)
    listener.publish(subjects.tool_command_subject(NODE), encode_commands([StateRequest()]))
    listener.wait_for(2)
    wait_until(lambda: not listener.events[-1].more, "a whole state")
    parts = listener.events[1:]
    assert [part.part for part in parts] == list(range(len(parts)))
    assert [part.sequence for part in parts] == list(range(2, 2 + len(parts)))
    assert joined(parts).held_turns == turns
    assert emitter.stats.rejected == 0


@pytest.mark.parametrize("state", [lambda: 1 / 0, lambda: "no state"])
def test_a_bad_state_callable_is_counted(listener: Listener, make_emitter: Any, state: Any) -> None:
    emitter = make_emitter(state=state)
    emitter.start()
    wait_until(lambda: emitter.stats.connected, "connected")
    listener.publish(subjects.tool_command_subject(NODE), encode_commands([StateRequest()]))
    wait_until(lambda: emitter.stats.callback_errors == 1, "counted")
    emitter.emit(tool(0))
    assert [event.sequence for event in listener.wait_for(1)] == [1]


def test_a_forked_child_publishes_as_itself(listener: Listener, make_emitter: Any) -> None:
    emitter = make_emitter()
    emitter.start()
    emitter.emit(tool(0))
    listener.wait_for(1)
    parent = emitter.publisher
    pid = os.fork()
    if pid == 0:
        try:
            emitter.emit(tool(7))
            emitter.close(WAIT_S)
        finally:
            os._exit(0 if emitter.stats.sent == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    emitter.emit(tool(1))
    events = listener.wait_for(3)
    ours = [event.sequence for event in events if event.publisher == parent]
    childs = [(event.sequence, event.program_id) for event in events if event.publisher != parent]
    assert ours == [1, 2]
    assert childs == [(1, "program-7")]


def test_many_threads_emit_at_once(listener: Listener, make_emitter: Any) -> None:
    emitter = make_emitter()
    emitter.start()

    def work(first: int) -> None:
        for n in range(first, first + 500):
            emitter.emit(tool(n), urgent=n % 50 == 0)

    threads = [threading.Thread(target=work, args=(500 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = listener.wait_for(2000)
    assert [event.sequence for event in events] == list(range(1, 2001))
    assert {event.program_id for event in events} == {f"program-{n}" for n in range(2000)}
