"""Programs of clients that name themselves and tell nothing else, over plain HTTP."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import aiohttp

LONGEST_S = 120.0  # that a request may take


@dataclass
class Seen:
    """What the clients saw. ``ours`` are failures that no kill of the engine or of the client explains."""

    counts: Counter[str] = field(default_factory=Counter)
    ours: list[str] = field(default_factory=list)


class Clients:
    """So many at once, each with one program after the other, until they are stopped.

    A request whose engine was killed under it is sent again, as an agent's client does.
    """

    def __init__(self, url: str, random: Random, count: int) -> None:
        self._url, self._random, self._count = url, random, count
        self._programs: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._began = 0
        self._stopping = False
        self.engine_back_s = 0.0  # when it was last there again; infinite while it is away
        self.seen = Seen()

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._client()) for _ in range(self._count)]

    async def stop(self) -> None:
        """Let each one finish its program."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    def kill_one(self) -> None:
        """A client vanishes, in the middle of whatever it does."""
        if self._programs:
            name = self._random.choice(sorted(self._programs))
            self._programs[name].cancel()

    async def _client(self) -> None:
        while not self._stopping:
            self._began += 1
            name = f"program-{self._began}"
            task = self._programs[name] = asyncio.create_task(self._program(name))
            try:
                await task
                self.seen.counts["programs that ended"] += 1
            except asyncio.CancelledError:
                self.seen.counts["clients that vanished"] += 1
            finally:
                del self._programs[name]

    async def _program(self, name: str) -> None:
        messages = [{"role": "user", "content": f"{name} " + "word " * self._random.randrange(10, 60)}]
        connector = aiohttp.TCPConnector(force_close=True)
        timeout = aiohttp.ClientTimeout(total=LONGEST_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            for turn in range(self._random.randrange(2, 6)):
                reply = await self._turn(session, name, messages)
                messages += [
                    {"role": "assistant", "content": reply},
                    {"role": "user", "content": f"result {turn}"},
                ]
                await asyncio.sleep(self._random.uniform(0.0, 0.3))

    async def _turn(self, session: aiohttp.ClientSession, name: str, messages: list[dict[str, str]]) -> str:
        body = {"model": "m", "messages": messages, "max_tokens": 24, "program_id": name}
        while True:
            began_s = time.monotonic()
            try:
                async with session.post(f"{self._url}/v1/chat/completions", json=body) as answer:
                    text = await answer.text()
                    if answer.status == 200:
                        self.seen.counts["requests answered"] += 1
                        return str((await answer.json())["choices"][0]["message"]["content"] or "")
                    problem = f"{answer.status} {text[:200]}"
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                problem = repr(error)[:200]
            if self._engine_was_down(began_s):
                self.seen.counts["requests whose engine was killed"] += 1
            else:
                self.seen.ours.append(f"{name}: {problem} after {time.monotonic() - began_s:.1f} s")
            await asyncio.sleep(0.1)

    def _engine_was_down(self, since_s: float) -> bool:
        return self.engine_back_s >= since_s
