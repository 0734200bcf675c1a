"""Agent programs against a site: several turns each, with growing prompts, over whichever Envoy answers.

A request that was cut is sent again, as an agent's client does; so a program ends, or is lost.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from random import Random

import aiohttp

MODEL = "m"  # as which the engines are asked: a real one is to go by it
_AGAIN_S = 0.1
_REFUSED_S = 1.0  # the longest wait after a 429 or 503 with a Retry-After: engines run faster than the clock here


@dataclass(slots=True, kw_only=True)
class Cut:
    """A request that failed."""

    program: str
    began_s: float  # by the monotonic clock
    ended_s: float
    envoy: str
    problem: str
    why: str = ""  # what explains it, as whoever knows the faults said at once


@dataclass(slots=True)
class Seen:
    """What clients saw."""

    counts: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)  # requests sent, by program
    cuts: list[Cut] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)


class Agents:
    """So many at once, each with one program after the other, until they are stopped.

    ``tool`` is entered with the program's name for as long as its tool runs, as by a runtime that reports it.
    ``longest_s``: that a request may take.
    """

    def __init__(
        self,
        urls: list[str],
        *,
        count: int,
        seed: int,
        why: Callable[[Cut], str],
        think_s: float = 0.3,
        tool: Callable[[str], AbstractContextManager[object]] = nullcontext,
        longest_s: float = 180.0,
    ) -> None:
        self._timeout = aiohttp.ClientTimeout(total=longest_s)
        self._why, self._tool = why, tool
        self._urls, self._count, self._random, self._think_s = urls, count, Random(seed), think_s
        self._programs: dict[str, asyncio.Task[None]] = {}
        self._agents: list[asyncio.Task[None]] = []
        self._began = 0
        self._stopping = False
        self.seen = Seen()

    @property
    def running(self) -> int:
        """Programs that run now."""
        return len(self._programs)

    def start(self) -> None:
        """In the running event loop."""
        self._agents = [asyncio.create_task(self._agent()) for _ in range(self._count)]

    async def stop(self) -> None:
        """Let each one finish its program."""
        self._stopping = True
        await asyncio.gather(*self._agents)

    async def drop(self) -> None:
        """End them all at once."""
        for task in (*self._programs.values(), *self._agents):
            task.cancel()
        await asyncio.gather(*self._agents, return_exceptions=True)

    def kill_one(self) -> None:
        """A client vanishes in the middle of whatever it does."""
        if self._programs:
            self._programs[self._random.choice(sorted(self._programs))].cancel()

    async def _agent(self) -> None:
        while not self._stopping:
            self._began += 1
            name = f"program-{self._began}"
            task = self._programs[name] = asyncio.create_task(self._program(name))
            try:
                await asyncio.wait([task])
            finally:
                task.cancel()
                del self._programs[name]
            self.seen.counts["clients that vanished" if task.cancelled() else "programs that ended"] += 1
            if not task.cancelled():
                task.result()

    async def _program(self, name: str) -> None:
        words = " ".join(f"w{self._random.randrange(3, 2000)}" for _ in range(self._random.randrange(10, 60)))
        messages = [{"role": "user", "content": f"{name} {words}"}]
        connector = aiohttp.TCPConnector(limit=0, force_close=True)  # a server may close one as it is used again
        async with aiohttp.ClientSession(connector=connector, timeout=self._timeout) as session:
            for turn in range(self._random.randrange(2, 6)):
                reply = await self._turn(session, name, messages)
                messages += [
                    {"role": "assistant", "content": reply},
                    {"role": "user", "content": f"result {turn}"},
                ]
                with self._tool(name):
                    await asyncio.sleep(self._random.uniform(0.0, self._think_s))

    async def _turn(self, session: aiohttp.ClientSession, name: str, messages: list[dict[str, str]]) -> str:
        body = {"model": MODEL, "messages": messages, "max_tokens": 24, "stream": True, "program_id": name}
        body["stream_options"] = {"include_usage": True}
        while True:
            began_s, envoy = time.monotonic(), self._random.choice(self._urls)
            try:
                return await self._ask(session, envoy, name, body)
            except _Refused as refused:
                self.seen.counts["requests refused with Retry-After"] += 1
                await asyncio.sleep(min(refused.wait_s, _REFUSED_S))
                continue
            except aiohttp.ClientConnectorError:  # nothing was sent: the other Envoy has it
                self.seen.counts["connections refused"] += 1
                await asyncio.sleep(_AGAIN_S / 2)
                continue
            except _Failed as failure:
                problem = str(failure)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                problem = repr(error)[:200]
            ended_s = time.monotonic()
            cut = Cut(program=name, began_s=began_s, ended_s=ended_s, envoy=envoy, problem=problem)
            cut.why = self._why(cut)
            self.seen.cuts.append(cut)
            await asyncio.sleep(_AGAIN_S)

    async def _ask(self, session: aiohttp.ClientSession, url: str, name: str, body: dict[str, object]) -> str:
        words: list[str] = []
        began_s, first = time.monotonic(), True
        headers = {"x-session-id": name}
        self.seen.asked[name] += 1
        async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
            if answer.status in (429, 503) and "retry-after" in answer.headers:
                raise _Refused(float(answer.headers["retry-after"]))
            if answer.status != 200:
                raise _Failed(f"{answer.status} {(await answer.text())[:200]}")
            async for line in answer.content:
                if first:
                    self.seen.ttft_s.append(time.monotonic() - began_s)
                    first = False
                data = line.strip().removeprefix(b"data: ")
                if data == b"[DONE]":
                    self.seen.counts["requests answered"] += 1
                    return "".join(words)
                if data.startswith(b"{"):
                    words += _words(data)
        raise _Failed("the answer ended before its end")


def _words(data: bytes) -> list[str]:
    choices = json.loads(data).get("choices") or ()
    return [str(each["delta"]["content"]) for each in choices if each.get("delta", {}).get("content")]


class _Failed(Exception):
    """Another answer than a whole one."""


class _Refused(Exception):
    """Too many are waiting."""

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        self.wait_s = wait_s
