"""What reads from outside, and what is put to it."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, get_args, get_origin, get_type_hints

import grpc
import nats
from support.session_files import MADE

from controlplane.config import load
from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.errors import ControlPlaneError, RemoteEventError
from controlplane.core.policies.presets import PRESETS
from controlplane.core.scheduling.rules_and_state import ControllerState
from controlplane.daemon.bus import snapshot
from controlplane.lab.workload.trace import read_trace
from controlplane.transport.delivery import delivered
from controlplane.transport.endpoint import control_path, resolve_url, socket_path
from controlplane.transport.roles import BusRole
from controlplane.transport.subjects import event_subject
from controlplane.wire.codec import (
    Heartbeat,
    decode_commands,
    decode_heartbeat,
    encode_commands,
    encode_events,
    encode_heartbeat,
)
from controlplane.wire.control import METHODS, SERVICE
from controlplane.wire.frames import Frame, pack
from controlplane.wire.log import read_log

from .mutate import Mutator

_AT_ONCE = 500
_ANSWERS_WITHIN_S = 10.0

_NUMBERS = {int: 5, float: 0.5, bool: True}
_FIXED = {"role": "engine", "part": 0, "more": False}


def _example(kind: type) -> Any:
    """A record of that kind with something in each of its own fields."""
    hints = get_type_hints(kind)
    own = [field.name for field in fields(kind) if field.name not in ev.Event.__dataclass_fields__]
    return kind(**{name: _FIXED.get(name, _value(hints[name], name)) for name in own})


def _value(hint: Any, name: str) -> Any:
    if get_origin(hint) is Sequence:
        return (_value(get_args(hint)[0], name),) * 2
    if hint is str:
        return name
    return _NUMBERS[hint] if hint in _NUMBERS else _example(hint)


EVENTS: list[ev.Event] = [_example(kind) for kind in ev.EVENT_TYPES]


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Told:
    """``problems``: what must not have happened. ``slowest_s``: of one input, or until an answer came."""

    inputs: int = 0
    slowest_s: float = 0.0
    problems: list[str] = field(default_factory=list)

    def read(self, data: bytes, read: Callable[[], object], *own: type[Exception]) -> None:
        """Have ``data`` read here; errors of its ``own`` are the right answer."""
        began_s = time.monotonic()
        try:
            read()
        except own:
            pass
        except Exception as error:
            self.problems.append(f"{type(error).__name__}: {error} of {data[:300]!r}")
        self.inputs += 1
        self.took(began_s)

    def took(self, began_s: float) -> None:
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)

    async def send(self, connecting: Awaitable[Connection], mutator: Mutator, count: int = 1) -> None:
        """So many inputs on a connection of their own. It may be answered or hung up upon, and in time."""
        reader, writer = await connecting
        try:
            for _ in range(count):
                writer.write(mutator.next())
                self.inputs += 1
                await writer.drain()
            writer.write_eof()
            began_s = time.monotonic()
            await asyncio.wait_for(reader.read(), _ANSWERS_WITHIN_S)
            self.took(began_s)
        except ConnectionError:
            pass
        except TimeoutError:
            self.problems.append("a connection was neither answered nor hung up upon")
        finally:
            writer.close()


def _batches(publisher: str) -> list[bytes]:
    events = [encode_events(publisher, 1 + number, [(10**9, event)]) for number, event in enumerate(EVENTS)]
    return [*events, encode_events(publisher, 1, [(10**9, event) for event in EVENTS])]


async def bus(random: Random, inputs: int, node: str, folder: Path) -> Told:
    """Batches of an engine and of an agent, each by the role that may publish there."""
    told = Told()
    for role, kind in ((BusRole.ENGINE, "engine"), (BusRole.AGENT, "tool")):
        mutator = Mutator(random, _batches(f"{node}/{kind}/malformed"))
        client = await nats.connect(resolve_url(None, node, folder, role=role)())
        for number in range(inputs // 2):
            await client.publish(event_subject(node, kind), mutator.next())
            told.inputs += 1
            if number % _AT_ONCE == 0:
                began_s = time.monotonic()
                await delivered(client)
                told.took(began_s)
        await delivered(client)
        await client.close()
    return told


def words(random: Random, inputs: int, node: str) -> Told:
    """Commands and heartbeats, as an engine's plugin and an agent's hooks read them."""
    told = Told()
    admit, pause = cmd.Admit(command_id=1, program_id="p"), cmd.Pause(command_id=2, program_id="p")
    retain, window = cmd.Retain(command_id=3, program_id="p", ttl_ns=10**9), cmd.SetWindow(limit=3, window=3)
    beat = Heartbeat(node=node, boot_id="b", lease_ttl_ns=10**9, limit=3, window=3.0)
    mutator = Mutator(
        random, [encode_commands([admit, pause]), encode_commands([retain, window]), encode_heartbeat(beat)]
    )
    for number in range(inputs):
        data = mutator.next()
        read = decode_commands if number % 2 else decode_heartbeat
        told.read(data, partial(read, data), RemoteEventError)
    return told


async def socket(random: Random, inputs: int, node: str, folder: Path) -> Told:
    """Frames for the daemon's Unix socket. It may hang up; then another connection is made."""
    told = Told()
    frames = [pack(Frame.EVENTS, batch) for batch in _batches(f"{node}/tool/malformed")]
    mutator = Mutator(random, [*frames, pack(Frame.TAKEN), pack(Frame.COMMANDS, b"x")])
    while told.inputs < inputs:
        await told.send(asyncio.open_unix_connection(socket_path(node, folder)), mutator, 20)
    return told


async def http(random: Random, inputs: int, host: str, port: int) -> Told:
    """Requests for the gate, of an engine that answers at once."""
    told = Told()
    bodies = [
        {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1, "program_id": "p"},
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "parent_id": "p"},
        {"model": "m", "messages": [], "metadata": {"program_id": "p", "tenant": "t"}, "max_tokens": 1},
    ]
    requests = []
    for body in bodies:
        text = json.dumps(body)
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        headers = f"x-penstock-program-id: q\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n"
        requests.append((head + headers + text).encode())
    mutator = Mutator(random, requests)
    slots = asyncio.Semaphore(32)

    async def one() -> None:
        async with slots:
            await told.send(asyncio.open_connection(host, port), mutator)

    for first in range(0, inputs, _AT_ONCE):
        await asyncio.gather(*(one() for _ in range(min(_AT_ONCE, inputs - first))))
    return told


async def control(random: Random, inputs: int, node: str, folder: Path) -> Told:
    """Requests for the control API that change nothing for good; whatever is answered, it is answered."""
    told = Told()
    names = ("GetStatus", "ListPrograms", "Hold", "Release", "SetPreset", "GetConfig")
    mutator = Mutator(random, [b"\x0a\x01p", b"\x10\x05\x18\x01", b"\x0a\x04mars", b""])
    async with grpc.aio.insecure_channel(f"unix:{control_path(node, folder)}") as channel:
        calls = [channel.unary_unary(f"/{SERVICE}/{name}") for name in names if name in METHODS]
        for _ in range(0, inputs, 32):
            began_s = time.monotonic()
            some = [random.choice(calls)(mutator.next(), timeout=_ANSWERS_WITHIN_S) for _ in range(32)]
            for answer in await asyncio.gather(*some, return_exceptions=True):
                told.inputs += 1
                late = isinstance(answer, grpc.aio.AioRpcError) and answer.code() in (
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    grpc.StatusCode.UNAVAILABLE,
                    grpc.StatusCode.ABORTED,
                )
                if late:
                    told.problems.append(f"the control API said {answer}")
            told.took(began_s)
    return told


def _files(random: Random, inputs: int, corpus: list[bytes], path: Path, read: Callable[[Path], object]) -> Told:
    """Files that are read whole; a clear error is the right answer."""
    told, mutator = Told(), Mutator(random, corpus)
    for _ in range(inputs):
        data = mutator.next()
        path.write_bytes(data)
        told.read(data, partial(read, path), ControlPlaneError, snapshot.SnapshotError, OSError)
    return told


def configurations(random: Random, inputs: int, folder: Path) -> Told:
    corpus = [
        b'preset = "mars"\n[admission]\nalpha = 1.0\n',
        b'[admission]\npolicy = "fixed"\nwindow = 4\n[host]\ncpus = 4.0\n',
        b'[api]\nlisten = "127.0.0.1:0"\n[overload]\nkv_high = 1.0\n[silence]\n',
    ]
    return _files(random, inputs, corpus, folder / "malformed.toml", load)


def traces(random: Random, inputs: int, folder: Path) -> Told:
    turn = '{"input_tokens":900,"output_tokens":9,"tool":"bash","tool_ms":12.5}'
    corpus = [
        f'{{"program_id":"a","source":"x","turns":[{turn},{turn}]}}\n'.encode(),
        f'{{"program_id":"b","source":"x","turns":[{turn}]}}\n'.encode() * 3,
        *(content.encode() for content, _ in MADE.values()),
    ]
    return _files(random, inputs, corpus, folder / "malformed.jsonl", read_trace)


def logs(random: Random, inputs: int, folder: Path, recorded: bytes) -> Told:
    lines = recorded.splitlines(keepends=True)
    corpus = [b"".join(lines[:1] + lines[at : at + 3]) for at in range(1, max(2, len(lines) - 3), 3)] or [b"{}"]
    return _files(random, inputs, corpus[:200], folder / "malformed.log", lambda path: list(read_log(path)))


def snapshots(random: Random, inputs: int, folder: Path) -> Told:
    preset = PRESETS["penstock"]
    state = ControllerState(
        admission=preset.admission.initial(),
        retention=preset.retention.initial(),
    )
    data = b"".join(
        snapshot.pieces(
            state, preset="penstock", stream_sequence=1, stream_created="x", now_ns=10**18, time_scale=1.0
        )
    )

    def read(path: Path) -> object:
        return snapshot.restore(snapshot.read(path.read_bytes()), preset)

    return _files(random, inputs, [data], folder / "malformed.json", read)
