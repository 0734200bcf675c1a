"""What the A/B's engine costs on this machine: prefill by length, decode by batch and context.

Measured at the client of an otherwise idle engine, so that a figure holds the HTTP server's and the scheduler's
share, as a run's do. A figure is the median of its repetitions; ``least`` tells how noisy the machine was.
"""

import asyncio
import json
import os
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from tiny_model import VOCABULARY

from ab.engine import EngineShape, start_engine, versions
from ab.machine import cpus

# The pool of the A/B does not hold eight long contexts; the cost of a step does not depend on it.
SHAPE = EngineShape(pool_tokens=40_000)
PREFILL_TOKENS = (100, 250, 500, 1000, 2000, 4000, 8000)
CACHED_AND_NEW_TOKENS = ((7000, 1000), (3000, 250), (3000, 500), (3000, 1000), (7000, 250))
TOGETHER = ((2, 500), (4, 250), (8, 125))
BATCHES = (1, 2, 4, 8)
CONTEXTS_TOKENS = (1000, 4000)
DECODED_TOKENS = 64
REPETITIONS = 5


def calibrate(folder: Path, environment: Path, threads: int) -> dict[str, Any]:
    """Start an engine, measure, and end it. About five minutes."""
    before = os.getloadavg()[0]
    shape = replace(SHAPE, threads=threads)
    server = start_engine(folder, environment, shape)
    try:
        measured = asyncio.run(_measure(server.url))
    finally:
        server.kill()
    return {
        **measured,
        "cpus": cpus(),
        "load_before": round(before, 2),
        "engine": asdict(shape),
        "versions": versions(environment),
        "repetitions": REPETITIONS,
    }


async def _measure(url: str) -> dict[str, Any]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
        probe = _Probe(url, http)
        await probe.prefill(2000)  # what is only paid once
        await probe.decode(2, 500)
        result: dict[str, Any] = {"prefill_s": {}, "prefill_cached_s": {}, "prefill_together_s": {}, "decode_s": {}}
        least: dict[str, Any] = {name: {} for name in result}

        async def note(kind: str, name: str, measure: Callable[[], Awaitable[float]]) -> None:
            values = [await measure() for _ in range(REPETITIONS)]
            result[kind][name] = round(statistics.median(values), 5)
            least[kind][name] = round(min(values), 5)

        for tokens in PREFILL_TOKENS:
            await note("prefill_s", str(tokens), partial(probe.prefill, tokens))
        for cached, new in CACHED_AND_NEW_TOKENS:
            await note("prefill_cached_s", f"{cached}+{new}", partial(probe.prefill, new, cached))
        for count, tokens in TOGETHER:
            await note("prefill_together_s", f"{count}x{tokens}", partial(probe.together, count, tokens))
        for context in CONTEXTS_TOKENS:
            for batch in BATCHES:
                await note("decode_s", f"{batch}x{context}", partial(probe.decode, batch, context))
        return {**result, "least": least}


class _Probe:
    """Requests whose tokens nobody has sent before."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self._url = f"{url}/generate"
        self._http = http
        self._random = random.Random(7)

    def _tokens(self, count: int) -> list[int]:
        return self._random.choices(range(3, VOCABULARY), k=count)

    async def prefill(self, new: int, cached: int = 0) -> float:
        """Seconds of a request for one token, with ``new`` tokens behind ``cached`` ones that are in the cache."""
        prefix = self._tokens(cached)
        if cached:
            await self._generate(prefix, 1)
        began = time.perf_counter()
        reply = await self._generate([*prefix, *self._tokens(new)], 1)
        took = time.perf_counter() - began
        assert reply["meta_info"]["cached_tokens"] >= cached - 1, reply["meta_info"]
        return took

    async def together(self, count: int, tokens: int) -> float:
        """Seconds until the last of ``count`` prompts that are sent at once."""
        prompts = [self._tokens(tokens) for _ in range(count)]
        began = time.perf_counter()
        await asyncio.gather(*(self._generate(prompt, 1) for prompt in prompts))
        return time.perf_counter() - began

    async def decode(self, batch: int, context: int) -> float:
        """Seconds a step while ``batch`` sequences of that context decode together."""
        prompts = [self._tokens(context) for _ in range(batch)]
        for prompt in prompts:
            await self._generate(prompt, 1)
        times = await asyncio.gather(*(self._stream(prompt, DECODED_TOKENS) for prompt in prompts))
        begin = max(series[0][0] for series in times)
        end = min(series[-1][0] for series in times)
        inside = [[entry for entry in series if begin <= entry[0] <= end] for series in times]
        per_step = [(s[-1][0] - s[0][0]) / (s[-1][1] - s[0][1]) for s in inside if len(s) > 1]
        return statistics.median(per_step)

    async def _generate(self, tokens: list[int], new: int) -> Any:
        async with self._http.post(self._url, json=_body(tokens, new)) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def _stream(self, tokens: list[int], new: int) -> list[tuple[float, int]]:
        """When how many tokens were there."""
        async with self._http.post(self._url, json={**_body(tokens, new), "stream": True}) as response:
            assert response.status == 200
            return [
                (time.perf_counter(), json.loads(line[6:])["meta_info"]["completion_tokens"])
                async for line in response.content
                if line.startswith(b"data: {")
            ]


def _body(tokens: list[int], new: int) -> dict[str, Any]:
    sampling = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
    return {"input_ids": tokens, "sampling_params": sampling}
