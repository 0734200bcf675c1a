"""Times of a running SGLang, at its client: prefill by length, with and without a cached beginning, decode, chats.

The engine must be idle otherwise. A figure is the median of its repetitions and holds the HTTP server's and the
scheduler's share, as a turn's does. Prefills are of token ids; what an agent's chat takes more, its template, the
tokenizer and the stream, the chats tell.
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any

import aiohttp

from controlplane.core.model.errors import EngineUnavailable
from controlplane.eventloop import run, task_group
from controlplane.lab.calibrate.fit import Chat, Decode, Prefill

_TIMEOUT_S = 600
_DECODED_TOKENS = 64
_MORE_TRIES = 2  # of a decode step, where sequences that were sent together did not decode together
_AGE_S = 60.0
_TOGETHER = 6
_WORD_TOKENS = 8  # of a word of four letters at most, with room to spare
_NO_CHATS = (400, 404, 405, 501)  # a model without a chat template, a server without the path
_TOKEN_IDS = range(100, 2000)  # any model has these; a random prompt of them begins like no other

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure. ``cached``: (cached, new) tokens; ``chats``: words."""

    prefill: Sequence[int] = (250, 500, 1000, 2000, 4000, 8000)
    cached: Sequence[tuple[int, int]] = ((3000, 250), (3000, 1000), (7000, 250), (7000, 1000))
    batches: Sequence[int] = (1, 2, 4, 8)
    contexts: tuple[int, int] = (1000, 4000)
    chats: Sequence[int] = (100, 400)
    repetitions: int = 5

    def within(self, room_tokens: int) -> "Plan":
        """As much of it as fits such a context or pool; smaller sizes where too little of it does."""
        room_tokens -= 2 * _DECODED_TOKENS
        prefill = tuple(tokens for tokens in self.prefill if tokens <= room_tokens)
        cached = tuple((cached, new) for cached, new in self.cached if cached + new <= room_tokens)
        smaller = tuple(room_tokens // part for part in (16, 8, 4, 2))
        return Plan(
            prefill=prefill if len(prefill) >= len(smaller) else smaller,
            cached=cached or ((room_tokens // 2, room_tokens // 4),),
            batches=self.batches,
            contexts=(min(self.contexts[0], room_tokens // 8), min(self.contexts[1], room_tokens // 3)),
            chats=tuple(dict.fromkeys(min(words, room_tokens // _WORD_TOKENS) for words in self.chats)),
            repetitions=self.repetitions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What the engine says of itself."""

    version: str
    model: str
    chunk_tokens: int
    pool_tokens: int
    context_tokens: int
    results_late: bool = False  # it overlaps steps with its scheduling, on a device whose steps block


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Medians."""

    engine: Engine
    prefill: Sequence[Prefill]
    decode: Sequence[Decode]
    chats: Sequence[Chat] = ()  # none where the server has no chat completions


def measure(url: str, plan: Plan, report: Report) -> Measured:
    """Measure the engine at ``url``. ``report`` hears of each figure.

    Raises ``EngineUnavailable`` where nothing answers, or it is no SGLang.
    """
    try:
        return run(_measure, url.rstrip("/"), plan, report)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise EngineUnavailable(f"{url}: {str(error) or type(error).__name__}") from error


async def _measure(url: str, plan: Plan, report: Report) -> Measured:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as http:
        engine = await _describe(url, http)
        room = min(engine.context_tokens, engine.pool_tokens)
        plan = plan.within(room)
        client = _Client(url, engine.model, http)
        await client.prefill(min(2000, room // 2))  # what is only paid once
        report("using the cache as agents do, until it lies scattered in memory")
        await client.age(engine.pool_tokens, room)
        prefill = []
        for cached, new in [*((0, tokens) for tokens in plan.prefill), *plan.cached]:
            times = [await client.prefill(new, cached) for _ in range(plan.repetitions)]
            prefill.append(Prefill(cached=cached, new=new, seconds=statistics.median(times)))
            report(f"prefill of {new} tokens behind {cached} cached ones: {prefill[-1].seconds:.4f} s")
        decode = []
        for context in plan.contexts:
            for batch in plan.batches:
                if batch * (context + 2 * _DECODED_TOKENS) > engine.pool_tokens:
                    continue
                times = await client.decode(batch, context, plan.repetitions)
                if not times:
                    report(f"{batch} x {context} tokens never decoded together here: left out")
                    continue
                decode.append(Decode(batch=batch, context=context, seconds=statistics.median(times)))
                report(f"a decode step of {batch} x {context} tokens: {decode[-1].seconds * 1e3:.2f} ms")
        chats = []
        for words in plan.chats:
            found = [chat for _ in range(plan.repetitions) if (chat := await client.chat(words)) is not None]
            if not found:
                report("no chat completions here: a turn's own overhead counts as none")
                break
            chats.append(sorted(found, key=lambda chat: chat.seconds)[len(found) // 2])
            report(f"the first token of a chat of {chats[-1].tokens} tokens: {chats[-1].seconds:.4f} s")
        return Measured(engine=engine, prefill=prefill, decode=decode, chats=chats)


async def _describe(url: str, http: aiohttp.ClientSession) -> Engine:
    info: Any = {}
    async with http.get(f"{url}/server_info") as response:
        if response.status == 200:
            info = await response.json()
    try:
        pool_tokens = int(info["max_total_num_tokens"])
        chunk_tokens = int(info.get("chunked_prefill_size") or 0)
        return Engine(
            version=str(info.get("version", "?")),
            model=str(info.get("model_path", "?")),
            chunk_tokens=chunk_tokens if chunk_tokens > 0 else int(info["max_prefill_tokens"]),
            pool_tokens=pool_tokens,
            context_tokens=int(info.get("context_length") or info.get("max_req_input_len") or pool_tokens),
            results_late=info.get("device") == "cpu" and info.get("disable_overlap_schedule") is False,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineUnavailable(f"{url}: not an SGLang server: {error!r} in its description of itself") from error


class _Client:
    """Requests whose tokens nobody has sent before."""

    def __init__(self, url: str, model: str, http: aiohttp.ClientSession) -> None:
        self._url = f"{url}/generate"
        self._chat_url = f"{url}/v1/chat/completions"
        self._model = model
        self._http = http
        self._random = random.Random(7)

    def _tokens(self, count: int) -> list[int]:
        return self._random.choices(_TOKEN_IDS, k=count)

    async def age(self, pool_tokens: int, room_tokens: int) -> None:
        """Serve prompts and replies of all lengths side by side until they took the pool twice, or for a minute.

        In an engine that has just begun a context lies in one piece, which a CPU reads faster.
        """
        began, taken = time.monotonic(), 0
        longest = max(2, room_tokens // _TOGETHER // 2)
        while taken < 2 * pool_tokens and time.monotonic() - began < _AGE_S:
            sizes = [(self._random.randrange(1, longest), self._random.randrange(1, 64)) for _ in range(_TOGETHER)]
            async with task_group() as group:
                for prompt, output in sizes:
                    group.start_soon(self._generate, self._tokens(prompt), output)
            taken += sum(map(sum, sizes))

    async def prefill(self, new: int, cached: int = 0) -> float:
        """Seconds of a request for one token, with ``new`` tokens behind ``cached`` ones that are in the cache."""
        prefix = self._tokens(cached)
        if cached:
            await self._generate(prefix, 1)
        began = time.perf_counter()
        await self._generate([*prefix, *self._tokens(new)], 1)
        return time.perf_counter() - began

    async def decode(self, batch: int, context: int, repetitions: int) -> list[float]:
        """Seconds a step while ``batch`` sequences of that context decode together, of as many repetitions.

        They are one request, so that the engine has all of them at once. Fewer where they missed each other all
        the same: behind a long queue one's reply can be over before the next one begins.
        """
        found: list[float] = []
        for _ in range(repetitions + _MORE_TRIES):
            if len(found) == repetitions:
                break
            prompts = [self._tokens(context) for _ in range(batch)]
            for prompt in prompts:
                await self._generate(prompt, 1)
            if (seconds := step_seconds(await self._streams(prompts, _DECODED_TOKENS))) is not None:
                found.append(seconds)
        return found

    async def chat(self, words: int) -> Chat | None:
        """A streamed chat completion of one token, of words that nobody has sent before. None: there are none."""
        text = " ".join("".join(self._random.choices(ascii_lowercase, k=4)) for _ in range(words))
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 1,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began = time.perf_counter()
        seconds, tokens = 0.0, 0
        async with self._http.post(self._chat_url, json=body) as response:
            if response.status in _NO_CHATS:
                return None
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                if chunk.get("choices") and not seconds:
                    seconds = time.perf_counter() - began
                tokens = (chunk.get("usage") or {}).get("prompt_tokens", tokens)
        return Chat(tokens=tokens, seconds=seconds) if seconds and tokens else None

    async def _generate(self, tokens: list[int], new: int) -> None:
        async with self._http.post(self._url, json=_body(tokens, new)) as response:
            response.raise_for_status()
            await response.read()

    async def _streams(self, prompts: Sequence[list[int]], new: int) -> list[list[tuple[float, int]]]:
        """Of each reply of one request: when how many tokens were there."""
        times: list[list[tuple[float, int]]] = [[] for _ in prompts]
        async with self._http.post(self._url, json={**_body(prompts, new), "stream": True}) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    chunk = json.loads(line[6:])
                    times[chunk["index"]].append((time.perf_counter(), chunk["meta_info"]["completion_tokens"]))
        return times


def step_seconds(times: Sequence[Sequence[tuple[float, int]]]) -> float | None:
    """Seconds a step while all of these replies were being written: of each, when (s) how many tokens were there.

    None where they never were at once, or came in too few pieces to tell.
    """
    if not all(times):
        return None
    begin = max(series[0][0] for series in times)
    end = min(series[-1][0] for series in times)
    inside = [[entry for entry in series if begin <= entry[0] <= end] for series in times]
    ends = [(series[0], series[-1]) for series in inside if series]
    per_step = [
        (last_s - first_s) / (last - first)
        for (first_s, first), (last_s, last) in ends
        if last > first and last_s > first_s
    ]
    return statistics.median(per_step) if per_step else None


def _body(tokens: Sequence[int] | Sequence[list[int]], new: int) -> dict[str, Any]:
    sampling = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
    return {"input_ids": tokens, "sampling_params": sampling}
