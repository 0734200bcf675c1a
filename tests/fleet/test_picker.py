"""The picker behind the real Envoy, in each of the ways in which Envoy asks; the daemon's word is the test's."""

import asyncio
import hashlib
import io
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.data_plane import TOKENS, EngineDouble, engines, envoy, own_envoy
from support.pickers import CHAT, PATIENCE_S, Picker, picker, until

from controlplane.core.model.events import TurnAbandoned, TurnQueued
from controlplane.fleet.watchdog import STATUS

# How the picker has a request's body: the first as the product configures Envoy, others by one filter for all.
WAYS = {"asking and watching": "", "headers": "NONE", "buffered": "BUFFERED", "duplex": "FULL_DUPLEX_STREAMED"}
TIMEOUT = aiohttp.ClientTimeout(total=PATIENCE_S)
HELD_MS = 100  # before its picker is killed
KEY = {"authorization": "Bearer secret"}  # without it the same id is another program


@dataclass
class Plane:
    """Envoy, a picker and two engines."""

    url: str
    picker: Picker
    engines: list[EngineDouble]
    client: aiohttp.ClientSession

    def ask(self, program_id: str, headers: dict[str, str] | None = None, **body: Any) -> "asyncio.Task[Any]":
        """Send a turn of that program, named in its body and, for those who do not read it, in a header."""
        return asyncio.ensure_future(self._ask(program_id, headers or {}, body))

    async def _ask(self, program_id: str, headers: dict[str, str], body: dict[str, Any]) -> Any:
        data = json.dumps({"program_id": program_id, "messages": [], **body}).encode()
        async with self.client.post(self.url + CHAT, data=io.BytesIO(data), headers=headers) as answer:
            return answer.status, answer.headers, await answer.read(), data

    async def held(self, count: int = 1) -> list[TurnQueued]:
        await until(lambda: self.picker.gate.health()["held_turns"] == count, "turns wait")
        return self.picker.of(TurnQueued)


@asynccontextmanager
async def plane(folder: Path, way: str, **limits: Any) -> AsyncIterator[Plane]:
    async with engines(2) as them, picker(*(each.engine for each in them), **limits) as it:
        served = [each.engine for each in them]
        asked = envoy(folder, it.port, served, WAYS[way]) if WAYS[way] else own_envoy(folder, [it.port], served)
        async with asked as url, aiohttp.ClientSession(timeout=TIMEOUT) as client:
            yield Plane(url, it, them, client)


def named(way: str, program_id: str) -> dict[str, str]:
    """Where no body is read, a header has to name the program."""
    return {"x-penstock-program-id": program_id} if way == "headers" else {}


@pytest.mark.parametrize("way", WAYS)
async def test_turns_wait_pass_and_are_refused_in_each_way_in_which_envoy_asks(way: str, tmp_path: Path) -> None:
    async with plane(tmp_path, way, max_held=1) as it:
        await waits_for_its_grant(it, way)
        await goes_to_its_engine_unasked(it, way)
        await streams_as_it_is(it, way)
        await is_refused_or_leaves(it, way)
        await passes_if_it_is_no_turn(it, way)


async def waits_for_its_grant(it: Plane, way: str) -> None:
    home = it.engines[1]
    sent = {**KEY, "traceparent": "00-1-2-03", **named(way, "p")}
    turn = it.ask("p", sent, pad="x" * 100_000)
    queued = (await it.held())[0]
    assert queued.program_id == "p" and not turn.done()
    it.picker.admit("p", home.engine.place)
    status, headers, answer, data = await turn
    told = json.loads(answer)
    assert (status, told["place"], told["bytes"]) == (200, home.engine.place, len(data))
    assert told["sha256"] == hashlib.sha256(data).hexdigest()
    assert headers["x-penstock-turn-id"] == queued.turn_id
    assert headers["x-penstock-hold-ms"] == "1000007"  # the engine's gate has added to what it was told
    seen = {name.lower(): value for name, value in home.seen[0].items()}
    assert int(seen["x-penstock-hold-ms"]) >= 0
    assert (seen["authorization"], seen["traceparent"]) == (KEY["authorization"], "00-1-2-03")
    assert (seen["x-penstock-turn-id"], seen["x-penstock-program-id"]) == (queued.turn_id, "p")
    await until(lambda: it.picker.gate.health()["running_turns"] == 0, "its end is known")
    assert it.picker.turns.told[-1] == ("ended", "p", home.engine.place, 200)


async def goes_to_its_engine_unasked(it: Plane, way: str) -> None:
    """The next turn does, and so it does if a header names its program."""
    for headers in (named(way, "p"), {"x-penstock-program-id": "p"}):
        status, _, answer, data = await it.ask("p", {**headers, **KEY}, pad="x" * 9_000_000)
        told = json.loads(answer)
        assert (status, told["place"]) == (200, it.engines[1].engine.place)
        assert told["sha256"] == hashlib.sha256(data).hexdigest()


async def streams_as_it_is(it: Plane, way: str) -> None:
    status, _, answer, _ = await it.ask("p", {"x-test-stream": "1", **KEY, **named(way, "p")})
    assert (status, answer) == (200, b"".join(b"data: %d\n\n" % number for number in range(TOKENS)))


async def is_refused_or_leaves(it: Plane, way: str) -> None:
    seen = sum(len(each.seen) for each in it.engines)
    waiting = it.ask("first", named(way, "first"))
    await it.held()
    status, headers, answer, _ = await it.ask("q", named(way, "q"))
    told = json.loads(answer)["error"]
    assert (status, told["code"], told["program_id"], headers["retry-after"]) == (429, "queue_full", "q", "5")
    waiting.cancel()
    await until(lambda: it.picker.of(TurnAbandoned), "it has left")
    assert it.picker.gate.health()["held_turns"] == 0
    assert sum(len(each.seen) for each in it.engines) == seen


async def passes_if_it_is_no_turn(it: Plane, way: str) -> None:
    async with it.client.get(it.url + "/v1/models") as answer:
        assert answer.status == 200 and "x-penstock-turn-id" not in answer.headers
    for each in it.engines:
        it.picker.roster.remove(each.engine.place)
    async with it.client.get(it.url + "/v1/models") as answer:
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    status, _, answer_bytes, _ = await it.ask("p", {**named(way, "p"), **KEY})
    assert (status, json.loads(answer_bytes)["error"]["code"]) == (503, "no_engine")


@contextmanager
def picker_process(*arguments: str, stderr: int | None = None) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A picker in a process of its own, which lets in what its standard input says."""
    script = Path(__file__).with_name("picker_process.py")
    command = [sys.executable, str(script), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


async def test_a_held_turn_survives_its_picker(tmp_path: Path) -> None:
    async with engines(2) as them:
        named = ["30", *(f"{each.engine.place}={each.engine.address}" for each in them)]
        with picker_process(*named) as (first, port_1), picker_process(*named) as (second, port_2):
            ports, everyone = [port_1, port_2], [each.engine for each in them]
            assert first.stdout is not None and second.stdout is not None and second.stdin is not None
            async with (
                own_envoy(tmp_path, ports, everyone, tries=40) as url,
                aiohttp.ClientSession(timeout=TIMEOUT) as client,
            ):
                turn = asyncio.ensure_future(client.post(url + CHAT, json={"program_id": "p", "messages": []}))
                *held, begun_ms = (await asyncio.to_thread(first.stdout.readline)).split()
                assert held == ["held", "p"]
                await asyncio.sleep(HELD_MS / 1000)
                first.send_signal(signal.SIGKILL)
                *held, known_ms = (await asyncio.to_thread(second.stdout.readline)).split()
                assert held == ["held", "p"]
                assert int(known_ms) >= int(begun_ms) + HELD_MS, "it knows since when"
                second.stdin.write("p\n")
                second.stdin.flush()
                answer = await turn
                assert answer.status == 200
                await answer.read()
                assert sum(len(each.seen) for each in them) == 1


async def test_a_picker_whose_loop_hangs_ends_and_says_so() -> None:
    with picker_process("1", stderr=subprocess.PIPE) as (process, _):
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write("hang\n")
        process.stdin.flush()
        told = await asyncio.to_thread(process.stderr.read)
        assert await asyncio.to_thread(process.wait) == STATUS
        assert "the event loop has hung" in told and "picker_process.py" in told  # and where
        process.stderr.close()
