"""The emitter against a real nats-server: delivery, order, loss of the server, commands."""

import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from nats.aio.client import Client
from support.daemon_process import until
from support.heard import Heard

from controlplane.core.model.commands import Admit, Command, StateRequest
from controlplane.core.model.events import Grant, OpenTurn, PublisherState, ToolStarted
from controlplane.core.model.state_parts import joined
from controlplane.emit import publisher_loop as pump
from controlplane.emit.emitter import Emitter
from controlplane.emit.runtime import Runtime
from controlplane.transport import subjects
from controlplane.wire.codec import Heartbeat, encode_commands, encode_heartbeat

NODE = "node-1"
WAIT_S = 60.0  # only a failure waits so long
CONFIRMS_S = 600  # what a test gives a server whose confirmation nobody is to wait for


def tool(n: int) -> ToolStarted:
    return ToolStarted(program_id=f"program-{n}", call_id=f"call-{n}", tool="bash")


@pytest.fixture
def listener(nats_server: Any) -> Any:
    one = Heard(nats_server.url, NODE)
    yield one
    one.close()


@pytest.fixture
def make_emitter(nats_server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes emitters, to whom no server is too slow."""
    monkeypatch.setattr(pump, "_CONFIRM_TIMEOUT_S", CONFIRMS_S)
    made: list[Emitter] = []

    def make(**options: Any) -> Emitter:
        values: dict[str, Any] = {"url": lambda: nats_server.url, "node": NODE, "role": "tool", **options}
        emitter = Emitter(**values)
        made.append(emitter)
        return emitter

    yield make
    for emitter in made:
        emitter.close(0.5)


def test_events_arrive_in_order_with_contiguous_sequences(listener: Heard, make_emitter: Any) -> None:
    emitter = make_emitter()
    emitter.emit(tool(0))  # before start: kept
    emitter.start()
    emitter.start()
    for n in range(1, 1000):
        emitter.emit(tool(n))
    events = listener.first(1000)
    assert [event.sequence for event in events] == list(range(1, 1001))
    assert [event.program_id for event in events] == [f"program-{n}" for n in range(1000)]
    assert {event.publisher for event in events} == {emitter.publisher}
    assert sorted(event.at_ns for event in events) == [event.at_ns for event in events]
    assert all(len(batch.events) <= 256 for batch in listener.batches)
    until(lambda: emitter.stats.sent == 1000, "sent")
    assert emitter.stats.dropped == emitter.stats.rejected == 0
    assert emitter.stats.connected


def test_an_urgent_event_does_not_linger(listener: Heard, make_emitter: Any) -> None:
    emitter = make_emitter(linger_s=60)
    emitter.start()
    until(lambda: emitter.stats.connected, "connected")
    emitter.emit(tool(0))
    emitter.emit(tool(1), urgent=True)
    listener.first(2)


def test_close_sends_what_is_queued(listener: Heard, make_emitter: Any) -> None:
    emitter = make_emitter(linger_s=60)
    emitter.start()
    for n in range(3000):
        emitter.emit(tool(n))
    emitter.close(WAIT_S)
    assert emitter.stats.sent == 3000
    assert len(listener.first(3000)) == 3000
    emitter.emit(tool(0))
    assert emitter.stats.dropped == 1
    emitter.close()


def test_what_a_dead_server_did_not_confirm_is_sent_to_the_next(nats_server: Any, make_emitter: Any) -> None:
    address = [nats_server.url]
    emitter = make_emitter(url=lambda: address[0], role="engine")
    first = Heard(nats_server.url, NODE)
    emitter.start()
    emitter.emit(tool(0))
    first.first(1)
    first.close()
    until(lambda: emitter.stats.sent == 1, "sent")
    nats_server.suspend()
    for n in range(1, 501):
        emitter.emit(tool(n))
    until(lambda: emitter.stats.queued < 500, "under way, some of them, to a server that does not read")
    nats_server.kill()
    until(lambda: not emitter.stats.connected, "disconnected")
    emitter.emit(tool(501))
    nats_server.restart(move=True)
    second = Heard(nats_server.url, NODE)
    try:
        address[0] = nats_server.url
        events = second.first(501)
        assert [event.sequence for event in events] == list(range(2, 503))
        until(lambda: emitter.stats.sent == 502, "sent")
        assert emitter.stats.connections == 2
        assert emitter.stats.dropped == 0
    finally:
        second.close()


def test_a_stuck_server_blocks_nobody_and_loses_nothing(
    nats_server: Any, listener: Heard, make_emitter: Any
) -> None:
    emitter = make_emitter()
    emitter.start()
    emitter.emit(tool(0))
    listener.first(1)
    nats_server.suspend()
    try:
        began_s = time.monotonic()
        for n in range(1, 2001):
            emitter.emit(tool(n), urgent=True)
        assert time.monotonic() - began_s < CONFIRMS_S / 10, "the server confirms nothing"
        nats_server.resume()
        until(lambda: emitter.stats.sent == 2001, "sent")
        assert {event.sequence for event in listener.first(2001)} == set(range(1, 2002))
        nats_server.suspend()
        emitter.emit(tool(0), urgent=True)
        began_s = time.monotonic()
        emitter.close(0.2)
        assert time.monotonic() - began_s < CONFIRMS_S / 10, "the server confirms nothing"
    finally:
        nats_server.resume()
    until(lambda: emitter.stats.sent == 2002, "sent, though late")


def test_a_process_that_ends_while_it_still_imports_its_client_sends(listener: Heard, make_emitter: Any) -> None:
    """On a busy host a hook of Claude Code imports for seconds, and has then half a second of work."""

    def client() -> Client:
        time.sleep(4.0)
        return Client()

    emitter = make_emitter(runtime=Runtime(client=client))
    emitter.start()
    emitter.emit(tool(0), urgent=True)
    assert emitter.is_loading
    emitter.close(2.0)
    assert len(listener.first(1)) == 1
    assert not emitter.is_loading


def test_a_program_that_does_not_close_still_sends(nats_server: Any, listener: Heard) -> None:
    program = f"""
from controlplane.core.model.events import ToolStarted
from controlplane.emit.emitter import Emitter
emitter = Emitter(url="{nats_server.url}", node="{NODE}", role="tool")
emitter.start()
emitter.emit(ToolStarted(program_id="p", call_id="c", tool="bash"))
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert [event.sequence for event in listener.first(1)] == [1]


def test_a_full_queue_drops_the_oldest_and_leaves_a_gap(nats_server: Any, make_emitter: Any) -> None:
    address = ["nats://127.0.0.1:9"]  # the discard port: nothing listens
    emitter = make_emitter(url=lambda: address[0], capacity=100)
    emitter.start()
    for n in range(250):
        emitter.emit(tool(n))
    assert emitter.stats.dropped == 150
    assert emitter.stats.queued == 100
    listener = Heard(nats_server.url, NODE)
    try:
        address[0] = nats_server.url
        listener.first(100)
        emitter.emit(tool(250))
        events = listener.first(101)
        assert [event.sequence for event in events] == list(range(151, 252))
        assert [event.program_id for event in events] == [f"program-{n}" for n in range(150, 251)]
    finally:
        listener.close()


def test_an_event_that_cannot_be_encoded_costs_only_itself(listener: Heard, make_emitter: Any) -> None:
    emitter = make_emitter(linger_s=0.05)
    emitter.emit(tool(0))
    emitter.emit(ToolStarted(program_id=None, call_id="c", tool="bash"))  # type: ignore[arg-type]
    emitter.emit("not an event")
    emitter.emit(ToolStarted(program_id="p", call_id="c" * 2_000_000, tool="bash"))
    emitter.emit(tool(1))
    emitter.start()
    events = listener.first(2)
    assert [event.sequence for event in events] == [1, 5]
    until(lambda: emitter.stats.rejected == 3, "rejected")


def test_commands_and_heartbeats_reach_their_callbacks(listener: Heard, make_emitter: Any) -> None:
    commands: list[Command] = []
    beats: list[Heartbeat] = []

    def on_command(command: Command) -> None:
        commands.append(command)
        raise ValueError("a callback that fails")

    emitter = make_emitter(on_command=on_command, on_heartbeat=beats.append)
    emitter.start()
    until(lambda: emitter.stats.connected, "connected")
    sent = [Admit(command_id=1, program_id="a", ttl_ns=5), Admit(command_id=2, program_id="b")]
    beat = Heartbeat(node=NODE, boot_id="b", lease_ttl_ns=5, limit=3, window=3.5)
    listener.publish(subjects.tool_command_subject(NODE), b"\xff\xff not a batch")
    listener.publish(subjects.heartbeat_subject(NODE), b"\xff\xff not a heartbeat")
    listener.publish(subjects.tool_command_subject(NODE), encode_commands(sent))
    listener.publish(subjects.heartbeat_subject(NODE), encode_heartbeat(beat))
    until(lambda: len(commands) == 2 and len(beats) == 1, "both called back")
    assert commands == sent
    assert beats == [beat]
    assert emitter.stats.callback_errors == 2
    assert emitter.stats.malformed == 2


def test_a_state_request_is_answered_in_sequence(listener: Heard, make_emitter: Any) -> None:
    turn = OpenTurn(program_id="p", turn_id="t", blocks=3)
    others: list[Command] = []
    emitter = make_emitter(
        state=lambda: PublisherState(
            open_turns=(turn,), grants=(Grant(program_id="p", command_id=7),), role="tool"
        ),
        on_command=others.append,
    )
    emitter.start()
    until(lambda: emitter.stats.connected, "connected")
    emitter.emit(tool(0))
    listener.first(1)
    ask = [StateRequest(publisher="somebody/else/1"), StateRequest(), StateRequest(publisher=emitter.publisher)]
    listener.publish(subjects.tool_command_subject(NODE), encode_commands(ask))
    listener.first(3)
    emitter.emit(tool(1))
    events = listener.first(4)
    assert [type(event) for event in events] == [ToolStarted, PublisherState, PublisherState, ToolStarted]
    assert [event.sequence for event in events] == [1, 2, 3, 4]
    state = events[1]
    assert isinstance(state, PublisherState)
    assert (state.open_turns, state.role) == ((turn,), "tool")
    assert state.grants == (Grant(program_id="p", command_id=7),)
    assert others == []


def test_what_may_be_lost_is_said_again_before_the_state(listener: Heard, make_emitter: Any) -> None:
    """A server that has read a batch may lose it with its stream."""
    emitter = make_emitter(state=lambda: PublisherState(role="tool"))
    emitter.start()
    until(lambda: emitter.stats.connected, "connected")
    emitter.emit(tool(0))
    listener.first(1)
    for asked in (1, 2):
        ask = [StateRequest(lost_ns=60 * 10**9)]
        listener.publish(subjects.tool_command_subject(NODE), encode_commands(ask))
        listener.first(3 * asked)
    until(lambda: len(listener.events) == 6, "all of it")
    assert [event.sequence for event in listener.events] == [1, 1, 2, 1, 2, 3]


def test_who_tells_states_says_nothing_again(listener: Heard, make_emitter: Any) -> None:
    """An engine's past turns are no news, and its state has the others."""
    emitter = make_emitter(role="engine", state=lambda: PublisherState(role="engine"))
    emitter.start()
    until(lambda: emitter.stats.connected, "connected")
    emitter.emit(tool(0))
    listener.first(1)
    listener.publish(subjects.command_subject(NODE), encode_commands([StateRequest(lost_ns=60 * 10**9)]))
    listener.first(2)
    emitter.emit(tool(1))
    assert [event.sequence for event in listener.first(3)] == [1, 2, 3]


def test_a_state_larger_than_a_message_arrives_in_parts(listener: Heard, make_emitter: Any) -> None:
    """Of 20,000 held turns: 2 MB, where the server takes 1 MiB."""
    turns = tuple(OpenTurn(program_id=f"program-{n:040}", turn_id=f"turn-{n:040}") for n in range(20_000))
    state = PublisherState(held_turns=turns, role="gate")
    emitter = make_emitter(state=lambda: state)
    emitter.start()
    until(lambda: emitter.stats.connected, "connected")
    emitter.emit(tool(0))
    listener.first(1)
    listener.publish(subjects.tool_command_subject(NODE), encode_commands([StateRequest()]))
    listener.first(2)
    until(lambda: not listener.events[-1].more, "a whole state")
    parts = listener.events[1:]
    assert [part.part for part in parts] == list(range(len(parts)))
    assert [part.sequence for part in parts] == list(range(2, 2 + len(parts)))
    assert joined(parts).held_turns == turns
    assert emitter.stats.rejected == 0


@pytest.mark.parametrize("state", [lambda: 1 / 0, lambda: "no state"])
def test_a_bad_state_callable_is_counted(listener: Heard, make_emitter: Any, state: Any) -> None:
    emitter = make_emitter(state=state)
    emitter.start()
    until(lambda: emitter.stats.connected, "connected")
    listener.publish(subjects.tool_command_subject(NODE), encode_commands([StateRequest()]))
    until(lambda: emitter.stats.callback_errors == 1, "counted")
    emitter.emit(tool(0))
    assert [event.sequence for event in listener.first(1)] == [1]


def test_a_forked_child_publishes_as_itself(listener: Heard, make_emitter: Any) -> None:
    emitter = make_emitter()
    emitter.start()
    emitter.emit(tool(0))
    listener.first(1)
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
    events = listener.first(3)
    ours = [event.sequence for event in events if event.publisher == parent]
    childs = [(event.sequence, event.program_id) for event in events if event.publisher != parent]
    assert ours == [1, 2]
    assert childs == [(1, "program-7")]


def test_many_threads_emit_at_once(listener: Heard, make_emitter: Any) -> None:
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
    events = listener.first(2000)
    assert [event.sequence for event in events] == list(range(1, 2001))
    assert {event.program_id for event in events} == {f"program-{n}" for n in range(2000)}
