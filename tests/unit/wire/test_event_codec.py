"""Events survive the wire exactly, and what makes no sense is told apart from what does."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_strategies import events
from support import strangers

from controlplane.core.model import events as core
from controlplane.core.model.errors import LocalEventError, RemoteEventError
from controlplane.core.model.text import printable, sanitize
from controlplane.wire._generated import events_pb2 as pb
from controlplane.wire.codec import DecodedBatch, decode_events, encode_events

PUBLISHER = "node/engine/boot"
TOOL = core.ToolStarted(program_id="p", call_id="c", tool="bash")


def decode(batch: pb.EventBatch) -> DecodedBatch:
    return decode_events(batch.SerializeToString())


def batch_of(*kinds: dict[str, Any]) -> pb.EventBatch:
    return pb.EventBatch(
        publisher=PUBLISHER, first_sequence=7, events=[pb.Event(at_ns=1, **kind) for kind in kinds]
    )


@given(st.lists(events(), max_size=8), st.integers(1, 2**60), st.integers(0, 2**62))
def test_every_event_survives_the_wire(items: list[core.Event], first: int, at_ns: int) -> None:
    data = encode_events(PUBLISHER, first, [(at_ns + n, event) for n, event in enumerate(items)])
    batch = decode_events(data)
    expected = [
        replace(event, publisher=PUBLISHER, sequence=first + n, at_ns=at_ns + n) for n, event in enumerate(items)
    ]
    assert batch.events == expected
    assert [type(event) for event in batch.events] == [type(event) for event in items]
    assert batch.rejected == []
    assert (batch.publisher, batch.first_sequence) == (PUBLISHER, first)
    assert batch.last_sequence == first + len(items) - 1


def test_decoded_events_are_frozen_hashable_and_of_the_plain_class() -> None:
    event = decode_events(encode_events(PUBLISHER, 1, [(1, TOOL)])).events[0]
    assert type(event) is core.ToolStarted
    assert repr(event).startswith("ToolStarted(")
    assert hash(event) == hash(replace(TOOL, publisher=PUBLISHER, sequence=1, at_ns=1))
    with pytest.raises(AttributeError):
        event.sequence = 5  # type: ignore[misc]


@given(st.lists(events(), min_size=1, max_size=4), st.data())
def test_a_truncated_batch_never_gives_events_that_were_not_sent(items: list[core.Event], data: Any) -> None:
    encoded = encode_events(PUBLISHER, 1, [(5, event) for event in items])
    cut = data.draw(st.integers(0, len(encoded) - 1))
    try:
        batch = decode_events(encoded[:cut])
    except RemoteEventError:
        return
    assert batch.events == decode_events(encoded).events[: len(batch.events)]


def test_malformed_bytes_say_so() -> None:
    with pytest.raises(RemoteEventError, match="malformed event batch of 3 bytes"):
        decode_events(b"\xff\xff\xff")
    with pytest.raises(RemoteEventError, match="publisher is empty"):
        decode_events(b"")
    with pytest.raises(RemoteEventError, match=r"node/engine/boot: first_sequence: expected >= 1, got 0"):
        decode(pb.EventBatch(publisher=PUBLISHER))


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ({"program_arrived": {}}, "program_arrived.program_id: expected a name, got an empty text"),
        ({"program_ended": {}}, "program_ended.program_id: expected a name"),
        ({"turn_queued": {"program_id": "p", "turn_id": "t", "prompt_bytes": -1}}, "prompt_bytes: expected >= 0"),
        ({"turn_queued": {"program_id": "p"}}, "turn_queued.turn_id: expected a name"),
        ({"turn_abandoned": {"turn_id": "t"}}, "turn_abandoned.program_id"),
        (
            {"turn_submitted": {"program_id": "p", "turn_id": "t", "projected_blocks": -3}},
            "turn_submitted.projected_blocks: expected >= 0, got -3",
        ),
        ({"first_token": {"program_id": "p", "turn_id": "t", "prefill_ns": -1}}, "first_token.prefill_ns"),
        ({"turn_ended": {"program_id": "p", "turn_id": "t", "tool_calls": -1}}, "turn_ended.tool_calls"),
        ({"turn_ended": {"program_id": "p", "turn_id": "t", "service_ns": -9}}, "turn_ended.service_ns"),
        (
            {"turn_ended": {"program_id": "p", "turn_id": "t", "prompt_tokens": 2**53}},
            "turn_ended.prompt_tokens: expected < 2**53",
        ),
        ({"tool_enqueued": {"program_id": "p", "call_id": "c"}}, "tool_enqueued.tool"),
        ({"tool_started": {"program_id": "p", "tool": "x"}}, "tool_started.call_id"),
        (
            {"tool_ended": {"program_id": "p", "call_id": "c", "tool": "x", "duration_ns": -5}},
            "tool_ended.duration_ns: expected >= 0, got -5",
        ),
        ({"pool_sampled": {"total_blocks": 5}}, "pool_sampled.block_tokens: expected >= 1, got 0"),
        ({"pool_sampled": {"block_tokens": 1, "free_blocks": -2}}, "pool_sampled.free_blocks"),
        ({"host_sampled": {"cpus": float("nan")}}, "host_sampled.cpus: expected a finite number, got nan"),
        ({"host_sampled": {"cpu_use_ratio": -0.5}}, "host_sampled.cpu_use_ratio: expected >= 0, got -0.5"),
        ({"host_sampled": {"cpu_stall_ratio": 1.5}}, "host_sampled.cpu_stall_ratio: expected <= 1, got 1.5"),
        (
            {"turn_queued": {"program_id": "p", "turn_id": "t", "shared_ratio": 2}},
            "shared_ratio: expected <= 1, got 2",
        ),
        ({"command_applied": {"command_id": -1}}, "command_applied.command_id"),
        ({"command_rejected": {"command_id": -1}}, "command_rejected.command_id"),
        (
            {"publisher_state": {"open_turns": [{"program_id": "p", "turn_id": "t"}, {"program_id": "p"}]}},
            "publisher_state.open_turns[1].turn_id: expected a name",
        ),
        ({"publisher_state": {"pins": [{"program_id": "p", "ttl_ns": -1}]}}, "pins[0].ttl_ns: expected >= 0"),
        (
            {"publisher_state": {"grants": [{"program_id": "p"}, {}]}},
            "publisher_state.grants[1].program_id: expected a name",
        ),
    ],
)
def test_one_bad_event_is_left_out_and_described(kind: dict[str, Any], fault: str) -> None:
    good = {"tool_started": {"program_id": "p", "call_id": "c", "tool": "bash"}}
    batch = decode(batch_of(good, kind, good))
    assert [event.sequence for event in batch.events] == [7, 9]
    assert batch.last_sequence == 9
    assert len(batch.rejected) == 1
    assert batch.rejected[0].startswith("event 8: ")
    assert fault in batch.rejected[0]


def renamed(record: Any, name: str) -> Any:
    """The record with that name wherever it has one; and with it as its reason."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    for key, value in values.items():
        if isinstance(value, str):
            values[key] = name if value or key == "reason" else value
        elif isinstance(value, tuple):
            values[key] = tuple(name if isinstance(each, str) else renamed(each, name) for each in value)
    return type(record)(**values)


def texts_of(record: Any) -> Iterator[str]:
    for field in fields(record):
        value = getattr(record, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, str):
                yield each
            elif is_dataclass(each):
                yield from texts_of(each)


@given(events(), strangers.names)
def test_whatever_a_stranger_calls_it_the_event_is_taken(event: core.Event, name: str) -> None:
    """A name is the same for all who tell of it: a client's hooks, its gate, and what is read from disk."""
    batch = decode_events(encode_events(PUBLISHER, 1, [(1, renamed(event, name))]))
    assert batch.rejected == []
    texts = [*texts_of(batch.events[0])]
    assert not strangers.stray("".join(texts))
    assert {*texts} <= {"", PUBLISHER, sanitize(name), printable(name[:1024])}


@pytest.mark.parametrize("name", strangers.NAMES.values(), ids=strangers.NAMES)
def test_a_publisher_of_any_name_is_heard(name: str) -> None:
    batch = decode(
        pb.EventBatch(publisher=f"node/engine/{name.encode(errors='replace').decode()}", first_sequence=1)
    )
    assert batch.publisher.startswith("node/engine")
    assert not strangers.stray(batch.publisher)


def test_of_a_reason_without_end_the_beginning_is_read() -> None:
    batch = decode(batch_of({"program_ended": {"program_id": "p", "reason": "r" * 1_000_000}}))
    (ended,) = batch.events
    assert isinstance(ended, core.ProgramEnded)
    assert ended.reason == "r" * 1024


def test_a_kind_from_a_newer_version_is_left_out() -> None:
    newer = pb.Event.FromString(pb.Event(at_ns=1).SerializeToString() + b"\xa2\x06\x02\x08\x01")
    batch = decode(pb.EventBatch(publisher=PUBLISHER, first_sequence=3, events=[newer]))
    assert batch.events == []
    assert batch.rejected == ["event 3: no kind that this version knows"]


def test_a_negative_time_is_left_out() -> None:
    event = pb.Event(at_ns=-4, program_ended=pb.ProgramEnded(program_id="p"))
    batch = decode(pb.EventBatch(publisher=PUBLISHER, first_sequence=3, events=[event]))
    assert batch.rejected == ["event 3: program_ended.at_ns: expected >= 0, got -4"]


@pytest.mark.parametrize(
    "event",
    [
        "no event",
        core.Event(),
        core.ToolStarted(program_id=None, call_id="c", tool="x"),  # type: ignore[arg-type]
        core.TurnSubmitted(program_id="p", turn_id="t", projected_blocks=2**63),
        core.TurnSubmitted(program_id="p", turn_id="t", projected_blocks=1.5),  # type: ignore[arg-type]
        core.PublisherState(pins=[3]),  # type: ignore[list-item]
    ],
)
def test_what_cannot_be_encoded_is_our_own_error(event: Any) -> None:
    with pytest.raises(LocalEventError):
        encode_events(PUBLISHER, 1, [(1, event)])
